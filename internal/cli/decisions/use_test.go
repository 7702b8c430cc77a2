package decisions

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestUnusedDecisions(t *testing.T) {
	const why = "the policy is not installed"
	first, second := v1alpha1.PendingApproval{RequestID: "1", CallID: "call_1"}, v1alpha1.PendingApproval{RequestID: "2", CallID: "call_2"}
	made := []created{{"t-1", first}, {"t-2", second}}
	waiting := v1alpha1.TurnReasonAwaitingApproval
	for name, tc := range map[string]struct {
		reason, message string
		pending         []v1alpha1.PendingApproval
		left, unused    []string
	}{
		"both wait": {waiting, "2 calls wait", []v1alpha1.PendingApproval{first, second}, []string{"t-1", "t-2"}, nil},
		"one is not used": {
			waiting, "2 calls wait; ToolApproval t-2 is not used: " + why,
			[]v1alpha1.PendingApproval{first, second},
			[]string{"t-1"},
			[]string{"the Turn does not use ToolApproval t-2: " + why},
		},
		"both are not used": {
			waiting, "2 calls wait; ToolApprovals t-1, t-2, t-3 and 4 more are not used: " + why,
			[]v1alpha1.PendingApproval{first, second},
			nil,
			[]string{"the Turn does not use ToolApproval t-1: " + why, "the Turn does not use ToolApproval t-2: " + why},
		},
		"each is not used for its own reason": {
			waiting, "2 calls wait; ToolApproval t-1 is not used: eve may not decide; ToolApprovals t-2, t-3 are not used: " + why,
			[]v1alpha1.PendingApproval{first, second},
			nil,
			[]string{"the Turn does not use ToolApproval t-1: eve may not decide", "the Turn does not use ToolApproval t-2: " + why},
		},
		"a decision of another command is not used": {
			waiting, "2 calls wait; ToolApproval t-22 is not used: " + why, []v1alpha1.PendingApproval{second}, []string{"t-2"}, nil,
		},
		"the Turn waits for another request of a call": {
			waiting, "a call waits", []v1alpha1.PendingApproval{{RequestID: "3", CallID: "call_1"}}, nil, nil,
		},
		"the Turn continues": {v1alpha1.TurnReasonRunning, "", []v1alpha1.PendingApproval{first, second}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			turn := &v1alpha1.Turn{}
			turn.Status.PendingApprovals = tc.pending
			turn.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSucceeded, Reason: tc.reason, Message: tc.message}}
			left, errs := unusedDecisions(turn, made)
			var names, unused []string
			for _, m := range left {
				names = append(names, m.name)
			}
			for _, err := range errs {
				unused = append(unused, err.Error())
			}
			if diff := cmp.Diff([][]string{tc.left, tc.unused}, [][]string{names, unused}); diff != "" {
				t.Errorf("left and unused (-want +got):\n%s", diff)
			}
		})
	}
}
