package translate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

func asks(callID, name string) loop.Approval {
	return loop.Approval{
		Request: "request of " + callID, Step: 2, CallID: callID, Name: name, ToolServerUID: "server",
		SchemaHash: "schema", ArgumentsHash: "hash",
		Requested: now, Expires: now.Add(time.Minute),
	}
}

func TestPark(t *testing.T) {
	var many []loop.Approval
	var names []string
	for i := range 30 {
		many = append(many, asks(fmt.Sprint(i), "delete"))
		names = append(names, fmt.Sprintf("turn-%02d", i))
	}
	for name, tc := range map[string]struct {
		why             string
		parked          loop.Parked
		reason, message string
		approvals       int
		turns           []string
		clockStops      bool
	}{
		"a call": {
			"it says what to do",
			loop.Parked{Approvals: many[:1]},
			"AwaitingApproval",
			"a call of tool delete requires approval: run capstan approve one or capstan deny one", 1, nil, true,
		},
		"calls of two tools": {
			"each tool once",
			loop.Parked{Approvals: []loop.Approval{asks("a", "x"), asks("b", "y"), asks("c", "x")}},
			"AwaitingApproval", "3 calls of tools x, y require approval: run capstan approve one or capstan deny one", 3, nil, true,
		},
		"more than fit": {
			"the rest is asked for later",
			loop.Parked{Approvals: many},
			"AwaitingApproval",
			"25 calls of tool delete require approval: run capstan approve one or capstan deny one", 25, nil, true,
		},
		"a sub-agent": {
			"its time keeps running",
			loop.Parked{Turns: []string{"child", "child"}},
			"WaitingForSubAgent", "the Turn child of a sub-agent has not ended", 0,
			[]string{"child"},
			false,
		},
		"many sub-agents": {"the rest is waited for later", loop.Parked{Turns: names}, "WaitingForSubAgent", "", 0, names[:25], false},
		"both": {
			"a person comes first",
			loop.Parked{Approvals: many[:1], Turns: []string{"child"}},
			"AwaitingApproval", "", 1,
			[]string{"child"},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound()
			got.Name, got.Status.AwaitedTurns = "one", []string{"of before"}
			got.Status.PendingApprovals = []v1alpha1.PendingApproval{{CallID: "of before"}}
			translate.Park(got, &tc.parked, now)
			c := got.Status.Conditions[0]
			if c.Reason != tc.reason || c.Status != metav1.ConditionUnknown || (tc.message != "" && c.Message != tc.message) {
				t.Errorf("%s: %s: %q\nwant %s: %q", tc.why, c.Reason, c.Message, tc.reason, tc.message)
			}
			if diff := cmp.Diff(tc.turns, got.Status.AwaitedTurns); diff != "" || len(got.Status.PendingApprovals) != tc.approvals {
				t.Errorf("%d approvals, want %d; turns: -want +got:\n%s", len(got.Status.PendingApprovals), tc.approvals, diff)
			}
			if stops := got.Status.ParkedTime != nil; stops != tc.clockStops {
				t.Errorf("the time stops: %t, want %t: %s", stops, tc.clockStops, tc.why)
			}
		})
	}
}

// TestParkedTime proves that exactly the waits for people add up.
func TestParkedTime(t *testing.T) {
	got := bound()
	at := func(seconds float64) time.Time { return now.Add(time.Duration(seconds * float64(time.Second))) }
	translate.Park(got, &loop.Parked{Approvals: []loop.Approval{asks("a", "x")}}, at(0))
	if p := translate.Parked(got, at(3)); p != 3*time.Second {
		t.Errorf("parked for %s, want 3s: it is still parked", p)
	}
	translate.Unpark(got, at(4))
	if s := got.Status; s.ParkedTime != nil || s.ParkedMilliseconds != 4000 || len(s.PendingApprovals) != 1 {
		t.Errorf("status %+v, want 4 seconds, and the call about which the run takes the decision", s)
	}
	translate.Park(got, &loop.Parked{Turns: []string{"child"}}, at(10))
	if p := translate.Parked(got, at(20)); p != 4*time.Second {
		t.Errorf("parked for %s, want 4s: a sub-agent's time is the Turn's", p)
	}
	if translate.Unpark(got, at(20)); !slices.Equal(got.Status.AwaitedTurns, []string{"child"}) {
		t.Errorf("status %+v, want the Turn whose answer the run is about to take", got.Status)
	}
	for _, step := range []struct {
		paused, news bool
		at           float64
	}{{true, true, 20}, {true, false, 21}, {false, true, 22}, {false, false, 23}} {
		if news := translate.PauseClock(got, step.paused, at(step.at)); news != step.news {
			t.Errorf("PauseClock(%t) is news: %t, want %t", step.paused, news, step.news)
		}
	}
	if p := translate.Parked(got, at(30)); p != 6*time.Second {
		t.Errorf("parked for %s, want 6s: 4 of its own, 2 of its sub-agent's", p)
	}
	translate.PauseClock(got, true, at(31))
	translate.Finish(got, &turn.Result{Stop: turn.StopCancelled}, at(32))
	if s := got.Status; s.ParkedTime != nil || s.ParkedMilliseconds != 7000 || s.AwaitedTurns != nil || *s.DurationMilliseconds != 33500 {
		t.Errorf("status %+v, want 7 s parked of 33.5 s in all, and nothing that is waited for", s)
	}
	got.Status.AwaitedTurns, got.Status.PendingApprovals = []string{"x"}, []v1alpha1.PendingApproval{{}}
	translate.Suspend(got)
	if s := got.Status; s.StartTime != nil || s.ParkedMilliseconds != 0 || s.PendingApprovals != nil ||
		!slices.Equal(s.AwaitedTurns, []string{"x"}) {
		t.Errorf("status %+v, want all its time anew, and the Turns that were made", s)
	}
}

func TestExpiryIsRoundedUp(t *testing.T) {
	got := bound()
	a := asks("a", "x") // expires within a second
	translate.Park(got, &loop.Parked{Approvals: []loop.Approval{a}}, now)
	if at := got.Status.PendingApprovals[0].ExpiryTime.Time; at.Before(a.Expires) || at.Sub(a.Expires) >= time.Second ||
		at.Nanosecond() != 0 {
		t.Errorf("expires at %s, want the full second from %s on", at, a.Expires)
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
	of := func(by string, approved bool) *loop.Decision {
		a := asks("a", "x")
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
		"approved": {"the decision approves", []v1alpha1.ToolApproval{made("x", 0)}, "a", of("x", true)},
		"denied":   {"the decision denies", []v1alpha1.ToolApproval{made("x", 0, deny)}, "a", of("x", false)},
		"two": {
			"the first counts",
			[]v1alpha1.ToolApproval{made("x", 2*time.Second), made("y", time.Second, deny)},
			"a", of("y", false),
		},
		"in one second": {"the lower UID, so that all agree", []v1alpha1.ToolApproval{made("y", 0), made("x", 0)}, "a", of("x", true)},
		"a tie": {
			"the denial counts, because the order is unknown",
			[]v1alpha1.ToolApproval{made("x", 0), made("y", 0, deny)},
			"a", of("y", false),
		},
		"a tie, reversed": {
			"the denial counts, because the order is unknown",
			[]v1alpha1.ToolApproval{made("y", 0, deny), made("x", 0)},
			"a", of("y", false),
		},
		"too late": {"its end was a denial", []v1alpha1.ToolApproval{made("x", 2*time.Minute)}, "a", nil},
		"another turn": {
			"of another name",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.TurnRef.Name = "two" })},
			"a", nil,
		},
		"an earlier turn": {
			"of the same name",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.TurnUID = "v" })},
			"a", nil,
		},
		"another step": {
			"ids of calls come again",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.Step = 1 })},
			"a", nil,
		},
		"another call": {"of the same step", []v1alpha1.ToolApproval{made("x", 0)}, "b", nil},
		"other arguments": {
			"the approver saw others",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ArgumentsHash = "h" })},
			"a", nil,
		},
		"elsewhere": {
			"rights end at the namespace",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Namespace = "other" })},
			"a", nil,
		},
		"another request": {
			"a guess, made before the request",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.RequestID = "guess" })},
			"a", nil,
		},
		"another tool": {
			"yes to one is not yes to all",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ToolName = "close_ticket" })},
			"a", nil,
		},
		"another server": {
			"it has the name of one that is gone",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ToolServerUID = "gone" })},
			"a", nil,
		},
		"no server": {
			"the tool has one",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.ToolServerUID = "" })},
			"a", nil,
		},
		"another schema": {
			"the approver saw another one",
			[]v1alpha1.ToolApproval{made("x", 0, func(a *v1alpha1.ToolApproval) { a.Spec.SchemaHash = "old" })},
			"a", nil,
		},
		"not listed": {"no status lists the call", []v1alpha1.ToolApproval{made("x", 0,
			func(a *v1alpha1.ToolApproval) { a.Spec.RequestID, a.Spec.CallID = "request of hidden", "hidden" })}, "hidden", nil},
		"same second":     {"a person may be fast", []v1alpha1.ToolApproval{made("x", -999*time.Millisecond)}, "a", of("x", true)},
		"before the turn": {"the Turn was not there to be read", []v1alpha1.ToolApproval{made("x", -2*time.Hour)}, "a", nil},
	} {
		t.Run(name, func(t *testing.T) {
			waiting := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{
				Namespace: "demo", Name: "one", UID: "u",
				CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			}}
			waiting.Status.Executor = &v1alpha1.ExecutorBinding{}
			translate.Park(waiting, &loop.Parked{Approvals: []loop.Approval{asks("a", "x"), asks("b", "x")}}, now)
			if diff := cmp.Diff(tc.want, translate.Decision(tc.approvals, waiting, asks(tc.callID, "x"))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
