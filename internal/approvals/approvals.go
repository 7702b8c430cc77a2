// Package approvals says which ToolApprovals count. A ToolApproval bears the name of who has decided, which is what its author has
// written unless the API server has checked it, by the ValidatingAdmissionPolicy that comes with Capstan. So one that was made
// while the policy was not in force is not used, and none is while it is not.
package approvals

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Check returns those of some ToolApprovals that may be used, in their order. why tells people on one line why the others may not
// be and what to do about it, and is empty if there are no others. An error says that nobody could find out: it may be tried
// again. A Check may be called from several goroutines.
type Check func(ctx context.Context, made []v1alpha1.ToolApproval) (checked []v1alpha1.ToolApproval, why string, err error)

// Trust is the Check that takes every ToolApproval, for clusters where something else than the policy makes sure that it bears its
// author's name.
func Trust(_ context.Context, made []v1alpha1.ToolApproval) (checked []v1alpha1.ToolApproval, why string, err error) {
	return made, "", nil
}

// maxNamed is how many ToolApprovals are named.
const maxNamed = 3

// unused says that ToolApprovals, at least one, are not used, in the same words whatever their order.
func unused(made []v1alpha1.ToolApproval, why string) string {
	names := make([]string, 0, len(made))
	for i := range made {
		names = append(names, made[i].Name)
	}
	slices.Sort(names)
	if len(names) == 1 {
		return fmt.Sprintf("ToolApproval %s is not used: %s", names[0], why)
	}
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("ToolApprovals %s%s are not used: %s", strings.Join(names, ", "), more, why)
}
