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
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

func TestTurnCreatesSession(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.reconcile(t, "one"); err != nil || !result.IsZero() {
		t.Fatalf("got %v, %v", result, err)
	}
	if !b.hasSession(t) || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must be bound, and its session created: %+v", b.turn(t, "one").Status)
	}
}

// TestTurnThatCannotRunCreatesNoSession checks that a Turn that cannot run creates no Session.
func TestTurnThatCannotRunCreatesNoSession(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession))
	if _, err := b.reconcile(t, "one"); err != nil || b.hasSession(t) {
		t.Errorf("a Turn that waits for its agent has created a session: %t, %v", b.hasSession(t), err)
	}
}

func TestSessionCreatedByAnotherClient(t *testing.T) {
	alreadyExists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "sessions"}, "talk")
	b := newTestEnv(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := c.Create(ctx, o, opts...); err != nil {
				return err
			}
			return alreadyExists
		},
	}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != staleInterval {
		t.Fatalf("got %v, %v, want a requeue", result, err)
	}
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must use the existing session: %v", err)
	}
}

// TestSessionThatCannotBeCreated checks that the status says why a Turn waits, if a quota or a policy does not allow
// its Session.
func TestSessionThatCannotBeCreated(t *testing.T) {
	for name, tc := range map[string]struct {
		cause error
		want  string
	}{
		"a quota": {
			apierrors.NewForbidden(schema.GroupResource{Resource: "sessions"}, "talk", errors.New("exceeded quota: sessions")),
			"exceeded quota: sessions",
		},
		"a webhook, with 400": {webhookerrors.ToStatusErr("check.example", nil), `admission webhook "check.example" denied the request`},
	} {
		t.Run(name, func(t *testing.T) {
			allowed := false
			b := newTestEnv(t, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if allowed {
						return c.Create(ctx, o, opts...)
					}
					return tc.cause
				},
			}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
			result, err := b.reconcile(t, "one")
			if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > maxRetryDelay {
				t.Errorf("reconcile = %v, %v; want another attempt within %s", result, err, maxRetryDelay)
			}
			if got := b.turn(t, "one"); got.StateReason() != v1alpha1.TurnReasonWaitingForSession ||
				!strings.Contains(got.Status.Conditions[0].Message, tc.want) {
				t.Errorf("the status is %+v, want WaitingForSession and the reason", got.Status)
			}
			allowed = true
			if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
				t.Errorf("the Turn must be bound once its Session is allowed: %v", err)
			}
		})
	}
}

// TestSessionIsReadFromAPIServer checks that the budget of a Session is read from the API server: the cached Session
// may be older than the cached Turns, or older than a change that a person has just made.
func TestSessionIsReadFromAPIServer(t *testing.T) {
	for name, tc := range map[string]struct {
		cached, live *v1alpha1.Session
		want         string
	}{
		"the last Turn of the budget has ended": {sessionWith(usedTurns(2)), sessionWith(usedTurns(3)), v1alpha1.TurnReasonSessionClosed},
		"the budget was raised":                 {sessionWith(usedTurns(3)), sessionWith(usedTurns(2)), v1alpha1.TurnReasonRunning},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""),
				leaseOf("self", 1, now), tc.live)
			b.turns.Client = showing(b.client, tc.cached)
			if _, err := b.reconcile(t, "one"); err != nil {
				t.Fatal(err)
			}
			if got := b.turn(t, "one").StateReason(); got != tc.want {
				t.Errorf("the Turn is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTurnOfClosedSessionEnds(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now), sessionWith(usedTurns(3)))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "one")
	if !got.IsFinished() || got.StateReason() != v1alpha1.TurnReasonSessionClosed ||
		got.Status.StopReason != v1alpha1.StopSessionClosed || got.Epoch() != 0 {
		t.Errorf("the Turn must end before it is bound: %+v", got.Status)
	}
	if b.holdingSlots() != 0 || b.queued() != 0 {
		t.Error("a Turn that has ended holds a slot")
	}
}

func TestTurnWaitsForSessionDeletion(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now), sessionWith(beingDeleted))
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").StateReason() != v1alpha1.TurnReasonWaitingForSession {
		t.Fatalf("the Turn is %s, want it to wait: %v", b.turn(t, "one").StateReason(), err)
	}
	s := b.session(t)
	s.Finalizers = nil
	if err := b.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := b.turns.firstTurnOf(t.Context(), s); len(got) != 1 || got[0].Name != "one" {
		t.Errorf("woken: %v, want the Turn", got)
	}
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" || b.session(t).UID == s.UID && s.UID != "" {
		t.Errorf("the Turn must get a new session: %v", err)
	}
}

// TestDeletedSessionIsCreatedAgain checks that a Turn which its executor handed back without a prompt creates its
// Session again.
func TestDeletedSessionIsCreatedAgain(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{},
		turnWith(inSession, boundTo("e"), handedBack(v1alpha1.TurnReasonWaitingForSession), unprepared),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.reconcile(t, "one"); err != nil || !b.hasSession(t) || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must continue in a new session: %v, %+v", err, b.turn(t, "one").Status)
	}
}

func TestWaitingForSessionIsOneWrite(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionTurn("a", 0, storedAs("7")), sessionTurn("b", 0, storedAs("8")),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	if _, err := b.reconcile(t, "b"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "b")
	if got.StateReason() != v1alpha1.TurnReasonWaitingForSession || got.Status.SessionOrder != 8 {
		t.Errorf("the Turn must wait and keep its order: %+v", got.Status)
	}
	if b.queued() != 0 {
		t.Error("a Turn that waits for its session must not hold or wait for a slot")
	}
	if _, err := b.reconcile(t, "b"); err != nil || b.turn(t, "b").ResourceVersion != got.ResourceVersion {
		t.Errorf("an unchanged status was written: %v", err)
	}
	if _, err := b.reconcile(t, "a"); err != nil || b.turn(t, "a").BoundTo() != "self" {
		t.Errorf("the first Turn must be bound: %v, %+v", err, b.turn(t, "a").Status)
	}
}

// TestJustBoundTurnIsNotOverlooked checks that a Turn waits for a Turn that was just bound, even if the cache does not
// show the binding yet and so shows the bound Turn behind this one.
func TestJustBoundTurnIsNotOverlooked(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionTurn("late", -time.Second), sessionTurn("early", 0),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	shown, newer := b.turn(t, "late"), b.turn(t, "late")
	newer.ResourceVersion = "1000000"
	boundTo("self")(newer)
	b.turns.sessions.ObserveWrite(newer)
	b.turns.sessions.Observe(shown)
	if _, err := b.reconcile(t, "early"); err != nil || b.turn(t, "early").StateReason() != v1alpha1.TurnReasonWaitingForSession {
		t.Errorf("the Turn is %q, %v, want it to wait for the bound one", b.turn(t, "early").StateReason(), err)
	}
}

// TestWaitingTurnDoesNotBlockFirst checks that the first Turn of a Session is bound although the cache does not yet
// show the last write of a later Turn.
func TestWaitingTurnDoesNotBlockFirst(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionTurn("late", -time.Second), sessionTurn("early", 0),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	newer := b.turn(t, "late")
	newer.ResourceVersion = "1000000"
	b.turns.expectations.Expect(newer)
	if _, err := b.reconcile(t, "early"); err != nil || b.turn(t, "early").BoundTo() != "self" {
		t.Errorf("the first Turn is %q, %v, want it bound", b.turn(t, "early").StateReason(), err)
	}
}

func TestAffectedTurnsOfSession(t *testing.T) {
	running := func(t *v1alpha1.Turn) { boundTo("e")(t) }
	for name, tc := range map[string]struct {
		reason string
		left   *v1alpha1.Turn
		others []*v1alpha1.Turn
		want   []string
	}{
		"the first leaves": {
			"only the next Turn is affected: it may be bound", sessionTurn("a", 3*time.Second),
			[]*v1alpha1.Turn{sessionTurn("c", time.Second), sessionTurn("b", 2*time.Second)},
			[]string{"b"},
		},
		"a middle one leaves": {
			"the Turn after it now waits for another Turn", sessionTurn("b", 2*time.Second),
			[]*v1alpha1.Turn{sessionTurn("a", 3*time.Second, running), sessionTurn("c", time.Second), sessionTurn("d", 0)},
			[]string{"c"},
		},
		"the last leaves": {
			"no Turn waited for it", sessionTurn("c", 0),
			[]*v1alpha1.Turn{sessionTurn("a", 3*time.Second, running)},
			nil,
		},
		"the order of the Turn is unknown": {"the first Turn is reconciled, whatever is known about the Turn that left", sessionTurn("c", 0,
			storedAs("x")), []*v1alpha1.Turn{sessionTurn("a", 3*time.Second), sessionTurn("b", time.Second)}, []string{"a"}},
		"a cancelled one in the middle": {"a cancelled Turn does not block the queue", sessionTurn("a", 3*time.Second), []*v1alpha1.Turn{
			sessionTurn("b", 2*time.Second, desired(v1alpha1.DesiredStateCancelled)), sessionTurn("c", time.Second),
		}, []string{"c"}},
		"no session": {
			"a Turn without a session affects no other Turn", turnWith(),
			[]*v1alpha1.Turn{sessionTurn("a", 0)},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			for _, o := range tc.others {
				objects = append(objects, o)
			}
			b := newTestEnv(t, interceptor.Funcs{}, objects...)
			var got []string
			for _, r := range b.turns.affectedTurns(t.Context(), tc.left) {
				got = append(got, r.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSessionQueueChanged(t *testing.T) {
	suspended, cancelled := desired(v1alpha1.DesiredStateSuspended), desired(v1alpha1.DesiredStateCancelled)
	another := func(t *v1alpha1.Turn) { t.UID = "another" }
	for name, tc := range map[string]struct {
		before, after *v1alpha1.Turn
		want          bool
	}{
		"the end":                     {sessionTurn("a", 0, boundTo("e")), sessionTurn("a", 0, finished(0)), true},
		"a deletion":                  {sessionTurn("a", 0), sessionTurn("a", 0, deleted), true},
		"recreated":                   {sessionTurn("a", 0, ordered(100)), sessionTurn("a", 0, ordered(100), another), true},
		"recreated without a session": {sessionTurn("a", 0), turnWith(another), true},
		"a suspension":                {sessionTurn("a", 0), sessionTurn("a", 0, suspended), true},
		"resumed":                     {sessionTurn("a", 0, suspended), sessionTurn("a", 0), true},
		"a pending call":              {sessionTurn("a", 0, boundTo("e")), sessionTurn("a", 0, parked(waiting("x"))), true},
		"a decision":                  {sessionTurn("a", 0, parked(waiting("x"))), sessionTurn("a", 0, boundTo("e")), true},
		"a cancellation":              {sessionTurn("a", 0), sessionTurn("a", 0, cancelled), true},
		"a change before the first reconciliation": {sessionTurn("a", 0), sessionTurn("a", 0, storedAs("101")), true},
		"a binding":                    {sessionTurn("a", 0), sessionTurn("a", 0, storedAs("101"), boundTo("e")), false},
		"a new reason to wait":         {sessionTurn("a", 0), sessionTurn("a", 0, storedAs("101"), ordered(100)), false},
		"a later change":               {sessionTurn("a", 0, ordered(100)), sessionTurn("a", 0, storedAs("102"), ordered(100)), false},
		"a deletion without a session": {turnWith(), turnWith(deleted), false},
		"a second binding":             {sessionTurn("a", 0, wasBound), sessionTurn("a", 0, storedAs("101"), boundTo("e")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sessionQueueChanged().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("passes: %t, want %t", got, tc.want)
			}
		})
	}
	if sessionQueueChanged().Create(event.CreateEvent{Object: sessionTurn("a", 0)}) ||
		!sessionQueueChanged().Delete(event.DeleteEvent{Object: sessionTurn("a", 0)}) {
		t.Error("the deletion of a Turn must pass, because others may wait for it; its creation must not")
	}
}

// TestTurnThatFallsBackWakesFirst checks a Turn whose label is changed before its first reconciliation. The Turn then
// moves behind a Turn that already waits for it, and that Turn must be woken.
func TestTurnThatFallsBackWakesFirst(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionTurn("a", 0, storedAs("7")), sessionTurn("b", 0, storedAs("8")),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	if _, err := b.reconcile(t, "b"); err != nil || b.turn(t, "b").StateReason() != v1alpha1.TurnReasonWaitingForSession {
		t.Fatalf("the second Turn does not wait for the first: %v", err)
	}
	before := b.turn(t, "a")
	after := b.turn(t, "a")
	after.Labels = map[string]string{"team": "support"}
	if err := b.client.Update(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	for range 3 { // until the resource version, which the fake client increments, is higher than that of b
		if scheduler.SessionOrder(after) > 8 {
			break
		}
		after.Labels["team"] += "!"
		if err := b.client.Update(t.Context(), after); err != nil {
			t.Fatal(err)
		}
	}
	if !sessionQueueChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Fatal("the change must pass")
	}
	woken := b.turns.affectedTurns(t.Context(), after)
	if !slices.ContainsFunc(woken, func(r reconcile.Request) bool { return r.Name == "b" }) {
		t.Fatalf("woken: %v, want the Turn that is now first", woken)
	}
	if _, err := b.reconcile(t, "b"); err != nil || b.turn(t, "b").BoundTo() != "self" {
		t.Errorf("the Turn that is now first must be bound: %v", err)
	}
	if _, err := b.reconcile(t, "a"); err != nil || !strings.Contains(b.turn(t, "a").Status.Conditions[0].Message, `Turn "b"`) {
		t.Errorf("Turn a does not wait for Turn b: %v, %+v", err, b.turn(t, "a").Status)
	}
}
