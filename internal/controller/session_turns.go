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
	key := client.ObjectKey{Namespace: v.turn.Namespace, Name: v.turn.Spec.SessionRef.Name}
	if _, busy := r.sessions.LoadOrStore(key, nil); busy {
		return v, decision{action: hold, after: staleInterval}, func() {}, nil
	}
	leave = func() { r.sessions.Delete(key) }
	if v.mates, err = sessionMates(ctx, r.Client, key.Namespace, key.Name); err != nil {
		return v, decision{}, leave, err
	}
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
	for i := range v.mates {
		// Where API servers stamp creations by clocks that differ, a Turn may be older than one that was bound before it came.
		if m := &v.mates[i]; m.UID != v.turn.UID && (r.wrote.IsStale(m) || m.BoundTo() == "" && r.slots.Holds(client.ObjectKeyFromObject(m))) {
			return decision{action: hold, after: staleInterval}, nil
		}
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
	return d, nil
}

// session reads the Session of a Turn, or makes it. It is nil if somebody else made it just now, or the namespace is being
// deleted.
func (r *TurnReconciler) session(ctx context.Context, t *v1alpha1.Turn) (*v1alpha1.Session, error) {
	key := client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
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

// sessionMates are the unfinished Turns of a Session, itself included, as the cache has them: they must not be changed.
func sessionMates(ctx context.Context, c client.Reader, namespace, session string) ([]v1alpha1.Turn, error) {
	var turns v1alpha1.TurnList
	err := c.List(ctx, &turns, client.InNamespace(namespace), client.MatchingFields{indexTurnSession: session}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("failed to list the turns of session %q: %w", session, err)
	}
	return turns.Items, nil
}

// matesOf maps a Turn that has left the queue of its Session, or whose place or state there has changed, to those that this
// may concern: the first, which may now go, and the next after it, which named it. All others go on waiting for the same Turn.
func (r *TurnReconciler) matesOf(ctx context.Context, o client.Object) []reconcile.Request {
	t, ok := o.(*v1alpha1.Turn)
	if !ok || t.Spec.SessionRef == nil {
		return nil
	}
	mates, err := sessionMates(ctx, r.Client, t.Namespace, t.Spec.SessionRef.Name)
	if err != nil {
		reportUnlisted(ctx, err)
		return nil
	}
	first, next := firstAfter(nil, mates), firstAfter(t, mates)
	var requests []reconcile.Request
	for _, m := range []*v1alpha1.Turn{first, next} {
		if m != nil && m.BoundTo() == "" && (m != first || len(requests) == 0) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return requests
}

// firstAfter is the first Turn of a Session's queue that comes after this one, or of all.
func firstAfter(t *v1alpha1.Turn, mates []v1alpha1.Turn) *v1alpha1.Turn {
	var first *v1alpha1.Turn
	for i := range mates {
		m := &mates[i]
		after := t == nil || (m.UID != t.UID && compareInSession(m, t) > 0)
		if after && holdsSession(m) && (first == nil || compareInSession(m, first) < 0) {
			first = m
		}
	}
	return first
}

// firstOf maps a Session to the first Turn of its queue: all others wait for that one.
func (r *TurnReconciler) firstOf(ctx context.Context, o client.Object) []reconcile.Request {
	mates, err := sessionMates(ctx, r.Client, o.GetNamespace(), o.GetName())
	if err != nil {
		reportUnlisted(ctx, err)
		return nil
	}
	if m := firstAfter(nil, mates); m != nil && m.BoundTo() == "" {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(m)}}
	}
	return nil
}
