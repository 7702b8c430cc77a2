package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
)

// parked is a Turn that its executor gave back ten seconds ago, to wait for decisions about these calls, which expire after so
// long, and for these Turns.
func parked(calls map[string]time.Duration, turns ...string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		boundTo("")(t)
		at := now.Add(-10 * time.Second)
		p := &loop.Parked{Turns: turns}
		ids := make([]string, 0, len(calls))
		for id := range calls {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			p.Approvals = append(p.Approvals, loop.Approval{Request: "request of " + id, Step: 1, CallID: id, Name: "delete", SchemaHash: "schema", ArgumentsHash: "hash", Requested: at, Expires: now.Add(calls[id])})
		}
		translate.Park(t, p, at)
	}
}

// waiting are calls that expire after a minute, all of them.
func waiting(ids ...string) map[string]time.Duration {
	calls := map[string]time.Duration{}
	for _, id := range ids {
		calls[id] = time.Minute
	}
	return calls
}

// approval decides about a call of the Turn.
func approval(callID string, change ...func(*v1alpha1.ToolApproval)) *v1alpha1.ToolApproval {
	a := &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "decision-" + callID, CreationTimestamp: metav1.NewTime(now)},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: "one"}, TurnUID: "uid-one", RequestID: "request of " + callID, Step: 1, CallID: callID, ToolName: "delete", SchemaHash: "schema", ArgumentsHash: "hash",
			Decision: v1alpha1.ApprovalApproved, DecidedBy: "jane",
		},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

// childOf is the Turn of a sub-agent.
func childOf(parent types.UID, name string, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	child := turnWith(func(t *v1alpha1.Turn) {
		t.Name, t.UID, t.Labels = name, types.UID("uid-"+name), map[string]string{translate.ParentLabel: "one"}
		t.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: "one", UID: parent, Controller: new(true),
		}}
	})
	for _, f := range change {
		f(child)
	}
	return child
}

func TestAParkedTurn(t *testing.T) {
	const awaits = "a call of tool delete waits for somebody's decision: capstan approve one, or capstan deny one"
	paused := func(t *v1alpha1.Turn) { t.Status.ParkedTime = new(metav1.NewMicroTime(now)) }
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		waits  waits
		want   decision
	}{
		"nobody has decided": {
			"it is looked at again when the call expires", turnWith(started(30*time.Second), parked(waiting("a"))),
			waits{decided: []bool{false}},
			decision{action: park, reason: v1alpha1.TurnReasonAwaitingApproval, message: awaits, after: time.Minute},
		},
		"long after its time": {
			"which does not run", turnWith(started(69*time.Second), parked(waiting("a"))),
			waits{decided: []bool{false}},
			decision{action: park, reason: v1alpha1.TurnReasonAwaitingApproval, message: awaits, after: time.Minute},
		},
		"decided": {
			"it goes on, with the time that it had left", turnWith(started(30*time.Second), parked(waiting("a"))),
			waits{decided: []bool{true}},
			decision{action: admit, after: 40 * time.Second},
		},
		"asked by an older version": {
			"it shows too little: the executor asks again", turnWith(started(30*time.Second), parked(waiting("a")), func(t *v1alpha1.Turn) {
				t.Status.PendingApprovals[0].RequestID = ""
			}),
			waits{decided: []bool{false}},
			decision{action: admit, after: 40 * time.Second},
		},
		"one of two decided": {
			"the other is asked for again", turnWith(started(30*time.Second), parked(waiting("a", "b"))),
			waits{decided: []bool{false, true}},
			decision{action: admit, after: 40 * time.Second},
		},
		"expired": {
			"which is a denial", turnWith(started(30*time.Second), parked(map[string]time.Duration{"a": 0, "b": time.Hour})),
			waits{decided: []bool{false, false}},
			decision{action: admit, after: 40 * time.Second},
		},
		"decided in a way that may not be used": {
			"it says so, and is looked at again soon", turnWith(started(30*time.Second), parked(waiting("a"))),
			waits{decided: []bool{false}, unused: "ToolApproval x is not used: nobody knows who made it"},
			decision{
				action: park, reason: v1alpha1.TurnReasonAwaitingApproval, after: 10 * time.Second,
				message: awaits + "; ToolApproval x is not used: nobody knows who made it",
			},
		},
		"decided in such a way, and expires before that": {
			"the end of its time is not missed", turnWith(started(30*time.Second), parked(map[string]time.Duration{"a": time.Second})),
			waits{decided: []bool{false}, unused: "ToolApproval x is not used"},
			decision{
				action: park, reason: v1alpha1.TurnReasonAwaitingApproval, after: time.Second, message: awaits + "; ToolApproval x is not used",
			},
		},
		"decided in a way that may be used, too": {
			"it goes on", turnWith(started(30*time.Second), parked(waiting("a"))),
			waits{decided: []bool{true}, unused: "ToolApproval x is not used"},
			decision{action: admit, after: 40 * time.Second},
		},
		"cancelled": {
			"its executor ends it", turnWith(started(30*time.Second), parked(waiting("a")), desires(v1alpha1.DesiredStateCancelled)),
			waits{decided: []bool{false}},
			decision{action: settle, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled while it was not running"},
		},
		"suspended": {
			"also where somebody has decided", turnWith(started(30*time.Second), parked(waiting("a")), desires(v1alpha1.DesiredStateSuspended)),
			waits{decided: []bool{true}},
			decision{action: wait, reason: v1alpha1.TurnReasonSuspended, message: "the turn is suspended; set desiredState to Active to go on"},
		},
		"a sub-agent works": {
			"its time runs", turnWith(started(30*time.Second), parked(nil, "child")),
			waits{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child")}},
			decision{action: park, reason: v1alpha1.TurnReasonWaitingForSubAgent, message: "the Turn child of a sub-agent has not ended", after: 30 * time.Second},
		},
		"a sub-agent works too long": {
			"its executor ends it with what there is", turnWith(started(2*time.Minute), parked(nil, "child")),
			waits{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child")}},
			decision{
				action: settle, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was WaitingForSubAgent",
			},
		},
		"a sub-agent waits for people": {
			"an event tells when it goes on", turnWith(started(30*time.Second), parked(nil, "child")),
			waits{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child", paused)}},
			decision{action: park, reason: v1alpha1.TurnReasonWaitingForSubAgent, message: "the Turn child of a sub-agent has not ended"},
		},
		"all sub-agents have ended": {
			"it goes on", turnWith(started(30*time.Second), parked(nil, "child")), waits{}, decision{action: admit, after: 30 * time.Second},
		},
		"all sub-agents have ended, and a call waits": {
			"there is something to do", turnWith(started(30*time.Second), parked(waiting("a"), "child")),
			waits{decided: []bool{false}},
			decision{action: admit, after: 40 * time.Second},
		},
		"it was seen that it may go on": {
			"it waits for a place, and no more for people", turnWith(started(30*time.Second), parked(waiting("a")), func(t *v1alpha1.Turn) {
				translate.Wait(t, v1alpha1.TurnReasonQueued, "all executors are busy", now)
				translate.PauseClock(t, false, now)
			}), waits{decided: []bool{false}}, decision{action: admit, after: 40 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(view{turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), waits: tc.waits, now: now})
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestADecisionLetsAParkedTurnGoOn: it takes a decision about this very call.
func TestADecisionLetsAParkedTurnGoOn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		decision *v1alpha1.ToolApproval
		bound    bool
	}{
		"about the call":       {"it is bound", approval("a"), true},
		"about another call":   {"nothing has changed", approval("c"), false},
		"of another Turn":      {"of that name", approval("a", func(a *v1alpha1.ToolApproval) { a.Spec.TurnUID = "uid-zero" }), false},
		"of other arguments":   {"nobody looked at these", approval("a", func(a *v1alpha1.ToolApproval) { a.Spec.ArgumentsHash = "h" }), false},
		"in another namespace": {"it is not this Turn's", approval("a", func(a *v1alpha1.ToolApproval) { a.Namespace = "other" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a", "b"))), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now), tc.decision)
			before := b.turn(t, "one")
			result, err := b.look(t, "one")
			if err != nil {
				t.Fatal(err)
			}
			got := b.turn(t, "one")
			if bound := got.BoundTo() == "self"; bound != tc.bound {
				t.Fatalf("bound: %t, want %t: %s", bound, tc.bound, tc.reason)
			}
			if !tc.bound {
				if got.ResourceVersion != before.ResourceVersion || result.RequeueAfter != time.Minute {
					t.Errorf("written, or looked at again after %s: want no write, and a look when the calls expire", result.RequeueAfter)
				}
				return
			}
			s := got.Status
			if s.ParkedTime != nil || s.ParkedMilliseconds != 10_000 || len(s.PendingApprovals) != 2 {
				t.Errorf("status %+v, want 10 s parked, and both calls listed: the run takes decisions about no others", s)
			}
		})
	}
}

// TestADecisionThatMayNotBeUsedLetsNoTurnGoOn: it says why, writes that once, and goes on when the decision may be used.
func TestADecisionThatMayNotBeUsedLetsNoTurnGoOn(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a", "b"))), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now), approval("a"), approval("c"))
	b.turns.Approvals = func(_ context.Context, made []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
		if len(made) != 1 || made[0].Name != "decision-a" {
			t.Errorf("asked about %v, want the one decision about a call that waits", made)
		}
		return nil, "ToolApproval decision-a is not used: nobody knows who made it", nil
	}
	var said *v1alpha1.Turn
	for range 2 {
		result, err := b.look(t, "one")
		if err != nil || result.RequeueAfter != unusedRecheck {
			t.Fatalf("looked at again after %s (error %v), want %s", result.RequeueAfter, err, unusedRecheck)
		}
		got := b.turn(t, "one")
		const want = "2 calls of tool delete wait for somebody's decision: capstan approve one, or capstan deny one; " +
			"ToolApproval decision-a is not used: nobody knows who made it"
		if message := got.Status.Conditions[0].Message; message != want || got.BoundTo() != "" || got.StateReason() != v1alpha1.TurnReasonAwaitingApproval {
			t.Fatalf("%s, bound to %q, says %q; want it to wait and to say %q", got.StateReason(), got.BoundTo(), message, want)
		}
		if said != nil && said.ResourceVersion != got.ResourceVersion {
			t.Error("what is no news must not be written")
		}
		said = got
	}
	b.turns.Approvals = func(context.Context, []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
		return nil, "", broken
	}
	if _, err := b.look(t, "one"); !errors.Is(err, broken) || b.turn(t, "one").ResourceVersion != said.ResourceVersion {
		t.Errorf("error %v, want that of the look at the policy, and no write", err)
	}
	b.turns.Approvals = approvals.Trust
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one"); got.BoundTo() != "self" || len(got.Status.PendingApprovals) != 2 {
		t.Errorf("bound to %q, lists %v; want it to go on, and both calls listed", got.BoundTo(), got.Status.PendingApprovals)
	}
}

// TestTheTimeOfATurnStopsWithThatOfItsSubAgent: it waits for people, too.
func TestTheTimeOfATurnStopsWithThatOfItsSubAgent(t *testing.T) {
	child := childOf("uid-one", "child", started(20*time.Second), parked(waiting("a")))
	b := newBench(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(nil, "child")), child, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	stopped := b.turn(t, "one")
	if stopped.Status.ParkedTime == nil || stopped.StateReason() != v1alpha1.TurnReasonWaitingForSubAgent {
		t.Fatalf("status %+v, want a time that has stopped", stopped.Status)
	}
	if _, err := b.look(t, "one"); err != nil || b.turn(t, "one").ResourceVersion != stopped.ResourceVersion {
		t.Fatalf("what is no news must not be written (error %v)", err)
	}
	goesOn := b.turn(t, "child")
	translate.PauseClock(goesOn, false, now)
	if err := b.client.Status().Update(t.Context(), goesOn); err != nil {
		t.Fatal(err)
	}
	b.turns.Now = func() time.Time { return now.Add(5 * time.Second) }
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	if s := b.turn(t, "one").Status; s.ParkedTime != nil || s.ParkedMilliseconds != 5000 {
		t.Errorf("status %+v, want a time that runs, and 5 s that do not count", s)
	}
}

// TestAParkedTurnHoldsNoPlace: what it waits for may need it.
func TestAParkedTurnHoldsNoPlace(t *testing.T) {
	parent := turnWith(boundTo("self"), started(time.Second))
	child := childOf("uid-one", "child")
	b := newBench(t, interceptor.Funcs{}, parent, child, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	for _, name := range []string{"one", "child"} {
		if _, err := b.look(t, name); err != nil {
			t.Fatal(err)
		}
	}
	if reason := b.turn(t, "child").StateReason(); reason != v1alpha1.TurnReasonQueued {
		t.Fatalf("the child is %s, want Queued: its parent runs", reason)
	}
	waits := b.turn(t, "one")
	waits.Status.Executor.Name = ""
	translate.Park(waits, &loop.Parked{Turns: []string{"child"}}, now)
	if err := b.client.Status().Update(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	b.woken = nil
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"child"}, b.woken); diff != "" {
		t.Fatalf("the place must go to the child: -want +got:\n%s", diff)
	}
	if _, err := b.look(t, "child"); err != nil || b.turn(t, "child").BoundTo() != "self" {
		t.Errorf("the child has no place (error %v)", err)
	}
}

// TestATurnOfASubAgentIsCancelledWithItsParent: nobody waits for it.
func TestATurnOfASubAgentIsCancelledWithItsParent(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		parent *v1alpha1.Turn
		child  *v1alpha1.Turn
		want   bool
	}{
		"the parent runs":          {"it waits for the child", turnWith(boundTo("self")), childOf("uid-one", "child"), false},
		"the parent is suspended":  {"it goes on later, and has the answer then", turnWith(desires(v1alpha1.DesiredStateSuspended)), childOf("uid-one", "child"), false},
		"the parent is cancelled":  {"nobody wants the answer", turnWith(boundTo("self"), desires(v1alpha1.DesiredStateCancelled)), childOf("uid-one", "child"), true},
		"the parent has ended":     {"nobody wants the answer", turnWith(finished(time.Second)), childOf("uid-one", "child"), true},
		"the parent is gone":       {"nobody wants the answer", nil, childOf("uid-one", "child"), true},
		"the parent was made anew": {"it has called nobody", turnWith(boundTo("self")), childOf("uid-zero", "child"), true},
		"a child that runs":        {"its executor is told so", nil, childOf("uid-one", "child", boundTo("self")), true},
		"a Turn of another owner": {"only Turns call", nil, childOf("uid-one", "child", func(t *v1alpha1.Turn) {
			t.OwnerReferences[0].APIVersion, t.OwnerReferences[0].Kind = "batch/v1", "Job"
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{tc.child, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 10, now)}
			if tc.parent != nil {
				objects = append(objects, tc.parent)
			}
			b := newBench(t, interceptor.Funcs{}, objects...)
			if _, err := b.look(t, "child"); err != nil {
				t.Fatal(err)
			}
			if got := b.turn(t, "child").Spec.DesiredState == v1alpha1.DesiredStateCancelled; got != tc.want {
				t.Errorf("cancelled: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestAParentThatCannotBeReadIsNotGone(t *testing.T) {
	b := newBench(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if key.Name == "one" {
			return broken
		}
		return c.Get(ctx, key, o, opts...)
	}}, childOf("uid-one", "child"), agentWith(metav1.ConditionTrue, ""))
	if _, err := b.look(t, "child"); !errors.Is(err, broken) || b.turn(t, "child").Spec.DesiredState == v1alpha1.DesiredStateCancelled {
		t.Errorf("error %v, want that of the read and no change", err)
	}
}

func TestWhoIsToldOfATurn(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, childOf("uid-one", "b"), childOf("uid-one", "c"), childOf("uid-one", "ended", finished(0)), childOf("uid-two", "other"))
	var got []string
	for _, r := range b.turns.relativesOf(t.Context(), turnWith(func(t *v1alpha1.Turn) {
		t.OwnerReferences = childOf("uid-zero", "x").OwnerReferences
		t.OwnerReferences[0].Name = "above"
	})) {
		got = append(got, r.Name)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"above", "b", "c"}, got); diff != "" {
		t.Errorf("the one above and those below that have not ended: -want +got:\n%s", diff)
	}
	requests := turnOf(t.Context(), approval("a"))
	if len(requests) != 1 || requests[0].Name != "one" || requests[0].Namespace != "helpdesk" {
		t.Errorf("a decision brings back %v, want its Turn", requests)
	}
}

func TestWhatConcernsRelatives(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		before, after *v1alpha1.Turn
		want          bool
	}{
		"progress":          {"as of every Turn", turnWith(boundTo("e")), turnWith(boundTo("e"), func(t *v1alpha1.Turn) { t.Status.Steps = &v1alpha1.StepCounts{Count: 1} }), false},
		"a binding":         {"as of every Turn", turnWith(), turnWith(boundTo("e")), false},
		"an end":            {"the parent goes on, the children end", turnWith(), turnWith(finished(0)), true},
		"a cancellation":    {"the children end", turnWith(), turnWith(desires(v1alpha1.DesiredStateCancelled)), true},
		"a suspension":      {"all go on", turnWith(), turnWith(desires(v1alpha1.DesiredStateSuspended)), false},
		"a call that waits": {"the parent's time stops", turnWith(boundTo("e")), turnWith(parked(waiting("a"))), true},
		"a decision":        {"the parent's time runs", turnWith(parked(waiting("a"))), turnWith(boundTo("e")), true},
		"made anew":         {"the old one is gone", turnWith(), turnWith(func(t *v1alpha1.Turn) { t.UID = "uid-two" }), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := concernsRelatives().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("told: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
	if concernsRelatives().Create(event.CreateEvent{Object: turnWith()}) || !concernsRelatives().Delete(event.DeleteEvent{Object: turnWith()}) {
		t.Error("a new Turn concerns nobody, one that leaves the cache does")
	}
	a := approval("a")
	if p := decisionMade(); !p.Create(event.CreateEvent{Object: a}) || p.Update(event.UpdateEvent{ObjectOld: a, ObjectNew: a}) || p.Delete(event.DeleteEvent{Object: a}) {
		t.Error("a decision is told of once, when it is made")
	}
}

// TestASuspendedTurnForgetsWhatItWaitedFor: it asks again when it goes on. That the Turns of sub-agents were made stays known,
// or one that is deleted meanwhile would be made anew.
func TestASuspendedTurnForgetsWhatItWaitedFor(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a"), "child"), desires(v1alpha1.DesiredStateSuspended)), agentWith(metav1.ConditionTrue, ""))
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	if s := b.turn(t, "one").Status; s.StartTime != nil || s.ParkedTime != nil || s.ParkedMilliseconds != 0 || s.PendingApprovals != nil || !slices.Equal(s.AwaitedTurns, []string{"child"}) {
		t.Errorf("status %+v, want no calls that it waits for, and the Turn that was made", s)
	}
}

// TestADecidedTurnWithoutAPlaceIsTimed: it waits for a place and no more for people.
func TestADecidedTurnWithoutAPlaceIsTimed(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a"))), agentWith(metav1.ConditionTrue, ""), approval("a"))
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "one")
	if s := got.Status; got.StateReason() != v1alpha1.TurnReasonPending || s.ParkedTime != nil || s.ParkedMilliseconds != 10_000 {
		t.Errorf("%s, status %+v; want Pending and a time that runs", got.StateReason(), s)
	}
}

// TestATurnThatNoSubAgentIsOutlivesItsOwner: people may let Turns own each other for their own ends.
func TestATurnThatNoSubAgentIsOutlivesItsOwner(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(finished(0)))
	for reason, labels := range map[string]map[string]string{"is called": {translate.ParentLabel: "one"}, "is somebody's": nil} {
		child := childOf("uid-one", "child", func(c *v1alpha1.Turn) { c.Labels = labels })
		if got, err := b.turns.isAbandoned(t.Context(), child); err != nil || got != (labels != nil) {
			t.Errorf("%s: abandoned %t (error %v), want %t", reason, got, err, labels != nil)
		}
	}
}

// TestSubAgentsEndBeforeTheTurn that has called them.
func TestSubAgentsEndBeforeTheTurn(t *testing.T) {
	working := waits{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child")}}
	parked := func(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
		return turnWith(append([]func(*v1alpha1.Turn){boundTo("e"), givenBack(v1alpha1.TurnReasonWaitingForSubAgent), started(10 * time.Second)}, change...)...)
	}
	seconds := func(n int32) func(*v1alpha1.Turn) { return limited(v1alpha1.Limits{TimeoutSeconds: &n}) }
	for name, tc := range map[string]struct {
		turn  *v1alpha1.Turn
		waits waits
		want  action
		after time.Duration
	}{
		"cancelled, and one works":              {parked(desires(v1alpha1.DesiredStateCancelled)), working, gather, 0},
		"cancelled, and none works":             {parked(desires(v1alpha1.DesiredStateCancelled)), waits{}, settle, 0},
		"out of time, and one works":            {parked(seconds(9)), working, gather, 8 * time.Second},
		"out of time, and none works":           {parked(seconds(9)), waits{}, settle, 0},
		"out of time for too long":              {parked(seconds(4)), working, settle, 0},
		"suspended":                             {parked(desires(v1alpha1.DesiredStateSuspended), seconds(9)), working, wait, 0},
		"cancelled while its executor lives on": {turnWith(boundTo("e"), desires(v1alpha1.DesiredStateCancelled)), working, follow, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(view{turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), executorLives: true, waits: tc.waits, now: now})
			if got.action != tc.want || got.action == gather && got.after != tc.after {
				t.Errorf("decided %q after %s, want %q after %s", got.action, got.after, tc.want, tc.after)
			}
		})
	}
}
