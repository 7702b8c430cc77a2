package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// whenSessionBusy makes a Turn wait for the Turn ahead of it in its Session.
func whenSessionBusy(v snapshot) (decision, bool) {
	why := sessionBusyReason(v)
	if why == "" {
		return decision{}, false
	}
	return decision{action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: why, after: untilDeadline(v)}, true
}

// sessionBusyReason returns a message that says which Turn of its Session the Turn waits for. It returns an empty
// string if the Turn is first. The message names the Turn directly ahead, and not the running one, so that the end of a
// Turn changes the status of only one other Turn.
func sessionBusyReason(v snapshot) string {
	m := v.ahead
	if m == nil {
		return ""
	}
	message := fmt.Sprintf("Turn %q of Session %q goes first", m.Name, v.turn.Spec.SessionRef.Name)
	switch {
	case m.Spec.DesiredState == v1alpha1.DesiredStateSuspended:
		message += ", and is suspended: set its desiredState to Active or Cancelled"
	case awaitsPeople(m):
		message += ", and requires a decision: " + translate.HowToDecide(m)
	}
	return message
}

// awaitsPeople reports whether a Turn is parked until a person decides about its calls.
func awaitsPeople(t *v1alpha1.Turn) bool {
	return isParked(t) && t.StateReason() == v1alpha1.TurnReasonAwaitingApproval
}

// whenSessionDeleted makes a Turn wait while its Session is being deleted. After that, the Turn gets a new Session.
func whenSessionDeleted(v snapshot) (decision, bool) {
	if v.session.DeletionTimestamp.IsZero() {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonWaitingForSession, after: untilDeadline(v),
		message: fmt.Sprintf("Session %q is being deleted; a new one is created after that", v.session.Name),
	}, true
}

// whenSessionClosed ends a new Turn if the budget of its Session is used up. A Turn that was bound before
// continues: it started within the budget.
func whenSessionClosed(v snapshot) (decision, bool) {
	used := translate.BudgetUsed(v.session)
	if used == "" || v.turn.Epoch() > 0 {
		return decision{}, false
	}
	return decision{
		action: end, reason: v1alpha1.TurnReasonSessionClosed,
		message: fmt.Sprintf("the budget of Session %q is used up: %s; raise it, and create a new Turn", v.session.Name, used),
	}, true
}

// whenHistoryLost makes a Turn wait if its Session has lost its history and the Session's policy says that Turns
// wait.
func whenHistoryLost(v snapshot) (decision, bool) {
	why := translate.WaitsForHistory(v.session)
	if why == "" {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonWaitingForSession, after: untilDeadline(v),
		message: fmt.Sprintf("Session %q: %s", v.session.Name, why),
	}, true
}

// enterExclusively decides about a Turn that may be bound. Until leave is called, no other Turn of its Session is
// bound, and the Session is not deleted when its time is over.
//
// If another Turn of the Session is being bound, or the Session is being deleted, enterExclusively does not wait, but
// returns the action hold, and the Turn is reconciled again soon. So many Turns of one Session cannot block the
// workers.
func (r *TurnReconciler) enterExclusively(ctx context.Context, v snapshot) (_ snapshot, d decision, leave func(), err error) {
	leave, ok := r.sessions.TryLock(scheduler.SessionKey(v.turn))
	if !ok {
		return v, decision{action: hold, after: staleInterval}, leave, nil
	}
	completed := false
	defer func() {
		if !completed {
			leave() // after a panic
		}
	}()
	v.ahead = r.sessions.Ahead(v.turn)
	if d = decide(v); d.action == schedule {
		d, err = r.enter(ctx, v, d)
	}
	completed = true
	return v, d, leave, err
}

// enter checks the Session of a Turn that may be bound, and decides whether the Turn enters it. It creates the Session
// if it does not exist. A Turn that was bound before has already entered, unless it still has no prompt.
//
// The Session is read from the API server, because the cache could miss the last Turn's usage:
//
//  1. An executor writes the usage of a Turn into the Session before it writes the end of the Turn.
//  2. enter is called only after the cache has shown the end of the Turn ahead, or no longer shows that Turn. So the
//     Session was written before it is read here.
//  3. The cache watches Sessions and Turns separately, so its version of the Session may be older than its Turns.
//
// Reading from the API server also means that a Session is open for a Turn if its budget was raised before the Turn was
// created.
func (r *TurnReconciler) enter(ctx context.Context, v snapshot, d decision) (decision, error) {
	if v.turn.Epoch() > 0 && !lacksPrompt(v.turn) {
		return d, nil
	}
	// The clocks of several API servers may differ, so this Turn may seem to be older than a Turn that was bound before
	// this Turn was created. r.sessions orders such Turns by the binding, unless the response to the binding was lost.
	last, known := r.sessions.LastEntered(v.turn)
	if !known || last != nil && last.BoundTo() == "" && r.slots.HasSlot(client.ObjectKeyFromObject(last)) {
		return decision{action: hold, after: staleInterval}, nil
	}
	var err error
	v.session, err = r.getOrCreateSession(ctx, v.turn)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || writeerror.IsDenied(err) {
		// A quota or an admission policy refuses the Session, usually until a person acts.
		return decision{
			action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: err.Error(), after: min(untilDeadline(v), maxRetryDelay),
		}, nil
	}
	if err != nil || v.session == nil {
		return decision{action: hold, after: staleInterval}, err
	}
	for _, p := range []policy{whenSessionDeleted, whenSessionClosed, whenHistoryLost} {
		if other, ok := p(v); ok {
			return other, nil
		}
	}
	r.sessions.Enter(v.turn)
	return d, nil
}

// getOrCreateSession reads or creates the Session of a Turn. It returns nil if another client created the Session
// just now, or if the namespace is being deleted.
func (r *TurnReconciler) getOrCreateSession(ctx context.Context, t *v1alpha1.Turn) (*v1alpha1.Session, error) {
	key := scheduler.SessionKey(t)
	s := &v1alpha1.Session{}
	err := r.Live.Get(ctx, key, s)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("failed to get session %q: %w", key.Name, err)
	}
	if err == nil {
		return s, nil
	}
	s = &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	switch err := r.Client.Create(ctx, s); {
	case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil //nolint:nilnil // because "look again" is an answer, not an error
	case err != nil:
		return nil, fmt.Errorf("failed to create session %q: %w", key.Name, err)
	}
	return s, nil
}

// sessionEvents returns a handler that updates the queues of the Sessions, and then enqueues the Turns that an event
// affects. It also enqueues the new Turns of Sessions, so that a Turn is in the queue of its Session before it is
// reconciled; the reconciler's own watch does not enqueue them.
func (r *TurnReconciler) sessionEvents() handler.EventHandler {
	changed, itself, others := sessionQueueChanged(), &handler.EnqueueRequestForObject{},
		handler.EnqueueRequestsFromMapFunc(r.affectedTurns)
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q turnQueue) {
			if t, ok := e.Object.(*v1alpha1.Turn); ok && t.Spec.SessionRef != nil {
				r.sessions.Observe(t)
				itself.Create(ctx, e, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q turnQueue) {
			if t, ok := e.ObjectNew.(*v1alpha1.Turn); ok {
				if e.ObjectOld.GetUID() != t.UID {
					r.sessions.Forget(e.ObjectOld.GetUID())
				}
				r.sessions.Observe(t)
			}
			if changed.Update(e) {
				others.Update(ctx, e, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q turnQueue) {
			r.sessions.Forget(e.Object.GetUID())
			others.Delete(ctx, e, q)
		},
	}
}

// affectedTurns maps a Turn that has left its Session's queue, or has changed there, to the Turns that this may affect:
// the first Turn of the queue, which may now be bound, and the Turn after the changed one, whose message names the
// changed one. All other Turns still wait for the same Turn as before.
func (r *TurnReconciler) affectedTurns(_ context.Context, o client.Object) []reconcile.Request {
	t, ok := o.(*v1alpha1.Turn)
	if !ok || t.Spec.SessionRef == nil {
		return nil
	}
	first, next := r.sessions.First(scheduler.SessionKey(t), t)
	if first == next {
		return requestIfUnbound(first)
	}
	return append(requestIfUnbound(first), requestIfUnbound(next)...)
}

// firstTurnOf maps a Session to the first Turn of its queue. All other Turns wait for that Turn.
func (r *TurnReconciler) firstTurnOf(_ context.Context, o client.Object) []reconcile.Request {
	first, _ := r.sessions.First(client.ObjectKeyFromObject(o), nil)
	return requestIfUnbound(first)
}

// requestIfUnbound returns a request for a Turn that is not bound. It returns no request if t is nil or bound.
func requestIfUnbound(t *v1alpha1.Turn) []reconcile.Request {
	if t == nil || t.BoundTo() != "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(t)}}
}
