package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// parked changes a Turn as if its executor had handed it back ten seconds ago. The Turn waits for decisions about these
// calls, which expire after these durations, and for these Turns of sub-agents.
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
			p.Approvals = append(p.Approvals, loop.Approval{
				Request: "request of " + id, Step: 1, CallID: id,
				Name: "delete", SchemaHash: "schema", ArgumentsHash: "hash", Requested: at, Expires: now.Add(calls[id]),
			})
		}
		turnstatus.Park(t, turnstatus.Run{}, p, at)
	}
}

// waiting returns calls that all expire after a minute.
func waiting(ids ...string) map[string]time.Duration {
	calls := map[string]time.Duration{}
	for _, id := range ids {
		calls[id] = time.Minute
	}
	return calls
}

// approval returns a decision about a call of the Turn.
func approval(callID string, change ...func(*v1alpha1.ToolApproval)) *v1alpha1.ToolApproval {
	a := &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "decision-" + callID, CreationTimestamp: metav1.NewTime(now)},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: "one"}, TurnUID: "uid-one", RequestID: "request of " + callID,
			Step: 1, CallID: callID, ToolName: "delete", SchemaHash: "schema", ArgumentsHash: "hash",
			Decision: v1alpha1.ApprovalApproved, DecidedBy: "jane",
		},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

// childOf returns the Turn of a sub-agent.
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
	const awaits = "a call of tool delete requires approval: run capstan approve helpdesk/one or capstan deny helpdesk/one"
	paused := func(t *v1alpha1.Turn) { t.Status.ParkedTime = new(metav1.NewMicroTime(now)) }
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		waits  waitProgress
		want   decision
	}{
		"undecided": {
			"it is reconciled again when the call expires", turnWith(started(30*time.Second), parked(waiting("a"))),
			waitProgress{decided: []bool{false}},
			decision{action: park, reason: v1alpha1.TurnReasonAwaitingApproval, message: awaits, after: time.Minute},
		},
		"parked beyond its deadline": {
			"its time limit is paused", turnWith(started(69*time.Second), parked(waiting("a"))),
			waitProgress{decided: []bool{false}},
			decision{action: park, reason: v1alpha1.TurnReasonAwaitingApproval, message: awaits, after: time.Minute},
		},
		"decided": {
			"it continues with the time that it had left", turnWith(started(30*time.Second), parked(waiting("a"))),
			waitProgress{decided: []bool{true}},
			decision{action: schedule, after: 40 * time.Second},
		},
		"requested by an older version": {
			"such a request shows too little of the call, and the executor repeats it",
			turnWith(started(30*time.Second), parked(waiting("a")), func(t *v1alpha1.Turn) {
				t.Status.PendingApprovals[0].RequestID = ""
			}),
			waitProgress{decided: []bool{false}},
			decision{action: schedule, after: 40 * time.Second},
		},
		"one of two decided": {
			"the other one is requested again", turnWith(started(30*time.Second), parked(waiting("a", "b"))),
			waitProgress{decided: []bool{false, true}},
			decision{action: schedule, after: 40 * time.Second},
		},
		"expired": {
			"expiry is a denial", turnWith(started(30*time.Second), parked(map[string]time.Duration{"a": 0, "b": time.Hour})),
			waitProgress{decided: []bool{false, false}},
			decision{action: schedule, after: 40 * time.Second},
		},
		"decided, and the decision may not be used": {
			"the message says why, and the Turn is reconciled again soon", turnWith(started(30*time.Second), parked(waiting("a"))),
			waitProgress{decided: []bool{false}, unused: "ToolApproval x is not used: its author is unknown"},
			decision{
				action: park, reason: v1alpha1.TurnReasonAwaitingApproval, after: 10 * time.Second,
				message: awaits + "; ToolApproval x is not used: its author is unknown",
			},
		},
		"decided, and the call expires before the recheck": {
			"the expiry is not missed", turnWith(started(30*time.Second), parked(map[string]time.Duration{"a": time.Second})),
			waitProgress{decided: []bool{false}, unused: "ToolApproval x is not used"},
			decision{
				action: park, reason: v1alpha1.TurnReasonAwaitingApproval, after: time.Second, message: awaits +
					"; ToolApproval x is not used",
			},
		},
		"two decisions, of which one may be used": {
			"it continues", turnWith(started(30*time.Second), parked(waiting("a"))),
			waitProgress{decided: []bool{true}, unused: "ToolApproval x is not used"},
			decision{action: schedule, after: 40 * time.Second},
		},
		"cancelled": {
			"its executor ends it", turnWith(started(30*time.Second), parked(waiting("a")), desired(v1alpha1.DesiredStateCancelled)),
			waitProgress{decided: []bool{false}},
			decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonCancelled,
				message: "the turn was cancelled while it was not running",
			},
		},
		"suspended": {
			"the decision does not matter",
			turnWith(started(30*time.Second), parked(waiting("a")), desired(v1alpha1.DesiredStateSuspended)),
			waitProgress{decided: []bool{true}},
			decision{
				action: wait, reason: v1alpha1.TurnReasonSuspended,
				message: "the turn is suspended; set desiredState to Active to continue",
			},
		},
		"a sub-agent is running": {
			"its time limit runs", turnWith(started(30*time.Second), parked(nil, "child")),
			waitProgress{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child")}},
			decision{
				action: park, reason: v1alpha1.TurnReasonWaitingForSubAgent,
				message: "the Turn child of a sub-agent has not ended", after: 30 * time.Second,
			},
		},
		"a sub-agent runs too long": {
			"its executor ends it with its journal", turnWith(started(2*time.Minute), parked(nil, "child")),
			waitProgress{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child")}},
			decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was WaitingForSubAgent: " +
					"the Turn child of a sub-agent has not ended",
			},
		},
		"a sub-agent waits for people": {
			"an event wakes it", turnWith(started(30*time.Second), parked(nil, "child")),
			waitProgress{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child", paused)}, pausedSince: new(metav1.NewMicroTime(now))},
			decision{action: park, reason: v1alpha1.TurnReasonWaitingForSubAgent, message: "the Turn child of a sub-agent has not ended"},
		},
		"all sub-agents have ended": {
			"it continues", turnWith(started(30*time.Second), parked(nil, "child")),
			waitProgress{},
			decision{action: schedule, after: 30 * time.Second},
		},
		"all sub-agents have ended, and a call is pending": {
			"the executor has something to do", turnWith(started(30*time.Second), parked(waiting("a"), "child")),
			waitProgress{decided: []bool{false}},
			decision{action: schedule, after: 40 * time.Second},
		},
		"already scheduled again": {
			"it waits for a slot, no longer for people", turnWith(started(30*time.Second), parked(waiting("a")), func(t *v1alpha1.Turn) {
				turnstatus.Wait(t, v1alpha1.TurnReasonQueued, "all executors are busy", 0, now)
			}), waitProgress{decided: []bool{false}}, decision{action: schedule, after: 40 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(snapshot{turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), awaited: tc.waits, now: now})
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestDecisionUnparksTurn checks that only a decision about the pending call itself counts.
func TestDecisionUnparksTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		decision *v1alpha1.ToolApproval
		bound    bool
	}{
		"about the call":     {"the Turn is bound", approval("a"), true},
		"about another call": {"nothing has changed", approval("c"), false},
		"of another Turn": {
			"it decides about another Turn",
			approval("a", func(a *v1alpha1.ToolApproval) { a.Spec.TurnUID = "uid-zero" }), false,
		},
		"of other arguments": {
			"it approves other arguments",
			approval("a", func(a *v1alpha1.ToolApproval) { a.Spec.ArgumentsHash = "h" }), false,
		},
		"in another namespace": {
			"it belongs to another Turn",
			approval("a", func(a *v1alpha1.ToolApproval) { a.Namespace = "other" }), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a", "b"))),
				agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now), tc.decision)
			before := b.turn(t, "one")
			result, err := b.reconcile(t, "one")
			if err != nil {
				t.Fatal(err)
			}
			got := b.turn(t, "one")
			if bound := got.BoundTo() == "self"; bound != tc.bound {
				t.Fatalf("bound: %t, want %t: %s", bound, tc.bound, tc.reason)
			}
			if !tc.bound {
				if got.ResourceVersion != before.ResourceVersion || result.RequeueAfter != time.Minute {
					t.Errorf("written, or requeued after %s: want no write, and a requeue for the expiry of the calls", result.RequeueAfter)
				}
				return
			}
			s := got.Status
			if s.ParkedTime != nil || s.ParkedMilliseconds != 10_000 || len(s.PendingApprovals) != 2 {
				t.Errorf("status %+v, want 10 s parked, and both calls listed: the run accepts decisions only about listed calls", s)
			}
		})
	}
}

// TestLongWaitIsChecked checks that a Turn that waits for a time of the API server's clock is reconciled again within
// maxTimer, because that clock may jump, and that this reconciliation writes nothing.
func TestLongWaitIsChecked(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(map[string]time.Duration{"a": 24 * time.Hour})),
		agentWith(metav1.ConditionTrue, ""))
	before := b.turn(t, "one")
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != maxTimer {
		t.Errorf("the Turn is reconciled again after %s, %v; want %s, although its approval expires in a day",
			result.RequeueAfter, err, maxTimer)
	}
	if b.turn(t, "one").ResourceVersion != before.ResourceVersion {
		t.Error("the status was written, although nothing has changed")
	}
}

// TestUnusableDecisionKeepsTurnParked checks that the status says why a decision may not be used, that the status is
// written once, and that the Turn continues when the decision may be used.
func TestUnusableDecisionKeepsTurnParked(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a", "b"))),
		agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now), approval("a"), approval("c"))
	b.turns.Approvals = func(_ context.Context, made []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
		if len(made) != 1 || made[0].Name != "decision-a" {
			t.Errorf("asked about %v, want the one decision about a pending call", made)
		}
		return nil, "ToolApproval decision-a is not used: its author is unknown", nil
	}
	var before *v1alpha1.Turn
	for range 2 {
		result, err := b.reconcile(t, "one")
		if err != nil || result.RequeueAfter != unusedRecheck {
			t.Fatalf("requeued after %s (error %v), want %s", result.RequeueAfter, err, unusedRecheck)
		}
		got := b.turn(t, "one")
		const want = "2 calls of tool delete require approval: run capstan approve helpdesk/one or capstan deny helpdesk/one; " +
			"ToolApproval decision-a is not used: its author is unknown"
		if message := got.Status.Conditions[0].Message; message != want || got.BoundTo() != "" ||
			got.StateReason() != v1alpha1.TurnReasonAwaitingApproval {
			t.Fatalf("%s, bound to %q, message %q; want the Turn to wait with the message %q",
				got.StateReason(), got.BoundTo(), message, want)
		}
		if before != nil && before.ResourceVersion != got.ResourceVersion {
			t.Error("an unchanged status was written")
		}
		before = got
	}
	b.turns.Approvals = func(context.Context, []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
		return nil, "", broken
	}
	if _, err := b.reconcile(t, "one"); !errors.Is(err, broken) || b.turn(t, "one").ResourceVersion != before.ResourceVersion {
		t.Errorf("error %v, want the error of reading the policy, and no write", err)
	}
	b.turns.Approvals = approvals.AcceptAll
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one"); got.BoundTo() != "self" || len(got.Status.PendingApprovals) != 2 {
		t.Errorf("bound to %q, lists %v; want it bound, and both calls listed", got.BoundTo(), got.Status.PendingApprovals)
	}
}

// TestTimeLimitPausesWithSubAgent checks that the time limit of a Turn is paused while its sub-agent
// waits for people.
func TestTimeLimitPausesWithSubAgent(t *testing.T) {
	child := childOf("uid-one", "child", started(20*time.Second), parked(waiting("a")))
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(nil, "child")), child,
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	paused := b.turn(t, "one")
	if paused.Status.ParkedTime == nil || paused.StateReason() != v1alpha1.TurnReasonWaitingForSubAgent {
		t.Fatalf("status %+v, want a paused time limit", paused.Status)
	}
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").ResourceVersion != paused.ResourceVersion {
		t.Fatalf("an unchanged status was written (error %v)", err)
	}
	running := b.turn(t, "child")
	turnstatus.Wait(running, v1alpha1.TurnReasonQueued, "all executors are busy", 0, now)
	if err := b.client.Status().Update(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	b.turns.Now = func() time.Time { return now.Add(5 * time.Second) }
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if s := b.turn(t, "one").Status; s.ParkedTime != nil || s.ParkedMilliseconds != 15_000 {
		t.Errorf("status %+v, want a running time limit, and 15 s that do not count: the sub-agent has waited for 10 s before", s)
	}
}

// TestNewLeaderPausesTimeLimit checks that the time limit of a Turn is paused from the time at which its sub-agent
// began to wait for people, even if no process led then, so that the status of the Turn does not say so yet.
func TestNewLeaderPausesTimeLimit(t *testing.T) {
	waitsFor := func(d time.Duration) func(*v1alpha1.Turn) {
		return func(t *v1alpha1.Turn) {
			parked(waiting("a"))(t)
			t.Status.ParkedTime = new(metav1.NewMicroTime(now.Add(-d)))
		}
	}
	for name, tc := range map[string]struct {
		reason    string
		turns     []*v1alpha1.Turn
		cancelled bool
		paused    time.Duration
	}{
		"its sub-agent waits": {
			"25 of the 60 s had passed",
			[]*v1alpha1.Turn{childOf("uid-one", "child", started(80*time.Second), waitsFor(65*time.Second))},
			false, 65 * time.Second,
		},
		"a sub-agent of its sub-agent waits": {
			"the time of both callers is paused, whichever is reconciled first", []*v1alpha1.Turn{
				childOf("uid-one", "child", started(80*time.Second), parked(nil, "grandchild")),
				childOf("uid-child", "grandchild", started(70*time.Second), waitsFor(65*time.Second)),
			}, false, 65 * time.Second,
		},
		"its sub-agent began to wait too late": {
			"the time was over before",
			[]*v1alpha1.Turn{childOf("uid-one", "child", started(80*time.Second), waitsFor(25*time.Second))},
			true, 0,
		},
		"it was suspended while its sub-agent waits": {
			"its time began to run after the suspension",
			[]*v1alpha1.Turn{childOf("uid-one", "child", started(2*time.Hour), waitsFor(time.Hour))},
			false, 90 * time.Second,
		},
		"the clock of an executor is ahead": {
			"a pause cannot begin in the future",
			[]*v1alpha1.Turn{childOf("uid-one", "child", started(80*time.Second), waitsFor(-time.Second))},
			true, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{turnWith(started(90*time.Second), parked(nil, "child")), agentWith(metav1.ConditionTrue, "")}
			for _, child := range tc.turns {
				objects = append(objects, child)
			}
			b := newTestEnv(t, interceptor.Funcs{}, objects...)
			if _, err := b.reconcile(t, "one"); err != nil {
				t.Fatal(err)
			}
			if got := b.turn(t, "child").IsCancelled(); got != tc.cancelled {
				t.Errorf("the sub-agent is cancelled: %t, want %t: %s", got, tc.cancelled, tc.reason)
			}
			var paused time.Duration
			if since := b.turn(t, "one").Status.ParkedTime; since != nil {
				paused = now.Sub(since.Time)
			}
			if paused != tc.paused {
				t.Errorf("the time is paused since %s, want %s: %s", paused, tc.paused, tc.reason)
			}
		})
	}
}

// TestParkedTurnHoldsNoSlot checks that a parked Turn gives its slot to the Turn of the sub-agent that it waits for.
func TestParkedTurnHoldsNoSlot(t *testing.T) {
	parent := turnWith(boundTo("self"), started(time.Second))
	child := childOf("uid-one", "child")
	b := newTestEnv(t, interceptor.Funcs{}, parent, child, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	for _, name := range []string{"one", "child"} {
		if _, err := b.reconcile(t, name); err != nil {
			t.Fatal(err)
		}
	}
	if reason := b.turn(t, "child").StateReason(); reason != v1alpha1.TurnReasonQueued {
		t.Fatalf("the child is %s, want Queued: its parent runs", reason)
	}
	waits := b.turn(t, "one")
	turnstatus.Park(waits, turnstatus.Run{}, &loop.Parked{Turns: []string{"child"}}, now)
	if err := b.client.Status().Update(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	b.woken = nil
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"child"}, b.woken); diff != "" {
		t.Fatalf("the slot must go to the child: -want +got:\n%s", diff)
	}
	if _, err := b.reconcile(t, "child"); err != nil || b.turn(t, "child").BoundTo() != "self" {
		t.Errorf("the child has no slot (error %v)", err)
	}
}

// TestSubAgentIsCancelledWithParent checks that the Turn of a sub-agent is cancelled when no parent waits for its
// result any more.
func TestSubAgentIsCancelledWithParent(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		parent *v1alpha1.Turn
		child  *v1alpha1.Turn
		want   bool
	}{
		"the parent runs": {"it waits for the child", turnWith(boundTo("self")), childOf("uid-one", "child"), false},
		"the parent is suspended": {
			"it continues later, and needs the answer then",
			turnWith(desired(v1alpha1.DesiredStateSuspended)), childOf("uid-one", "child"), false,
		},
		"the parent is cancelled": {
			"no Turn needs the answer",
			turnWith(boundTo("self"), desired(v1alpha1.DesiredStateCancelled)), childOf("uid-one", "child"), true,
		},
		"the parent has ended":     {"no Turn needs the answer", turnWith(finished(time.Second)), childOf("uid-one", "child"), true},
		"the parent is gone":       {"no Turn needs the answer", nil, childOf("uid-one", "child"), true},
		"the parent was recreated": {"the new parent has not called it", turnWith(boundTo("self")), childOf("uid-zero", "child"), true},
		"a child that runs":        {"its executor stops it", nil, childOf("uid-one", "child", boundTo("self")), true},
		"a Turn of another owner": {"only a Turn can be a parent", nil, childOf("uid-one", "child", func(t *v1alpha1.Turn) {
			t.OwnerReferences[0].APIVersion, t.OwnerReferences[0].Kind = "batch/v1", "Job"
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{tc.child, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 10, now)}
			if tc.parent != nil {
				objects = append(objects, tc.parent)
			}
			b := newTestEnv(t, interceptor.Funcs{}, objects...)
			if _, err := b.reconcile(t, "child"); err != nil {
				t.Fatal(err)
			}
			if got := b.turn(t, "child").Spec.DesiredState == v1alpha1.DesiredStateCancelled; got != tc.want {
				t.Errorf("cancelled: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestSubAgentThatCannotBeCancelled checks that the Turn of a sub-agent that no parent waits for ends although the API
// server rejects each change of its spec, unless its executor may still run it.
func TestSubAgentThatCannotBeCancelled(t *testing.T) {
	denied := webhookerrors.ToStatusErr("check.example", &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no"})
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Turn"}, "child", field.ErrorList{
		field.Invalid(field.NewPath("spec"), "", "a rule that is newer than the Turn"),
	})
	for name, tc := range map[string]struct {
		cause error
		child *v1alpha1.Turn
		ends  bool
		// err is true if the reconciliation must be repeated soon. after is when it must be repeated at the latest, or
		// zero if that does not matter.
		err   bool
		after time.Duration
	}{
		"new":                       {denied, childOf("uid-one", "child"), true, false, 0},
		"invalid by a newer schema": {invalid, childOf("uid-one", "child"), true, false, 0},
		"suspended":                 {denied, childOf("uid-one", "child", desired(v1alpha1.DesiredStateSuspended)), true, false, 0},
		"waits for a person":        {denied, childOf("uid-one", "child", parked(waiting("a"))), true, false, 0},
		"its executor is lost":      {denied, childOf("uid-one", "child", boundTo("lost")), true, false, 0},
		"its executor runs it":      {denied, childOf("uid-one", "child", boundTo("self")), false, false, time.Minute},
		"another error":             {broken, childOf("uid-one", "child"), false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return tc.cause
				},
			}, tc.child, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 10, now))
			again, err := b.reconcile(t, "child")
			if (err != nil) != tc.err || tc.after > 0 && again.RequeueAfter != tc.after {
				t.Errorf("error %v, again after %s; want an error: %t, after %s", err, again.RequeueAfter, tc.err, tc.after)
			}
			got := b.turn(t, "child")
			if got.IsFinished() != tc.ends {
				t.Fatalf("the Turn has ended: %t, want %t", got.IsFinished(), tc.ends)
			}
			const message = "no Turn waits for the answer of this sub-agent any more"
			if m := got.Status.Conditions; tc.ends && (got.StateReason() != v1alpha1.TurnReasonCancelled ||
				!strings.HasPrefix(m[0].Message, message) || !strings.HasSuffix(m[0].Message, tc.cause.Error())) {
				t.Errorf("%s: %+v, want Cancelled with the cause", got.StateReason(), m)
			}
		})
	}
}

func TestUnreadableParentCancelsNoSubAgent(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "one" {
				return broken
			}
			return c.Get(ctx, key, o, opts...)
		},
	}, childOf("uid-one", "child"), agentWith(metav1.ConditionTrue, ""))
	if _, err := b.reconcile(t, "child"); !errors.Is(err, broken) ||
		b.turn(t, "child").Spec.DesiredState == v1alpha1.DesiredStateCancelled {
		t.Errorf("error %v, want the error of the read, and no change", err)
	}
}

func TestRelativesOf(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, childOf("uid-one", "b"), childOf("uid-one", "c"),
		childOf("uid-one", "ended", finished(0)), childOf("uid-two", "other"))
	var got []string
	for _, r := range b.turns.relativesOf(t.Context(), turnWith(func(t *v1alpha1.Turn) {
		t.OwnerReferences = childOf("uid-zero", "x").OwnerReferences
		t.OwnerReferences[0].Name = "above"
	})) {
		got = append(got, r.Name)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"above", "b", "c"}, got); diff != "" {
		t.Errorf("the parent and the unfinished children: -want +got:\n%s", diff)
	}
	requests := turnOf(t.Context(), approval("a"))
	if len(requests) != 1 || requests[0].Name != "one" || requests[0].Namespace != "helpdesk" {
		t.Errorf("a decision enqueues %v, want its Turn", requests)
	}
}

func TestRelativesChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		before, after *v1alpha1.Turn
		want          bool
	}{
		"progress": {
			"it does not affect other Turns", turnWith(boundTo("e")),
			turnWith(boundTo("e"), func(t *v1alpha1.Turn) { t.Status.Steps = &v1alpha1.StepCounts{Count: 1} }), false,
		},
		"a binding":      {"it does not affect other Turns", turnWith(), turnWith(boundTo("e")), false},
		"an end":         {"the parent continues, the children end", turnWith(), turnWith(finished(0)), true},
		"a cancellation": {"the children end", turnWith(), turnWith(desired(v1alpha1.DesiredStateCancelled)), true},
		"a suspension":   {"all continue", turnWith(), turnWith(desired(v1alpha1.DesiredStateSuspended)), false},
		"a pending call": {"the parent's time limit is paused", turnWith(boundTo("e")), turnWith(parked(waiting("a"))), true},
		"a decision":     {"the parent's time limit runs", turnWith(parked(waiting("a"))), turnWith(boundTo("e")), true},
		"recreated":      {"the old Turn was deleted", turnWith(), turnWith(func(t *v1alpha1.Turn) { t.UID = "uid-two" }), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := relativesChanged().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("passes: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
	if relativesChanged().Create(event.CreateEvent{Object: turnWith()}) ||
		!relativesChanged().Delete(event.DeleteEvent{Object: turnWith()}) {
		t.Error("the creation of a Turn must not pass, but its removal from the cache must")
	}
	a := approval("a")
	if p := approvalCreated(); !p.Create(event.CreateEvent{Object: a}) ||
		p.Update(event.UpdateEvent{ObjectOld: a, ObjectNew: a}) || p.Delete(event.DeleteEvent{Object: a}) {
		t.Error("only the creation of a decision must pass")
	}
}

// TestSuspendedTurnDropsPendingCalls checks that a suspended Turn has no pending calls, so that it requests its
// approvals again when it continues. Its status still lists the Turns of sub-agents; otherwise deleted ones would be
// created again.
func TestSuspendedTurnDropsPendingCalls(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a"), "child"),
		desired(v1alpha1.DesiredStateSuspended)), agentWith(metav1.ConditionTrue, ""))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if s := b.turn(t, "one").Status; s.StartTime != nil || s.ParkedTime != nil || s.ParkedMilliseconds != 0 ||
		s.PendingApprovals != nil || !slices.Equal(s.AwaitedTurns, []string{"child"}) {
		t.Errorf("status %+v, want no pending calls, and the created Turn", s)
	}
}

// TestTimeLimitRunsWithoutSlot checks that the time limit of a Turn runs once its calls are decided, even if the Turn
// then waits for a slot.
func TestTimeLimitRunsWithoutSlot(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(started(30*time.Second), parked(waiting("a"))),
		agentWith(metav1.ConditionTrue, ""), approval("a"))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "one")
	if s := got.Status; got.StateReason() != v1alpha1.TurnReasonPending || s.ParkedTime != nil || s.ParkedMilliseconds != 10_000 {
		t.Errorf("%s, status %+v; want Pending and a running time limit", got.StateReason(), s)
	}
}

// TestOwnedTurnThatIsNoSubAgentSurvives checks that a Turn which another Turn owns is an orphan only if that Turn
// called it. Users may set owner references for other reasons.
func TestOwnedTurnThatIsNoSubAgentSurvives(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(finished(0)))
	for reason, labels := range map[string]map[string]string{
		"called by a Turn":         {translate.ParentLabel: "one"},
		"owned for another reason": nil,
	} {
		child := childOf("uid-one", "child", func(c *v1alpha1.Turn) { c.Labels = labels })
		if got, err := b.turns.isOrphaned(t.Context(), child); err != nil || got != (labels != nil) {
			t.Errorf("%s: orphaned %t (error %v), want %t", reason, got, err, labels != nil)
		}
	}
}

// TestOnlyTheAwaitedTurnIsCancelled checks that a Turn is not cancelled because it has the name of an awaited Turn that
// was deleted: the cache may still show the deleted one.
func TestOnlyTheAwaitedTurnIsCancelled(t *testing.T) {
	var patches []string
	refusal := error(apierrors.NewInvalid(schema.GroupKind{Kind: "Turn"}, "child", field.ErrorList{
		field.Invalid(field.NewPath("metadata", "uid"), "uid-other", "field is immutable"),
	}))
	b := newTestEnv(t, interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, p client.Patch, _ ...client.PatchOption) error {
			data, err := p.Data(o)
			patches = append(patches, string(data))
			return errors.Join(err, refusal)
		},
	})
	child := childOf("uid-one", "child", func(c *v1alpha1.Turn) { c.UID = "uid-child" })
	waiting := snapshot{awaited: waitProgress{unfinished: []*v1alpha1.Turn{child}}}
	if _, err := b.turns.cancelSubAgents(t.Context(), waiting, decision{}); err != nil {
		t.Errorf("cancelSubAgents: %v; want another Turn with the name ignored", err)
	}
	if want := []string{`{"metadata":{"uid":"uid-child"},"spec":{"desiredState":"Cancelled"}}`}; !slices.Equal(patches, want) {
		t.Errorf("patches = %q, want %q", patches, want)
	}
	refusal = apierrors.NewConflict(schema.GroupResource{Resource: "turns"}, "child", errors.New("changed at the same time"))
	if err := b.turns.cancelTurn(t.Context(), child); err == nil {
		t.Error("cancelTurn reports no error after a conflict, although the Turn is not cancelled")
	}
}

// TestRejectedCancellationOfAnAwaitedTurn checks that a Turn whose sub-agent cannot be cancelled waits for the end of
// that sub-agent. An error would repeat the cancellation with short delays. A denial may pass, so that the cancellation
// is tried again after a minute.
func TestRejectedCancellationOfAnAwaitedTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		cause error
		fails bool
		after time.Duration
	}{
		"denied":    {webhookerrors.ToStatusErr("check.example", nil), false, time.Minute},
		"too large": {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), false, maxTimer},
		"no etcd":   {broken, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			patches := 0
			b := newTestEnv(t, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					patches++
					return tc.cause
				},
			})
			again, err := b.turns.act(t.Context(), snapshot{awaited: waitProgress{unfinished: []*v1alpha1.Turn{
				childOf("uid-one", "a"), childOf("uid-one", "b"),
			}}}, decision{action: cancelSubAgents, after: time.Hour})
			if (err != nil) != tc.fails || patches != 2 || again.RequeueAfter != tc.after {
				t.Errorf("error %v after %d patches, again after %s; want an error: %t, after both, and again after %s",
					err, patches, again.RequeueAfter, tc.fails, tc.after)
			}
		})
	}
}

// TestSubAgentsEndBeforeTurn checks that sub-agents end before the Turn that has called them.
func TestSubAgentsEndBeforeTurn(t *testing.T) {
	working := waitProgress{unfinished: []*v1alpha1.Turn{childOf("uid-one", "child")}}
	parked := func(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
		return turnWith(append([]func(*v1alpha1.Turn){
			boundTo("e"), handedBack(v1alpha1.TurnReasonWaitingForSubAgent),
			started(10 * time.Second),
		}, change...)...)
	}
	seconds := func(n int32) func(*v1alpha1.Turn) { return limited(v1alpha1.Limits{TimeoutSeconds: &n}) }
	for name, tc := range map[string]struct {
		turn  *v1alpha1.Turn
		waits waitProgress
		want  action
		after time.Duration
	}{
		"cancelled, and a sub-agent runs": {
			parked(seconds(9), desired(v1alpha1.DesiredStateCancelled)), working, cancelSubAgents, 8 * time.Second,
		},
		"cancelled, and a sub-agent runs for too long": {
			parked(seconds(4), desired(v1alpha1.DesiredStateCancelled)), working, endFromJournal, 0,
		},
		"cancelled, and none runs":                {parked(desired(v1alpha1.DesiredStateCancelled)), waitProgress{}, endFromJournal, 0},
		"past its deadline, and a sub-agent runs": {parked(seconds(9)), working, cancelSubAgents, 8 * time.Second},
		"past its deadline, and none runs":        {parked(seconds(9)), waitProgress{}, endFromJournal, 0},
		"past its deadline for too long":          {parked(seconds(4)), working, endFromJournal, 0},
		"suspended":                               {parked(desired(v1alpha1.DesiredStateSuspended), seconds(9)), working, wait, 0},
		"cancelled while its executor is alive":   {turnWith(boundTo("e"), desired(v1alpha1.DesiredStateCancelled)), working, follow, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(snapshot{
				turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), executorAlive: true,
				awaited: tc.waits, now: now,
			})
			if got.action != tc.want || got.action == cancelSubAgents && got.after != tc.after {
				t.Errorf("decided %q after %s, want %q after %s", got.action, got.after, tc.want, tc.after)
			}
		})
	}
}
