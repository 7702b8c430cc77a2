package controller

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

var talk = client.ObjectKey{Namespace: "helpdesk", Name: "talk"}

func (b *testEnv) reconcileSession(t *testing.T) (ctrl.Result, error) {
	t.Helper()
	r := &SessionReconciler{Client: b.client, Live: b.turns.Live, Now: b.turns.Now, ServerClock: b.turns.ServerClock, Turns: b.turns}
	return r.Reconcile(t.Context(), reconcile.Request{NamespacedName: talk})
}

func (b *testEnv) session(t *testing.T) *v1alpha1.Session {
	t.Helper()
	var s v1alpha1.Session
	if err := b.client.Get(t.Context(), talk, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (b *testEnv) hasSession(t *testing.T) bool {
	t.Helper()
	err := b.client.Get(t.Context(), talk, &v1alpha1.Session{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

// showing returns a client that returns an old version of one Session.
func showing(c client.WithWatch, old client.Object) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if s, ok := o.(*v1alpha1.Session); ok && key == client.ObjectKeyFromObject(old) {
				old.(*v1alpha1.Session).DeepCopyInto(s)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
}

func keptFor(seconds int32) func(*v1alpha1.Session) {
	return func(s *v1alpha1.Session) { s.Spec.TTLSecondsAfterLastTurn = &seconds }
}

func lastTurn(ago time.Duration) func(*v1alpha1.Session) {
	return func(s *v1alpha1.Session) { s.Status.LastTurnTime = new(metav1.NewMicroTime(now.Add(-ago))) }
}

func beingDeleted(s *v1alpha1.Session) {
	s.Finalizers = []string{"example.com/keep"}
	s.DeletionTimestamp = &metav1.Time{Time: now}
}

func TestSessionReadiness(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionWith(usedTurns(2), keptFor(7200)))
	checkReady := func(status metav1.ConditionStatus, reason, message string, stalled bool) {
		t.Helper()
		if result, err := b.reconcileSession(t); err != nil || result.RequeueAfter != time.Hour {
			t.Errorf("got %v, %v, want a requeue for the end of the time to live", result, err)
		}
		s := b.session(t)
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Status != status || c.Reason != reason || c.Message != message || c.ObservedGeneration != s.Generation {
			t.Errorf("Ready is %+v, want %s, %s: %s", c, status, reason, message)
		}
		if got := meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionStalled); got != stalled {
			t.Errorf("Stalled is %t, want %t", got, stalled)
		}
		if s.Status.ObservedGeneration != s.Generation {
			t.Errorf("observedGeneration is %d, want %d", s.Status.ObservedGeneration, s.Generation)
		}
	}
	checkReady(metav1.ConditionTrue, v1alpha1.ReasonOpen, "the session takes turns", false)
	version := b.session(t).ResourceVersion
	checkReady(metav1.ConditionTrue, v1alpha1.ReasonOpen, "the session takes turns", false)
	if got := b.session(t).ResourceVersion; got != version {
		t.Error("an unchanged status was written")
	}

	s := b.session(t)
	s.Status.Turns = 3
	if err := b.client.Status().Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	checkReady(metav1.ConditionFalse, v1alpha1.ReasonBudgetUsed,
		"the budget is used up: 3 of 3 turns (spec.budget.maxTurns); raise it to open the session again", true)
	s = b.session(t)
	s.Spec.Budget.MaxTurns = new(int32(4))
	if err := b.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	checkReady(metav1.ConditionTrue, v1alpha1.ReasonOpen, "the session takes turns", false)
	if got := b.session(t).Status.Turns; got != 3 {
		t.Errorf("status.turns is %d: only executors write the totals", got)
	}
}

// TestSessionWithoutItsHistory checks that a Session is Stalled while its Turns wait for its history.
func TestSessionWithoutItsHistory(t *testing.T) {
	for onLoss, want := range map[v1alpha1.OnHistoryLoss]string{
		v1alpha1.OnHistoryLossWait: v1alpha1.ReasonHistoryLost, v1alpha1.OnHistoryLossContinue: v1alpha1.ReasonOpen,
	} {
		s := sessionWith(usedTurns(2))
		s.Spec.OnHistoryLoss = onLoss
		translate.LoseHistory(s, 1, now)
		setSessionConditions(s, now)
		c, stalled := ready(s.Status.Conditions, s.Generation), meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionStalled)
		if c == nil || c.Reason != want || (stalled != nil) != (want == v1alpha1.ReasonHistoryLost) ||
			stalled != nil && stalled.Reason != want {
			t.Errorf("with onHistoryLoss %s Ready is %+v and Stalled %+v, want the reason %s", onLoss, c, stalled, want)
		}
	}
}

// TestSessionWriteConflict checks that a conflict when the conditions are written causes no error, and that the write
// is repeated.
func TestSessionWriteConflict(t *testing.T) {
	b := newTestEnv(t, failStatusWrites(apierrors.NewConflict(schema.GroupResource{Resource: "sessions"}, "talk", nil)), sessionWith())
	if result, err := b.reconcileSession(t); err != nil || result.RequeueAfter != staleInterval {
		t.Errorf("got %v, %v, want a quick requeue", result, err)
	}
	if _, err := b.reconcileSession(t); err != nil || len(b.session(t).Status.Conditions) == 0 {
		t.Errorf("the second write must succeed: %v", err)
	}
}

func TestSessionEnds(t *testing.T) {
	named := sessionTurn("names", 0)
	for name, tc := range map[string]struct {
		reason  string
		session *v1alpha1.Session
		turns   []client.Object
		after   time.Duration
		kept    bool
	}{
		"forever":        {"a Session without a time to live is kept", sessionWith(), nil, 0, true},
		"since creation": {"without Turns, the time counts from the creation", sessionWith(keptFor(3601)), nil, time.Second, true},
		"over":           {"its time is over at this second", sessionWith(keptFor(3600)), nil, 0, false},
		"since last": {
			"with Turns, the time counts from the end of the last",
			sessionWith(keptFor(3600), lastTurn(time.Minute)), nil, 59 * time.Minute, true,
		},
		"over since last": {"it ends after the time to live", sessionWith(keptFor(3600), lastTurn(time.Hour)), nil, 0, false},
		"named":           {"an unfinished Turn keeps it", sessionWith(keptFor(60)), []client.Object{named}, 0, true},
		"named by finished": {
			"a finished Turn does not keep it", sessionWith(keptFor(60)),
			[]client.Object{sessionTurn("done", 0, finished(0))},
			0, false,
		},
		"being deleted": {"a Session that is being deleted is left alone", sessionWith(keptFor(60), beingDeleted), nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, m := newTestEnv(t, interceptor.Funcs{}, append(tc.turns, tc.session)...), &expiredObjects{}
			b.turns.Memories = m
			if result, err := b.reconcileSession(t); err != nil || result.RequeueAfter != tc.after {
				t.Errorf("%s: got %v, %v, want a requeue after %s", tc.reason, result, err, tc.after)
			}
			if got := m.notes[string(tc.session.UID)]; got.Equal(forever) == tc.kept || tc.kept && !got.IsZero() {
				t.Errorf("%s: the note about the memories of users counts until %s, want one if the Session is deleted: %t",
					tc.reason, got, !tc.kept)
			}
			if got := b.hasSession(t); got != tc.kept {
				t.Errorf("%s: the Session exists: %t, want %t", tc.reason, got, tc.kept)
			}
		})
	}
}

// TestSessionIsKeptForUncachedTurn checks that a Session is not deleted if it has a Turn that the cache does not show
// yet.
func TestSessionIsKeptForUncachedTurn(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionWith(keptFor(60)), sessionTurn("just-made", 0))
	m := &expiredObjects{}
	b.turns.Memories = m
	empty := interceptor.NewClient(b.client, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
	})
	r := &SessionReconciler{Client: empty, Live: b.client, Now: b.turns.Now, ServerClock: b.turns.ServerClock, Turns: b.turns}
	if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: talk}); err != nil ||
		result.RequeueAfter != staleInterval {
		t.Errorf("got %v, %v, want a requeue for when the cache is up to date", result, err)
	}
	if !b.hasSession(t) || len(m.notes) > 0 {
		t.Errorf("the session of a new Turn was deleted, or has the notes %v", m.notes)
	}
}

// TestSessionWithoutDeletionHasNoNote checks that the memories of a Session do not outlive it if its deletion was not
// attempted because the API server did not list its Turns. People may delete the Session next.
func TestSessionWithoutDeletionHasNoNote(t *testing.T) {
	for name, failure := range map[string]error{"5xx": broken, "404": notFound, "cut off": io.ErrUnexpectedEOF} {
		t.Run(name, func(t *testing.T) {
			b, m, listed := newTestEnv(t, interceptor.Funcs{}, sessionWith(keptFor(60))), &expiredObjects{}, false
			b.turns.Memories = m
			live := interceptor.NewClient(b.client, interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
					listed = len(m.notes) == 1
					return failure
				},
			})
			r := &SessionReconciler{Client: b.client, Live: live, Now: b.turns.Now, ServerClock: b.turns.ServerClock, Turns: b.turns}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: talk}); !errors.Is(err, failure) {
				t.Errorf("Reconcile = %v, want %v", err, failure)
			}
			if !listed || !b.hasSession(t) || len(m.notes) > 0 {
				t.Errorf("listed after the note: %t; the notes are %v afterwards; want none, and the Session", listed, m.notes)
			}
		})
	}
}

// TestChangedSessionIsNotDeleted checks that a Session is not deleted if it has changed since it was read: its time to
// live may have changed, or a Turn may have ended.
func TestChangedSessionIsNotDeleted(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionWith(keptFor(60)))
	old := b.session(t)
	s := b.session(t)
	s.Spec.TTLSecondsAfterLastTurn = nil
	if err := b.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	stale := showing(b.client, old)
	r := &SessionReconciler{Client: stale, Live: b.client, Now: b.turns.Now, ServerClock: b.turns.ServerClock, Turns: b.turns}
	if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: talk}); err != nil ||
		result.RequeueAfter != staleInterval {
		t.Errorf("got %v, %v, want a requeue", result, err)
	}
	if !b.hasSession(t) {
		t.Error("a session that must be kept was deleted")
	}
}

func TestSessionChanged(t *testing.T) {
	changed := func(f func(*v1alpha1.Session)) *v1alpha1.Session { return sessionWith(f) }
	for name, tc := range map[string]struct {
		after          *v1alpha1.Session
		changed, opens bool
	}{
		"another spec":    {changed(func(s *v1alpha1.Session) { s.Generation++ }), true, true},
		"another session": {changed(func(s *v1alpha1.Session) { s.UID = "another" }), true, true},
		"totals":          {changed(func(s *v1alpha1.Session) { s.Status.Turns = 1 }), true, false},
		"usage":           {changed(func(s *v1alpha1.Session) { s.Status.Usage = &v1alpha1.Usage{TotalTokens: 1} }), true, false},
		"conditions": {changed(func(s *v1alpha1.Session) {
			s.Status.ObservedGeneration = 1
			s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady}}
		}), false, false},
		"a label": {changed(func(s *v1alpha1.Session) { s.Labels = map[string]string{"a": "b"} }), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := event.UpdateEvent{ObjectOld: sessionWith(), ObjectNew: tc.after}
			if got := sessionChanged().Update(e); got != tc.changed {
				t.Errorf("sessionChanged passes the change: %t, want %t", got, tc.changed)
			}
			if got := sessionMayOpen().Update(e); got != tc.opens {
				t.Errorf("sessionMayOpen passes the change: %t, want %t", got, tc.opens)
			}
		})
	}
	if !sessionMayOpen().Delete(event.DeleteEvent{Object: sessionWith()}) ||
		sessionMayOpen().Create(event.CreateEvent{Object: sessionWith()}) {
		t.Error("the deletion of a session must pass, because its Turns may create another; its creation must not")
	}
}

func TestTurnLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		after *v1alpha1.Turn
		want  bool
	}{
		"its end":                   {sessionTurn("a", 0, finished(0)), true},
		"a Turn that was recreated": {sessionTurn("a", 0, func(t *v1alpha1.Turn) { t.UID = "another" }), true},
		"a binding":                 {sessionTurn("a", 0, boundTo("e")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turnLeft().Update(event.UpdateEvent{ObjectOld: sessionTurn("a", 0), ObjectNew: tc.after}); got != tc.want {
				t.Errorf("passes: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestNoTurnEntersSessionDuringDeletion checks that no Turn can enter between the list of the Session's Turns
// and the deletion.
func TestNoTurnEntersSessionDuringDeletion(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now), sessionWith(keptFor(60)))
	entered, listed := 0, 0
	b.turns.Live = interceptor.NewClient(b.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			entered++
			if unlock, ok := b.turns.sessions.TryLock(talk); ok {
				unlock()
				t.Error("a Session may be deleted while a Turn enters it")
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			listed++
			if unlock, ok := b.turns.sessions.TryLock(talk); ok {
				unlock()
				t.Error("a Turn may enter a Session while it is deleted")
			}
			return c.List(ctx, list, opts...)
		},
	})
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if err := b.client.Delete(t.Context(), b.turn(t, "one")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reconcileSession(t); err != nil || b.hasSession(t) {
		t.Errorf("the Session must be deleted: %v", err)
	}
	if entered != 1 || listed != 1 {
		t.Errorf("the Session was entered %d times and its Turns were listed %d times, want once each", entered, listed)
	}
}

// TestSessionDeletionDelaysNoOtherSession checks that a Turn of another Session is bound while the API server has not
// answered the deletion of a Session. If the Turn waited for the deletion, the test would not end.
func TestSessionDeletionDelaysNoOtherSession(t *testing.T) {
	inOther := func(t *v1alpha1.Turn) { t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "other"} }
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inOther), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now), sessionWith(keptFor(60)))
	bindOther := func() {
		if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
			t.Errorf("the Turn of another Session must be bound during the deletion: %v", err)
		}
	}
	deletions := 0
	slow := interceptor.NewClient(b.client, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			deletions++
			bindOther()
			return c.Delete(ctx, o, opts...)
		},
	})
	r := &SessionReconciler{Client: slow, Live: b.client, Now: b.turns.Now, ServerClock: b.turns.ServerClock, Turns: b.turns}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: talk}); err != nil || b.hasSession(t) || deletions != 1 {
		t.Errorf("the Session must be deleted once: %d deletions, %v", deletions, err)
	}
}

// TestSessionIsKeptWhileTurnEnters checks that a Session is not deleted while one of its Turns is being bound, and that
// its deletion is tried again.
func TestSessionIsKeptWhileTurnEnters(t *testing.T) {
	b, m := newTestEnv(t, interceptor.Funcs{}, sessionWith(keptFor(60))), &expiredObjects{}
	b.turns.Memories = m
	leave, ok := b.turns.sessions.TryLock(talk)
	if !ok {
		t.Fatal("the Session is locked")
	}
	if result, err := b.reconcileSession(t); err != nil || result.RequeueAfter != staleInterval || !b.hasSession(t) || len(m.notes) > 0 {
		t.Errorf("got %v, %v and the notes %v; want the Session to be kept without a note, and a requeue", result, err, m.notes)
	}
	leave()
	if _, err := b.reconcileSession(t); err != nil || b.hasSession(t) {
		t.Errorf("the Session must be deleted once no Turn enters it: %v", err)
	}
	if _, ok := b.turns.sessions.TryLock(talk); !ok {
		t.Error("the Session is still locked after the deletion")
	}
}
