package decisions

import (
	"cmp"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

func TestUnusedDecisions(t *testing.T) {
	const why = "the policy is not installed"
	first, second := v1alpha1.PendingApproval{RequestID: "1", CallID: "call_1"}, v1alpha1.PendingApproval{RequestID: "2", CallID: "call_2"}
	made := []created{{"t-1", first, "ada", v1alpha1.ApprovalApproved}, {"t-2", second, "ada", v1alpha1.ApprovalDenied}}
	waiting, running := v1alpha1.TurnReasonAwaitingApproval, v1alpha1.TurnReasonRunning
	const (
		undecided = v1alpha1.ToolCallPending
		succeeded = v1alpha1.ToolCallSucceeded
		refused   = v1alpha1.ToolCallRefused
	)
	type outcome = v1alpha1.ToolCallOutcome
	calls := func(first outcome, firstBy string, second outcome, secondBy string) []v1alpha1.ToolCallRecord {
		return []v1alpha1.ToolCallRecord{
			{CallID: "call_1", Outcome: first, DecidedBy: firstBy}, {CallID: "call_2", Outcome: second, DecidedBy: secondBy},
		}
	}
	for name, tc := range map[string]struct {
		reason, message string
		pending         []v1alpha1.PendingApproval
		left, unused    []string
		// calls are the records of the calls. ended is true if the Turn has ended.
		calls []v1alpha1.ToolCallRecord
		ended bool
	}{
		"both wait": {
			reason: waiting, message: "2 calls wait", pending: []v1alpha1.PendingApproval{first, second}, left: []string{"t-1", "t-2"},
		},
		"one is not used": {
			reason: waiting, message: "2 calls wait; ToolApproval t-2 is not used: " + why,
			pending: []v1alpha1.PendingApproval{first, second},
			left:    []string{"t-1"},
			unused:  []string{"the Turn does not use ToolApproval t-2: " + why},
		},
		"both are not used": {
			reason: waiting, message: "2 calls wait; ToolApprovals t-1, t-2, t-3 and 4 more are not used: " + why,
			pending: []v1alpha1.PendingApproval{first, second},
			unused: []string{
				"the Turn does not use ToolApproval t-1: " + why, "the Turn does not use ToolApproval t-2: " + why,
			},
		},
		"each is not used for its own reason": {
			reason:  waiting,
			message: "2 calls wait; ToolApproval t-1 is not used: eve may not decide; ToolApprovals t-2, t-3 are not used: " + why,
			pending: []v1alpha1.PendingApproval{first, second},
			unused: []string{
				"the Turn does not use ToolApproval t-1: eve may not decide", "the Turn does not use ToolApproval t-2: " + why,
			},
		},
		"a decision of another command is not used": {
			reason: waiting, message: "2 calls wait; ToolApproval t-22 is not used: " + why,
			pending: []v1alpha1.PendingApproval{second}, left: []string{"t-2"},
		},
		"the Turn waits for another request of a call": {
			reason: waiting, message: "a call waits", pending: []v1alpha1.PendingApproval{{RequestID: "3", CallID: "call_1"}},
		},
		"the Turn asks about a call again": {
			reason: waiting, message: "a call waits", pending: []v1alpha1.PendingApproval{{RequestID: "3", CallID: "call_1"}},
			calls:  calls(undecided, "", refused, "ada"),
			unused: []string{"the Turn does not use ToolApproval t-1: the Turn has requested approval of the call again"},
		},
		"the Turn asks about a call again that an older version has decided": {
			reason: waiting, message: "a call waits", pending: []v1alpha1.PendingApproval{first},
			calls: calls(undecided, "bob", refused, "ada"), left: []string{"t-1"},
		},
		"the Turn continues, and has not decided yet": {
			reason: running, pending: []v1alpha1.PendingApproval{first, second},
			calls: calls(undecided, "", undecided, ""), left: []string{"t-1", "t-2"},
		},
		"the Turn uses both":              {reason: running, calls: calls(undecided, "ada", undecided, "ada")},
		"the Turn has used both":          {reason: running, calls: calls(succeeded, "ada", refused, "ada")},
		"the approved call was refused":   {reason: running, calls: calls(refused, "ada", refused, "ada")},
		"the Turn has used both, at last": {reason: "Completed", ended: true, calls: calls(succeeded, "ada", refused, "ada")},
		"the status leaves out the calls": {reason: running},
		"the Turn was suspended": {
			reason: v1alpha1.TurnReasonSuspended, calls: calls(undecided, "", undecided, ""), left: []string{"t-1", "t-2"},
		},
		"another user has decided": {
			reason: running, pending: []v1alpha1.PendingApproval{first}, calls: calls(undecided, "", succeeded, "bob"),
			left:   []string{"t-1"},
			unused: []string{"the Turn does not use ToolApproval t-2: bob had decided about the call before"},
		},
		"the user has approved the call before": {
			reason: running, calls: calls(succeeded, "ada", succeeded, "ada"),
			unused: []string{
				"the Turn does not use ToolApproval t-2: you had approved the call before, and its outcome is Succeeded",
			},
		},
		"the request has expired": {
			reason: running, calls: calls(refused, "", refused, "ada"),
			unused: []string{
				"the Turn does not use ToolApproval t-1: no decision was made in time, and the outcome of the call is Refused",
			},
		},
		"the Turn was cancelled": {
			reason: "Cancelled", ended: true, calls: calls(refused, "", refused, "ada"),
			unused: []string{"the Turn does not use ToolApproval t-1: the Turn has ended (Cancelled)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			turn := &v1alpha1.Turn{}
			turn.Status.PendingApprovals, turn.Status.ToolCalls = tc.pending, tc.calls
			state := metav1.Condition{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: tc.reason, Message: tc.message,
			}
			if tc.ended {
				state.Status = metav1.ConditionFalse
			}
			turn.Status.Conditions = []metav1.Condition{state}
			left, errs := unusedDecisions(turn, made)
			var names, unused []string
			for _, m := range left {
				names = append(names, m.name)
			}
			for _, err := range errs {
				unused = append(unused, err.Error())
			}
			if diff := gocmp.Diff([][]string{tc.left, tc.unused}, [][]string{names, unused}); diff != "" {
				t.Errorf("left and unused (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLateDecision checks that a command decides only about calls that still need a decision when the question has
// been answered.
func TestLateDecision(t *testing.T) {
	t.Parallel()
	const id = "call_1"
	record := func(o v1alpha1.ToolCallOutcome, by string) []v1alpha1.ToolCallRecord {
		return []v1alpha1.ToolCallRecord{{CallID: id, Outcome: o, DecidedBy: by}}
	}
	pending := []v1alpha1.PendingApproval{{RequestID: "1", CallID: id, ExpiryTime: metav1.Unix(1000, 0)}}
	for name, tc := range map[string]struct {
		// uid is the UID of the Turn after the question, or empty if it was deleted.
		uid     types.UID
		reason  string
		status  metav1.ConditionStatus
		pending []v1alpha1.PendingApproval
		calls   []v1alpha1.ToolCallRecord
		// earlier is the user who has approved the call with this command, or empty.
		earlier string
		verb    Verb
		// created is the time at which a ToolApproval is created, in seconds.
		created   int64
		want, err string
	}{
		"it waits": {
			uid: "uid-1", reason: "AwaitingApproval", pending: pending, calls: record("Pending", ""), verb: Deny, created: 1000,
			want: "was denied by bob",
		},
		"it continues with another decision": {
			uid: "uid-1", reason: "Running", pending: pending, calls: record("Pending", ""), verb: Deny, created: 999,
			want: "was denied by bob",
		},
		"it was decided": {
			uid: "uid-1", reason: "Running", calls: record("Succeeded", "ada"), verb: Deny,
			err: "was not denied: ada had decided about the call before",
		},
		"it was decided with this command": {
			uid: "uid-1", reason: "Running", calls: record("Succeeded", "ada"), earlier: "ada", verb: Approve,
			want: "was already approved by ada",
		},
		"it was decided otherwise with this command": {
			uid: "uid-1", reason: "Running", calls: record("Succeeded", "ada"), earlier: "ada", verb: Deny,
			err: "was already approved by ada",
		},
		"a decision of this command was not used": {
			uid: "uid-1", reason: "Running", calls: record("Succeeded", "ada"), earlier: "eve", verb: Approve,
			err: "was not approved: ada had decided about the call before",
		},
		"it has expired": {
			uid: "uid-1", reason: "Running", calls: record("Refused", ""), verb: Approve,
			err: "was not approved: no decision was made in time, and the outcome of the call is Refused",
		},
		"it has expired, and the Turn still waits": {
			uid: "uid-1", reason: "AwaitingApproval", pending: pending, calls: record("Pending", ""), verb: Approve, created: 1001,
			err: "was not approved: the request for approval has expired at 1970-01-01T00:16:40Z",
		},
		"the Turn was cancelled": {
			uid: "uid-1", reason: "Cancelled", status: metav1.ConditionFalse, calls: record("Refused", ""), verb: Approve,
			err: "was not approved: the Turn has ended (Cancelled)",
		},
		"the Turn was suspended": {
			uid: "uid-1", reason: "Suspended", calls: record("Pending", ""), verb: Approve,
			err: "was not approved: the call is no longer pending, and the state of the Turn is Suspended",
		},
		"the Turn was deleted":  {verb: Approve, err: "there is no Turn helpdesk/first"},
		"the Turn was replaced": {uid: "uid-2", verb: Approve, err: "was deleted in the meantime, and another one has its name now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme, turn := schemeOf(t), firstTurn()
			api := clientfake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if err := api.Create(ctx, o, opts...); err != nil {
						return err
					}
					o.SetCreationTimestamp(metav1.Unix(tc.created, 0))
					return nil
				},
			}).Build()
			by := func(who string, verb Verb, out io.Writer) *pendingCalls {
				return &pendingCalls{
					Options: &Options{
						Env: terminal.Environment{Out: out, Err: io.Discard, Now: time.Now}, Verb: verb, Output: output.Text,
						Yes: true, WithoutArguments: true,
					},
					api: api, turn: turn, who: who,
				}
			}
			if tc.earlier != "" {
				if err := api.Create(t.Context(), by(tc.earlier, Approve, io.Discard).approval(pending[0], 0)); err != nil {
					t.Fatal(err)
				}
			}
			if tc.uid != "" {
				current := turn.DeepCopy()
				current.UID, current.Status.PendingApprovals, current.Status.ToolCalls = tc.uid, tc.pending, tc.calls
				current.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.ConditionSucceeded, Status: cmp.Or(tc.status, metav1.ConditionUnknown), Reason: tc.reason,
				}}
				if err := api.Create(t.Context(), current); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			c := by("bob", tc.verb, &out)
			err := c.decideTogether(t.Context(), nil, pending, requestArguments{}, nil)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if !strings.Contains(out.String(), tc.want) || tc.want == "" && out.Len() > 0 {
				t.Errorf("printed %q, want %q", out.String(), tc.want)
			}
		})
	}
}
