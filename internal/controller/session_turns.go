package controller

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// compareInSession orders the Turns of a Session: one that was ever bound goes first, then the older one. Turns of the same
// second go in the order in which the API server stored them.
//
// The place of a Turn that was never bound only ever moves back, and a Turn is bound only as the first, by a write that fails
// if it has changed since. So two Turns of one Session are never bound at once, although what the cache shows of the other may
// be old.
func compareInSession(a, b *v1alpha1.Turn) int {
	return cmp.Or(
		cmp.Compare(min(1, b.Epoch()), min(1, a.Epoch())),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(sessionOrder(a), sessionOrder(b)),
		strings.Compare(string(a.UID), string(b.UID)),
	)
}

// sessionOrder is the place of a Turn among those of its second: the resource version of its creation, as long as nobody has
// written it, which the first write of what it waits for keeps. It is 0 where resource versions are no numbers.
func sessionOrder(t *v1alpha1.Turn) int64 {
	if t.Status.SessionOrder > 0 {
		return t.Status.SessionOrder
	}
	version, err := strconv.ParseInt(t.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// keepSessionOrder notes the order of a Turn that waits, before the write of it changes the resource version. It reports
// whether that is news.
func keepSessionOrder(t *v1alpha1.Turn) bool {
	if t.Spec.SessionRef == nil || t.Status.SessionOrder > 0 {
		return false
	}
	t.Status.SessionOrder = sessionOrder(t)
	return t.Status.SessionOrder > 0
}

// holdsSession says whether a Turn keeps the later ones of its Session waiting. A cancelled Turn does so only if it was ever
// bound, until its executor has written its end: what it took belongs to the Session.
func holdsSession(t *v1alpha1.Turn) bool {
	if t.IsFinished() || !t.DeletionTimestamp.IsZero() {
		return false
	}
	return t.Spec.DesiredState != v1alpha1.DesiredStateCancelled || t.Epoch() > 0
}

// aheadOf returns the Turn just ahead of this one in its Session, nil if it is the first.
func aheadOf(t *v1alpha1.Turn, mates []v1alpha1.Turn) *v1alpha1.Turn {
	var last *v1alpha1.Turn
	for i := range mates {
		m := &mates[i]
		if m.UID != t.UID && holdsSession(m) && compareInSession(m, t) < 0 && (last == nil || compareInSession(m, last) > 0) {
			last = m
		}
	}
	return last
}

// matesAhead is the Turn just ahead of this one in its Session, for a view.
func (r *TurnReconciler) matesAhead(t *v1alpha1.Turn) []v1alpha1.Turn {
	if m := r.queues.ahead(t); m != nil {
		return []v1alpha1.Turn{*m}
	}
	return nil
}

// whenSessionBusy makes a Turn wait for the one ahead of it in its Session.
func whenSessionBusy(v view) (decision, bool) {
	why := sessionBusy(v)
	if why == "" {
		return decision{}, false
	}
	return decision{action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: why, after: untilDeadline(v)}, true
}

// sessionBusy says which Turn this one waits for in its Session, empty if it is its turn. It names the one just ahead and not
// the one that runs: so a Turn that ends changes what one other waits for, and not what all do.
func sessionBusy(v view) string {
	m := aheadOf(v.turn, v.mates)
	if m == nil {
		return ""
	}
	message := fmt.Sprintf("Turn %q of Session %q goes first", m.Name, v.turn.Spec.SessionRef.Name)
	switch {
	case m.Spec.DesiredState == v1alpha1.DesiredStateSuspended:
		message += ", and is suspended: set its desiredState to Active or Cancelled"
	case awaitsPeople(m):
		message += fmt.Sprintf(", and waits for a decision: capstan approve %s, or capstan deny %s", m.Name, m.Name)
	}
	return message
}

// awaitsPeople says whether a Turn is parked until somebody decides about its calls.
func awaitsPeople(t *v1alpha1.Turn) bool {
	return isParked(t) && t.StateReason() == v1alpha1.TurnReasonAwaitingApproval
}

// whenSessionDeleted makes a Turn wait until a Session that is being deleted is gone. It gets a new one then.
func whenSessionDeleted(v view) (decision, bool) {
	if v.session.DeletionTimestamp.IsZero() {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonWaitingForSession, after: untilDeadline(v),
		message: fmt.Sprintf("Session %q is being deleted; a new one is made when it is gone", v.session.Name),
	}, true
}

// whenSessionClosed ends a Turn that comes after the budget of its Session was used up. One that was bound before is part of
// what the budget was for.
func whenSessionClosed(v view) (decision, bool) {
	used := translate.BudgetUsed(v.session)
	if used == "" || v.turn.Epoch() > 0 {
		return decision{}, false
	}
	return decision{
		action: end, reason: v1alpha1.TurnReasonSessionClosed,
		message: fmt.Sprintf("the budget of Session %q is used up: %s; raise it, and create a new Turn", v.session.Name, used),
	}, true
}

// whenHistoryLost makes a Turn wait whose Session has lost its history, where the Session's policy says so.
func whenHistoryLost(v view) (decision, bool) {
	why := translate.WaitsForHistory(v.session)
	if why == "" {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonWaitingForSession, after: untilDeadline(v),
		message: fmt.Sprintf("Session %q: %s", v.session.Name, why),
	}, true
}

// enterAlone decides on a Turn that may be bound, while no other Turn of its Session is being bound, until leave is called. One that
// comes while another is comes back soon: a burst in one Session must not keep the workers waiting. Most Turns of a burst do not
// get here, because they are not the first of their Session.
func (r *TurnReconciler) enterAlone(ctx context.Context, v view) (_ view, d decision, leave func(), err error) {
	key := sessionKey(v.turn)
	if _, busy := r.sessions.LoadOrStore(key, nil); busy {
		return v, decision{action: hold, after: staleInterval}, func() {}, nil
	}
	leave = func() { r.sessions.Delete(key) }
	v.mates = r.matesAhead(v.turn)
	if d = decide(v); d.action == admit {
		d, err = r.enter(ctx, v, d)
	}
	return v, d, leave, err
}

// enter decides on a Turn that may be bound by what its Session says, which is made if it is not there. A Turn that was bound
// before has entered it, unless the Session was deleted before its prompt was made.
//
// The Session is read from the API server. An executor writes what a Turn took into the Session before it writes the end of
// the Turn. This Turn got here because the cache showed the end of the one ahead, or showed it no more; so the Session was
// written before this read began, which therefore cannot miss it, as a read of the cache could: it follows Sessions and Turns
// apart. And a budget that was raised before the Turn was created opens the Session for it.
func (r *TurnReconciler) enter(ctx context.Context, v view, d decision) (decision, error) {
	if v.turn.Epoch() > 0 && !lacksPrompt(v.turn) {
		return d, nil
	}
	// Where API servers stamp creations by clocks that differ, a Turn may be older than one that was bound before it came. The queue
	// shows that binding, unless the answer to it was lost.
	last, known := r.queues.lastEntered(v.turn)
	if !known || last != nil && last.BoundTo() == "" && r.slots.Holds(client.ObjectKeyFromObject(last)) {
		return decision{action: hold, after: staleInterval}, nil
	}
	r.entering.RLock()
	defer r.entering.RUnlock()
	var err error
	if v.session, err = r.session(ctx, v.turn); err != nil || v.session == nil {
		return decision{action: hold, after: staleInterval}, err
	}
	for _, p := range []policy{whenSessionDeleted, whenSessionClosed, whenHistoryLost} {
		if other, ok := p(v); ok {
			return other, nil
		}
	}
	r.queues.enter(v.turn)
	return d, nil
}

// session reads the Session of a Turn, or makes it. It is nil if somebody else made it just now, or the namespace is being
// deleted.
func (r *TurnReconciler) session(ctx context.Context, t *v1alpha1.Turn) (*v1alpha1.Session, error) {
	key := sessionKey(t)
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
		return nil, fmt.Errorf("failed to make session %q: %w", key.Name, err)
	}
	return s, nil
}

// sessionEvents keeps the queues of the Sessions up to date, and then brings those Turns back that an event concerns. A new Turn of a
// Session is brought here and not by the reconciler's own watch, so that its queue has it when it is looked at.
func (r *TurnReconciler) sessionEvents() handler.EventHandler {
	news, itself, others := queueOfSessionNews(), &handler.EnqueueRequestForObject{}, handler.EnqueueRequestsFromMapFunc(r.matesOf)
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q turnQueue) {
			if t, ok := e.Object.(*v1alpha1.Turn); ok && t.Spec.SessionRef != nil {
				r.queues.show(t)
				itself.Create(ctx, e, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q turnQueue) {
			if t, ok := e.ObjectNew.(*v1alpha1.Turn); ok {
				if e.ObjectOld.GetUID() != t.UID {
					r.queues.forget(e.ObjectOld.GetUID())
				}
				r.queues.show(t)
			}
			if news.Update(e) {
				others.Update(ctx, e, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q turnQueue) {
			r.queues.forget(e.Object.GetUID())
			others.Delete(ctx, e, q)
		},
	}
}

// matesOf maps a Turn that has left the queue of its Session, or whose place or state there has changed, to those that this
// may concern: the first, which may now go, and the next after it, which named it. All others go on waiting for the same Turn.
func (r *TurnReconciler) matesOf(_ context.Context, o client.Object) []reconcile.Request {
	t, ok := o.(*v1alpha1.Turn)
	if !ok || t.Spec.SessionRef == nil {
		return nil
	}
	first, next := r.queues.first(sessionKey(t), t)
	if first == next {
		return unbound(first)
	}
	return append(unbound(first), unbound(next)...)
}

// firstOf maps a Session to the first Turn of its queue: all others wait for that one.
func (r *TurnReconciler) firstOf(_ context.Context, o client.Object) []reconcile.Request {
	first, _ := r.queues.first(client.ObjectKeyFromObject(o), nil)
	return unbound(first)
}

// unbound is a request for a Turn that no executor has, none if t is nil.
func unbound(t *v1alpha1.Turn) []reconcile.Request {
	if t == nil || t.BoundTo() != "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(t)}}
}
