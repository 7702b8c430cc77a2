// Package approvals decides which ToolApprovals count. A ToolApproval contains the name of its author, but only the API
// server can verify that name, with the ValidatingAdmissionPolicy that comes with Capstan. So a ToolApproval counts
// only if the policy is in force now, and has not changed since 5 seconds before the ToolApproval was created. The
// package checks the requesters of Turns in the same way.
package approvals

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Check returns the ToolApprovals that may be used, in the given order. why is a message of one line that says why the
// other ToolApprovals may not be used, and what to do. It is empty if all may be used. An error is temporary: the
// caller may try again. A Check must be safe for concurrent use.
type Check func(ctx context.Context, made []v1alpha1.ToolApproval) (checked []v1alpha1.ToolApproval, why string, err error)

// AcceptAll is the Check that accepts every ToolApproval. It is for clusters where something other than the policy
// verifies the author's name and groups.
func AcceptAll(_ context.Context, made []v1alpha1.ToolApproval) (checked []v1alpha1.ToolApproval, why string, err error) {
	return made, "", nil
}

// maxNamed is the maximum number of ToolApprovals, of reasons, and of approvers that a message names.
const maxNamed = 3

// unused returns the message that these ToolApprovals are not used, and why. There must be at least one ToolApproval.
// The message names the newest ones, because their authors may be waiting for it. It does not depend on their order.
func unused(made []v1alpha1.ToolApproval, why string) string {
	names := make([]string, 0, len(made))
	for _, a := range slices.SortedFunc(slices.Values(made), newestFirst) {
		names = append(names, a.Name)
	}
	if len(names) == 1 {
		return fmt.Sprintf("ToolApproval %s is not used: %s", names[0], why)
	}
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("ToolApprovals %s%s are not used: %s", strings.Join(names, ", "), more, why)
}

// newestFirst compares two ToolApprovals by their age, and then by their names.
func newestFirst(a, b v1alpha1.ToolApproval) int {
	return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}
