package translate_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
)

var now = time.Date(2026, 6, 11, 15, 4, 5, 123456000, time.UTC)

// request returns a request for the approval of a call.
func request(callID, name string) loop.Approval {
	return loop.Approval{
		Request: "request of " + callID, Step: 2, CallID: callID, Name: name, ToolServerUID: "server",
		SchemaHash: "schema", ArgumentsHash: "hash",
		Requested: now, Expires: now.Add(time.Minute),
	}
}

func TestExpiryIsRoundedUp(t *testing.T) {
	a := request("a", "x") // expires between two whole seconds
	if at := translate.PendingApproval(a).ExpiryTime.Time; at.Before(a.Expires) || at.Sub(a.Expires) >= time.Second ||
		at.Nanosecond() != 0 {
		t.Errorf("expires at %s, want the first whole second from %s on", at, a.Expires)
	}
}

func TestDecision(t *testing.T) {
	made := func(uid string, after time.Duration, change ...func(*v1alpha1.ToolApproval)) v1alpha1.ToolApproval {
		a := v1alpha1.ToolApproval{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", UID: types.UID(uid), CreationTimestamp: metav1.NewTime(now.Add(after))},
			Spec: v1alpha1.ToolApprovalSpec{
				TurnRef: v1alpha1.ObjectReference{Name: "one"}, TurnUID: "u", RequestID: "request of a", Step: 2, CallID: "a",
				ToolName: "x", ToolServerUID: "server", SchemaHash: "schema", ArgumentsHash: "hash",
				Decision: v1alpha1.ApprovalApproved, DecidedBy: uid, Reason: "fine",
			},
		}
		for _, f := range change {
			f(&a)
		}
		return a
	}
	decisionBy := func(by string, approved bool) *loop.Decision {
		a := request("a", "x")
		d := a.Decided(approved)
		d.By, d.Reason = by, "fine"
		return d
	}
	deny := func(a *v1alpha1.ToolApproval) { a.Spec.Decision = v1alpha1.ApprovalDenied }
	for name, tc := range map[string]struct {
		reason    string
		approvals []v1alpha1.ToolApproval
		callID    string
		want      *loop.Decision
	}{
		"none":     {"no decision exists", nil, "a", nil},
		"approved": {"the decision approves", []v1alpha1.ToolApproval{made("x", 0)}, "a", decisionBy("x", true)},
		"denied":   {"the decision denies", []v1alpha1.ToolApproval{made("x", 0, deny)}, "a", decisionBy("x", false)},
		"two": {
			"the first decision counts",
			[]v1alpha1.ToolApproval{made("x", 2*time.Second), made("y", time.Second, deny)},
			"a", decisionBy("y", false),
		},
		"made in one second": {
			"the lower UID counts, so the result is always the same",
			[]v1alpha1.ToolApproval{made("y", 0), made("x", 0)},
			"a", decisionBy("x", true),
		},
		"a tie": {
			"the denial counts, because the order is unknown",
			[]v1alpha1.ToolApproval{made("x", 0), made("y", 0, deny)},
			"a", decisionBy("y", false),
		},
		"a tie, reversed": {
			"the denial counts, because the order is unknown",
			[]v1alpha1.ToolApproval{made("y", 0, deny), made("x", 0)},
			"a", decisionBy("y", false),
		},
		"too late": {"the request had expired, which is a denial", []v1alpha1.ToolApproval{made("x", 2*time.Minute)}, "a", nil},
		"another turn": {
			"the Turn has another name",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.TurnRef.Name = "two" })},
			"a", nil,
		},
		"an earlier turn": {
			"the Turn had the same name",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.TurnUID = "v" })},
			"a", nil,
		},
		"another step": {
			"models may repeat the IDs of calls",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.Step = 1 })},
			"a", nil,
		},
		"another call": {"it is in the same step", []v1alpha1.ToolApproval{made("x", 0)}, "b", nil},
		"other arguments": {
			"the approver saw other arguments",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ArgumentsHash = "h" })},
			"a", nil,
		},
		"another namespace": {
			"permissions are those of the Turn's namespace",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Namespace = "other" })},
			"a", nil,
		},
		"another request": {
			"a guess, made before the request",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.RequestID = "guess" })},
			"a", nil,
		},
		"another tool": {
			"an approval is for one tool only",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ToolName = "close_ticket" })},
			"a", nil,
		},
		"another server": {
			"a deleted server had the same name",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ToolServerUID = "gone" })},
			"a", nil,
		},
		"no server": {
			"the tool belongs to a server",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ToolServerUID = "" })},
			"a", nil,
		},
		"another schema": {
			"the approver saw another schema",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.SchemaHash = "old" })},
			"a", nil,
		},
		"not listed": {"the status does not list the call", []v1alpha1.ToolApproval{made("x", 0,
			func(a *v1alpha1.ToolApproval) { a.Spec.RequestID, a.Spec.CallID = "request of hidden", "hidden" })}, "hidden", nil},
		"same second": {
			"times of objects have no fractions of a second",
			[]v1alpha1.ToolApproval{made("x", -999*time.Millisecond)},
			"a",
			decisionBy("x", true),
		},
		"before the Turn": {
			"the clock of the API server was set back after the Turn was created: the requestID proves the order",
			[]v1alpha1.ToolApproval{made("x", -2*time.Hour)},
			"a", decisionBy("x", true),
		},
	} {
		t.Run(name, func(t *testing.T) {
			waiting := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{
				Namespace: "demo", Name: "one", UID: "u",
				CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			}}
			waiting.Status.PendingApprovals = []v1alpha1.PendingApproval{
				translate.PendingApproval(request("a", "x")), translate.PendingApproval(request("b", "x")),
			}
			if diff := cmp.Diff(tc.want, translate.Decision(tc.approvals, waiting, request(tc.callID, "x"))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
