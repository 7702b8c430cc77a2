package turnstatus_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// request returns a request for the approval of a call.
func request(callID, name string) loop.Approval {
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
		many = append(many, request(fmt.Sprint(i), "delete"))
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
			"the message says what to do",
			loop.Parked{Approvals: many[:1]},
			"AwaitingApproval",
			"a call of tool delete requires approval: run capstan approve helpdesk/one or capstan deny helpdesk/one", 1, nil, true,
		},
		"calls of two tools": {
			"the message names each tool once",
			loop.Parked{Approvals: []loop.Approval{request("a", "x"), request("b", "y"), request("c", "x")}},
			"AwaitingApproval",
			"3 calls of tools x, y require approval: run capstan approve helpdesk/one or capstan deny helpdesk/one", 3, nil, true,
		},
		"more than fit": {
			"further calls are listed later",
			loop.Parked{Approvals: many},
			"AwaitingApproval",
			"25 calls of tool delete require approval: run capstan approve helpdesk/one or capstan deny helpdesk/one", 25, nil, true,
		},
		"a sub-agent": {
			"the time keeps running",
			loop.Parked{Turns: []string{"child", "child"}},
			"WaitingForSubAgent", "the Turn child of a sub-agent has not ended", 0,
			[]string{"child"},
			false,
		},
		"many sub-agents": {"further Turns are listed later", loop.Parked{Turns: names}, "WaitingForSubAgent", "", 0, names[:25], false},
		"both": {
			"the message is about the approval",
			loop.Parked{Approvals: many[:1], Turns: []string{"child"}},
			"AwaitingApproval", "", 1,
			[]string{"child"},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound()
			got.Namespace, got.Name, got.Status.AwaitedTurns = "helpdesk", "one", []string{"earlier"}
			got.Status.PendingApprovals = []v1alpha1.PendingApproval{{CallID: "earlier"}}
			turnstatus.Park(got, turnstatus.Run{}, &tc.parked, now)
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

// TestParkedTime checks that waits for decisions count as parked, including those of sub-agents, and that the wait for
// a sub-agent's Turn itself does not.
func TestParkedTime(t *testing.T) {
	got := bound()
	at := func(seconds float64) time.Time { return now.Add(time.Duration(seconds * float64(time.Second))) }
	parkedFor := func(now time.Time) time.Duration {
		return turnstatus.TimeLeft(got, 0, now) + now.Sub(got.Status.StartTime.Time)
	}
	turnstatus.Park(got, turnstatus.Run{}, &loop.Parked{Approvals: []loop.Approval{request("a", "x")}}, at(0))
	if p := parkedFor(at(3)); p != 3*time.Second {
		t.Errorf("parked for %s, want 3s: it is still parked", p)
	}
	turnstatus.Bind(got, turnstatus.Binding{Executor: "e"}, at(4))
	if s := got.Status; s.ParkedTime != nil || s.ParkedMilliseconds != 4000 || len(s.PendingApprovals) != 1 {
		t.Errorf("status %+v, want 4 seconds, and the call about which the run reads the decision", s)
	}
	turnstatus.Park(got, turnstatus.Run{}, &loop.Parked{Turns: []string{"child"}}, at(10))
	if p := parkedFor(at(20)); p != 4*time.Second {
		t.Errorf("parked for %s, want 4s: the wait for a sub-agent's Turn does not count as parked", p)
	}
	if turnstatus.Bind(got, turnstatus.Binding{Executor: "e"}, at(20)); !slices.Equal(got.Status.AwaitedTurns, []string{"child"}) {
		t.Errorf("status %+v, want the Turn whose answer the run reads next", got.Status)
	}
	since := func(seconds float64) *metav1.MicroTime { return new(metav1.NewMicroTime(at(seconds))) }
	for _, step := range []struct {
		since   *metav1.MicroTime
		changed bool
		at      float64
	}{{since(19), true, 20}, {since(19), false, 21}, {nil, true, 21}, {nil, false, 23}} {
		if changed := turnstatus.StayParked(got, "WaitingForSubAgent", "", step.since, at(step.at)); changed != step.changed {
			t.Errorf("StayParked(%s) = %t, want %t", step.since, changed, step.changed)
		}
	}
	if p := parkedFor(at(30)); p != 6*time.Second {
		t.Errorf("parked for %s, want 6s: 4 s of its own, and 2 s of its sub-agent", p)
	}
	turnstatus.StayParked(got, "WaitingForSubAgent", "", since(31), at(31))
	turnstatus.Finish(got, &turn.Result{Stop: turn.StopCancelled}, at(32))
	if s := got.Status; s.ParkedTime != nil || s.ParkedMilliseconds != 7000 || s.AwaitedTurns != nil || *s.DurationMilliseconds != 33500 {
		t.Errorf("status %+v, want 7 s parked of 33.5 s in all, and no awaited Turns", s)
	}
}

// TestSuspend checks that a Turn that is suspended while it runs gets its whole time again, and that the status keeps
// every Turn of a sub-agent that was created.
func TestSuspend(t *testing.T) {
	for name, tc := range map[string]struct {
		why   string
		waits *loop.Parked
		want  []string
	}{
		"running": {"the Turns stay listed", nil, []string{"before"}},
		"waiting for approvals": {
			"the approvals are requested again later", &loop.Parked{Approvals: []loop.Approval{request("a", "x")}}, []string{"before"},
		},
		"waiting for Turns": {
			"the run names all of them", &loop.Parked{Turns: []string{"before", "child"}}, []string{"before", "child"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound()
			s := &got.Status
			s.ParkedTime, s.ParkedMilliseconds, s.Executor.Overdue = new(metav1.NewMicroTime(now)), 5, true
			s.AwaitedTurns, s.PendingApprovals = []string{"before"}, []v1alpha1.PendingApproval{{}}
			turnstatus.Suspend(got, turnstatus.Run{}, tc.waits, now)
			if diff := cmp.Diff([]string{"Succeeded=Unknown/Suspended"}, conditions(got)); diff != "" {
				t.Errorf("conditions: -want +got:\n%s", diff)
			}
			s.Conditions = nil
			want := v1alpha1.TurnStatus{ObservedGeneration: 7, AwaitedTurns: tc.want, Executor: &v1alpha1.ExecutorBinding{Epoch: 3}}
			if diff := cmp.Diff(want, *s); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.why, diff)
			}
		})
	}
}
