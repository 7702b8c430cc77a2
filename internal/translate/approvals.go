package translate

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// PendingApproval returns a request for approval in the form of a status. The fields that a decision names are not
// truncated, so two requests are never equal. The expiry is rounded up to a whole second, so that the call has
// certainly expired at that time.
func PendingApproval(a loop.Approval) v1alpha1.PendingApproval {
	return v1alpha1.PendingApproval{
		RequestID: a.Request, Step: toInt32(a.Step), CallID: a.CallID, Name: a.Name, ToolServerUID: a.ToolServerUID,
		SchemaHash:    a.SchemaHash,
		ArgumentsHash: a.ArgumentsHash,
		RequestTime:   metav1.NewTime(a.Requested.Truncate(time.Second)),
		ExpiryTime:    metav1.NewTime(a.Expires.Add(time.Second - 1).Truncate(time.Second)),
	}
}

// HowToDecide returns the commands by which a person decides about the pending calls of a Turn. They name the
// namespace, because the reader's kubeconfig may select another one, which may have a Turn of the same name.
func HowToDecide(t *v1alpha1.Turn) string {
	name := t.Namespace + "/" + t.Name
	return fmt.Sprintf("run capstan approve %s or capstan deny %s", name, name)
}

// IsDecisionFor reports whether a ToolApproval decides about a pending call of a Turn: it must name every fact that the
// status lists about the call. The requestID is random, so a ToolApproval that names it was created after the request.
// The times of the objects do not matter: if the clock of the API server is set back, a ToolApproval may look older
// than its Turn.
func IsDecisionFor(a *v1alpha1.ToolApproval, t *v1alpha1.Turn, p v1alpha1.PendingApproval) bool {
	s := a.Spec
	return a.Namespace == t.Namespace && s.TurnRef.Name == t.Name && s.TurnUID == string(t.UID) &&
		p.RequestID != "" && s.RequestID == p.RequestID && s.Step == p.Step && s.CallID == p.CallID && s.ToolName == p.Name &&
		s.ToolServerUID == p.ToolServerUID && s.SchemaHash == p.SchemaHash && s.ArgumentsHash == p.ArgumentsHash
}

// ApprovalsFor returns the ToolApprovals that decide about a request of a Turn and were created in time. It returns
// none if the Turn's status does not list the request.
func ApprovalsFor(approvals []v1alpha1.ToolApproval, t *v1alpha1.Turn, a loop.Approval) []v1alpha1.ToolApproval {
	if !ListsApproval(t, a) {
		return nil
	}
	var decisions []v1alpha1.ToolApproval
	for i := range approvals {
		if c := &approvals[i]; IsDecisionFor(c, t, PendingApproval(a)) && !c.CreationTimestamp.After(a.Expires) {
			decisions = append(decisions, *c)
		}
	}
	return decisions
}

// ListsApproval reports whether the status of a Turn lists a request, with every fact that a decision names.
func ListsApproval(t *v1alpha1.Turn, a loop.Approval) bool {
	wanted := PendingApproval(a)
	return slices.ContainsFunc(t.Status.PendingApprovals, func(p v1alpha1.PendingApproval) bool {
		wanted.RequestTime, wanted.ExpiryTime = p.RequestTime, p.ExpiryTime
		return p == wanted
	})
}

// Decision returns the decision about a request, or nil if none was made in time. The first of several decisions
// counts. If decisions were made within the same second, their order is unknown, and a denial counts.
func Decision(approvals []v1alpha1.ToolApproval, t *v1alpha1.Turn, a loop.Approval) *loop.Decision {
	var first *v1alpha1.ToolApproval
	decisions := ApprovalsFor(approvals, t, a)
	for i := range decisions {
		if c := &decisions[i]; first == nil || precedes(c, first) {
			first = c
		}
	}
	if first == nil {
		return nil
	}
	d := a.Decided(first.Spec.Decision == v1alpha1.ApprovalApproved)
	d.By, d.Reason = first.Spec.DecidedBy, first.Spec.Reason
	return d
}

// precedes reports whether the ToolApproval a counts, and b does not.
func precedes(a, b *v1alpha1.ToolApproval) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	if denied := a.Spec.Decision == v1alpha1.ApprovalDenied; denied != (b.Spec.Decision == v1alpha1.ApprovalDenied) {
		return denied
	}
	return a.UID < b.UID
}
