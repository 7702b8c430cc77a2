package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestATurnMakesItsSession(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.look(t, "one"); err != nil || !result.IsZero() {
		t.Fatalf("got %v, %v", result, err)
	}
	if !b.hasSession(t) || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must be bound in a session of its own: %+v", b.turn(t, "one").Status)
	}
}

// TestATurnMakesItsSessionOnlyWhenItMayRun: one that cannot run needs none.
func TestATurnMakesItsSessionOnlyWhenItMayRun(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(inSession))
	if _, err := b.look(t, "one"); err != nil || b.hasSession(t) {
		t.Errorf("a Turn that waits for its agent has made a session: %t, %v", b.hasSession(t), err)
	}
}

func TestATurnWhoseSessionSomebodyElseMade(t *testing.T) {
	made := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "sessions"}, "talk")
	b := newBench(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if err := c.Create(ctx, o, opts...); err != nil {
			return err
		}
		return made
	}}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.look(t, "one"); err != nil || result.RequeueAfter != staleInterval {
		t.Fatalf("got %v, %v, want another look", result, err)
	}
	if _, err := b.look(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must take the session that is there: %v", err)
	}
}

// TestTheSessionIsReadFromTheAPIServer: the cache of Sessions may be behind that of Turns, or behind a person.
func TestTheSessionIsReadFromTheAPIServer(t *testing.T) {
	for name, tc := range map[string]struct {
		shown, real *v1alpha1.Session
		want        string
	}{
		"the last Turn of the budget has ended": {sessionWith(took(2)), sessionWith(took(3)), v1alpha1.TurnReasonSessionClosed},
		"the budget was raised":                 {sessionWith(took(3)), sessionWith(took(2)), v1alpha1.TurnReasonRunning},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now), tc.real)
			b.turns.Client = showing(b.client, tc.shown)
			if _, err := b.look(t, "one"); err != nil {
				t.Fatal(err)
			}
			if got := b.turn(t, "one").StateReason(); got != tc.want {
				t.Errorf("the Turn is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestATurnOfAClosedSessionEnds(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now), sessionWith(took(3)))
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "one")
	if !got.IsFinished() || got.StateReason() != v1alpha1.TurnReasonSessionClosed || got.Status.StopReason != v1alpha1.StopSessionClosed || got.Epoch() != 0 {
		t.Errorf("the Turn must end before it is bound: %+v", got.Status)
	}
	if b.holding() != 0 || b.queued() != 0 {
		t.Error("a Turn that has ended has a place")
	}
}

func TestATurnWaitsForASessionThatIsBeingDeleted(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now), sessionWith(beingDeleted))
	if _, err := b.look(t, "one"); err != nil || b.turn(t, "one").StateReason() != v1alpha1.TurnReasonWaitingForSession {
		t.Fatalf("the Turn must wait, is %s: %v", b.turn(t, "one").StateReason(), err)
	}
	s := b.session(t)
	s.Finalizers = nil
	if err := b.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := b.turns.firstOf(t.Context(), s); len(got) != 1 || got[0].Name != "one" {
		t.Errorf("woken: %v, want the Turn", got)
	}
	if _, err := b.look(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" || b.session(t).UID == s.UID && s.UID != "" {
		t.Errorf("the Turn must get a new session: %v", err)
	}
}

// TestASessionThatWasDeletedUnderATurnIsMadeAnew: its executor gave the Turn back before it had a prompt.
func TestASessionThatWasDeletedUnderATurnIsMadeAnew(t *testing.T) {
	b := newBench(t, interceptor.Funcs{},
		turnWith(inSession, boundTo("e"), givenBack(v1alpha1.TurnReasonWaitingForSession), unprepared),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.look(t, "one"); err != nil || !b.hasSession(t) || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must go on in a new session: %v, %+v", err, b.turn(t, "one").Status)
	}
}

func TestWaitingForASessionIsOneWriteThatKeepsTheOrder(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, mate("a", 0, storedAs("7")), mate("b", 0, storedAs("8")), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	if _, err := b.look(t, "b"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "b")
	if got.StateReason() != v1alpha1.TurnReasonWaitingForSession || got.Status.SessionOrder != 8 {
		t.Errorf("the Turn must wait and keep its order: %+v", got.Status)
	}
	if b.queued() != 0 {
		t.Error("a Turn that waits for its session must not be in anybody's way")
	}
	if _, err := b.look(t, "b"); err != nil || b.turn(t, "b").ResourceVersion != got.ResourceVersion {
		t.Errorf("what is no news must not be written: %v", err)
	}
	if _, err := b.look(t, "a"); err != nil || b.turn(t, "a").BoundTo() != "self" {
		t.Errorf("the first must go: %v, %+v", err, b.turn(t, "a").Status)
	}
}

// TestAMateThatWasBoundAMomentAgoIsNotOverlooked: the cache may still show it as one that waits behind this one.
func TestAMateThatWasBoundAMomentAgoIsNotOverlooked(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, mate("late", -time.Second), mate("early", 0), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	shown, newer := b.turn(t, "late"), b.turn(t, "late")
	newer.ResourceVersion = "1000000"
	boundTo("self")(newer)
	b.turns.queues.wrote(newer)
	b.turns.queues.show(shown)
	if _, err := b.look(t, "early"); err != nil || b.turn(t, "early").StateReason() != v1alpha1.TurnReasonWaitingForSession {
		t.Errorf("the Turn is %q, %v, want it to wait for the one that is bound", b.turn(t, "early").StateReason(), err)
	}
}

// TestAMateThatWaitsKeepsNobodyOut: in a burst there is always one whose last write the cache does not show yet.
func TestAMateThatWaitsKeepsNobodyOut(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, mate("late", -time.Second), mate("early", 0), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	newer := b.turn(t, "late")
	newer.ResourceVersion = "1000000"
	b.turns.wrote.Expect(newer)
	if _, err := b.look(t, "early"); err != nil || b.turn(t, "early").BoundTo() != "self" {
		t.Errorf("the first Turn is %q, %v, want it bound", b.turn(t, "early").StateReason(), err)
	}
}

func TestTurnsOfASessionAreBroughtBack(t *testing.T) {
	running := func(t *v1alpha1.Turn) { boundTo("e")(t) }
	for name, tc := range map[string]struct {
		reason string
		left   *v1alpha1.Turn
		others []*v1alpha1.Turn
		want   []string
	}{
		"the first leaves":      {"the next may go, and no other has news", mate("a", 3*time.Second), []*v1alpha1.Turn{mate("c", time.Second), mate("b", 2*time.Second)}, []string{"b"}},
		"one in between leaves": {"the one after it waits for another now", mate("b", 2*time.Second), []*v1alpha1.Turn{mate("a", 3*time.Second, running), mate("c", time.Second), mate("d", 0)}, []string{"c"}},
		"the last leaves":       {"nobody waited for it", mate("c", 0), []*v1alpha1.Turn{mate("a", 3*time.Second, running)}, nil},
		"its place was unsure":  {"the first is looked at, whatever is known of the one that left", mate("c", 0, storedAs("x")), []*v1alpha1.Turn{mate("a", 3*time.Second), mate("b", time.Second)}, []string{"a"}},
		"cancelled in between":  {"a cancelled Turn is nobody's mate", mate("a", 3*time.Second), []*v1alpha1.Turn{mate("b", 2*time.Second, desires(v1alpha1.DesiredStateCancelled)), mate("c", time.Second)}, []string{"c"}},
		"no session":            {"a Turn without a session has no mates", turnWith(), []*v1alpha1.Turn{mate("a", 0)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			for _, o := range tc.others {
				objects = append(objects, o)
			}
			b := newBench(t, interceptor.Funcs{}, objects...)
			var got []string
			for _, r := range b.turns.matesOf(t.Context(), tc.left) {
				got = append(got, r.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestQueueOfSessionNews(t *testing.T) {
	suspended, cancelled := desires(v1alpha1.DesiredStateSuspended), desires(v1alpha1.DesiredStateCancelled)
	another := func(t *v1alpha1.Turn) { t.UID = "another" }
	for name, tc := range map[string]struct {
		before, after *v1alpha1.Turn
		want          bool
	}{
		"the end":                           {mate("a", 0, boundTo("e")), mate("a", 0, finished(0)), true},
		"a deletion":                        {mate("a", 0), mate("a", 0, deleted), true},
		"one that was made anew":            {mate("a", 0, ordered(100)), mate("a", 0, ordered(100), another), true},
		"and names no session now":          {mate("a", 0), turnWith(another), true},
		"a suspension":                      {mate("a", 0), mate("a", 0, suspended), true},
		"its end":                           {mate("a", 0, suspended), mate("a", 0), true},
		"a call that waits":                 {mate("a", 0, boundTo("e")), mate("a", 0, parked(waiting("x"))), true},
		"a decision":                        {mate("a", 0, parked(waiting("x"))), mate("a", 0, boundTo("e")), true},
		"a cancellation":                    {mate("a", 0), mate("a", 0, cancelled), true},
		"a change before the first look":    {mate("a", 0), mate("a", 0, storedAs("101")), true},
		"a binding":                         {mate("a", 0), mate("a", 0, storedAs("101"), boundTo("e")), false},
		"what it waits for":                 {mate("a", 0), mate("a", 0, storedAs("101"), ordered(100)), false},
		"a change after that":               {mate("a", 0, ordered(100)), mate("a", 0, storedAs("102"), ordered(100)), false},
		"a deletion without a session":      {turnWith(), turnWith(deleted), false},
		"the binding of one that came back": {mate("a", 0, ran), mate("a", 0, storedAs("101"), boundTo("e")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := queueOfSessionNews().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("let through: %t, want %t", got, tc.want)
			}
		})
	}
	if queueOfSessionNews().Create(event.CreateEvent{Object: mate("a", 0)}) || !queueOfSessionNews().Delete(event.DeleteEvent{Object: mate("a", 0)}) {
		t.Error("a Turn that goes has somebody behind it, and one that appears has not")
	}
}

// TestATurnThatLosesItsPlaceBringsTheFirstBack: a Turn that somebody labelled before it was looked at falls behind one that
// waits for it already.
func TestATurnThatLosesItsPlaceBringsTheFirstBack(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, mate("a", 0, storedAs("7")), mate("b", 0, storedAs("8")), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	if _, err := b.look(t, "b"); err != nil || b.turn(t, "b").StateReason() != v1alpha1.TurnReasonWaitingForSession {
		t.Fatalf("the second must wait: %v", err)
	}
	before := b.turn(t, "a")
	after := b.turn(t, "a")
	after.Labels = map[string]string{"team": "support"}
	if err := b.client.Update(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the fake's versions count from what it was given
		if sessionOrder(after) > 8 {
			break
		}
		after.Labels["team"] += "!"
		if err := b.client.Update(t.Context(), after); err != nil {
			t.Fatal(err)
		}
	}
	if !queueOfSessionNews().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Fatal("the change must be let through")
	}
	woken := b.turns.matesOf(t.Context(), after)
	if !slices.ContainsFunc(woken, func(r reconcile.Request) bool { return r.Name == "b" }) {
		t.Fatalf("woken: %v, want the one that is first now", woken)
	}
	if _, err := b.look(t, "b"); err != nil || b.turn(t, "b").BoundTo() != "self" {
		t.Errorf("the one that is first now must go: %v", err)
	}
	if _, err := b.look(t, "a"); err != nil || !strings.Contains(b.turn(t, "a").Status.Conditions[0].Message, `Turn "b"`) {
		t.Errorf("the other must wait for it: %v, %+v", err, b.turn(t, "a").Status)
	}
}
