package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// waits is what has become of what a parked Turn waits for, as the cache has it.
type waits struct {
	// decided says of each of the Turn's pendingApprovals whether somebody has decided.
	decided []bool
	// unused says why decisions about them may not be used, empty if there are none of that kind.
	unused string
	// unfinished are those of the Turn's awaitedTurns that have not ended; they are the cache's.
	unfinished []*v1alpha1.Turn
}

// isParked says whether an executor has given the Turn back because it waits for people or for the Turns of sub-agents, and
// nobody has seen since that it may go on.
func isParked(t *v1alpha1.Turn) bool {
	if t.IsFinished() || t.BoundTo() != "" {
		return false
	}
	reason := t.StateReason()
	return reason == v1alpha1.TurnReasonAwaitingApproval || reason == v1alpha1.TurnReasonWaitingForSubAgent
}

// whenAwaiting leaves a parked Turn where it is until there is something for its executor to do: somebody has decided about a
// call, or the time for that is over, or all awaited Turns have ended.
func whenAwaiting(v view) (decision, bool) {
	t := v.turn
	if !isParked(t) || (len(t.Status.AwaitedTurns) > 0 && len(v.waits.unfinished) == 0) {
		return decision{}, false
	}
	d := decision{action: park}
	d.reason, d.message = translate.Awaits(t)
	if v.waits.unused != "" {
		d.message += "; " + v.waits.unused
		d.wakeIn(unusedRecheck)
	}
	for i, p := range t.Status.PendingApprovals {
		left := p.ExpiryTime.Sub(v.now)
		// An older version shows too little of a call: its executor asks again.
		if v.waits.isDecided(i) || left <= 0 || p.RequestID == "" {
			return decision{}, false
		}
		d.wakeIn(left)
	}
	if len(t.Status.PendingApprovals) == 0 {
		if len(t.Status.AwaitedTurns) == 0 {
			return decision{}, false // nothing is waited for
		}
		if !v.childParked() {
			d.wakeIn(untilDeadline(v))
		}
	}
	return d, true
}

// unusedRecheck is how often Turns are looked at that somebody has decided about in a way that may not be used: what is amiss
// is in objects that nobody watches.
const unusedRecheck = 10 * time.Second

// wakeIn looks at the Turn again after some time at the latest.
func (d *decision) wakeIn(after time.Duration) {
	if after = max(after, time.Millisecond); d.after == 0 || after < d.after {
		d.after = after
	}
}

func (w waits) isDecided(i int) bool { return i < len(w.decided) && w.decided[i] }

// childParked says whether a Turn that is waited for waits for people itself.
func (v view) childParked() bool {
	return slices.ContainsFunc(v.waits.unfinished, func(t *v1alpha1.Turn) bool { return t.Status.ParkedTime != nil })
}

// clockStops says whether the time of a parked Turn does not run: while people are waited for, by it or by a Turn that it
// waits for.
func (v view) clockStops() bool { return len(v.turn.Status.PendingApprovals) > 0 || v.childParked() }

// waits finds out what has become of what a Turn waits for that is bound to nobody. The cache shows a child before it shows that its parent
// waits for it, as one watch follows both: so one that is not there has ended or is gone.
func (r *TurnReconciler) waits(ctx context.Context, t *v1alpha1.Turn) (waits, error) {
	var w waits
	if len(t.Status.PendingApprovals) > 0 {
		var err error
		if w.decided, w.unused, err = r.decided(ctx, t); err != nil {
			return w, err
		}
	}
	if len(t.Status.AwaitedTurns) > 0 {
		children, err := r.children(ctx, t)
		if err != nil {
			return w, err
		}
		for i := range children {
			if slices.Contains(t.Status.AwaitedTurns, children[i].Name) {
				w.unfinished = append(w.unfinished, &children[i])
			}
		}
	}
	return w, nil
}

// decided says of each of the Turn's pendingApprovals whether somebody has decided, and why there are decisions that may not be
// used.
func (r *TurnReconciler) decided(ctx context.Context, t *v1alpha1.Turn) (decided []bool, unused string, err error) {
	var known v1alpha1.ToolApprovalList
	err = r.Client.List(ctx, &known, client.InNamespace(t.Namespace), client.MatchingFields{indexApprovalTurn: t.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, "", fmt.Errorf("failed to list the decisions about calls of the turn: %w", err)
	}
	var about []v1alpha1.ToolApproval
	for _, a := range known.Items {
		if slices.ContainsFunc(t.Status.PendingApprovals, func(p v1alpha1.PendingApproval) bool { return translate.Decides(&a, t, p) }) {
			about = append(about, a)
		}
	}
	checked, unused, err := r.Approvals(ctx, about)
	if err != nil {
		return nil, "", err
	}
	for _, p := range t.Status.PendingApprovals {
		decided = append(decided, slices.ContainsFunc(checked, func(a v1alpha1.ToolApproval) bool { return translate.Decides(&a, t, p) }))
	}
	return decided, unused, nil
}

// park writes what is news of a Turn that goes on waiting: mostly nothing.
func (r *TurnReconciler) park(ctx context.Context, v view, d decision) error {
	news := translate.PauseClock(v.turn, v.clockStops(), v.now)
	if !translate.Wait(v.turn, d.reason, d.message, v.now) && !news {
		return nil
	}
	return r.updateStatus(ctx, v.turn)
}

// children are the unfinished Turns of a Turn's sub-agents, as the cache has them: they must not be changed.
func (r *TurnReconciler) children(ctx context.Context, t *v1alpha1.Turn) ([]v1alpha1.Turn, error) {
	var turns v1alpha1.TurnList
	err := r.Client.List(ctx, &turns, client.InNamespace(t.Namespace), client.MatchingFields{indexTurnParent: string(t.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("failed to list the turns of sub-agents: %w", err)
	}
	return turns.Items, nil
}

// whenSubAgentsWork asks for the ends of the Turns that a Turn waits for, before the Turn itself ends: so what they take is known by
// then, and nobody works on for a Turn that has ended. A Turn whose time is over waits for that as long as for an executor.
func whenSubAgentsWork(v view) (decision, bool) {
	t := v.turn
	if t.BoundTo() != "" || len(v.waits.unfinished) == 0 {
		return decision{}, false
	}
	if t.Spec.DesiredState == v1alpha1.DesiredStateCancelled {
		return decision{action: gather}, true
	}
	active := t.Spec.DesiredState != v1alpha1.DesiredStateSuspended
	if left := v.untilGivenUp(); active && untilDeadline(v) <= 0 && left > 0 {
		return decision{action: gather, after: left}, true
	}
	return decision{}, false
}

// gather asks for the ends of the Turns that a Turn waits for.
func (r *TurnReconciler) gather(ctx context.Context, v view) error {
	for _, child := range v.waits.unfinished {
		if child.Spec.DesiredState == v1alpha1.DesiredStateCancelled || !child.DeletionTimestamp.IsZero() {
			continue
		}
		if err := r.cancelTurn(ctx, child.DeepCopy()); client.IgnoreNotFound(err) != nil { // the cache has the child itself
			return err
		}
	}
	return nil
}

// whenAbandoned cancels the Turn of a sub-agent for which nobody waits any more.
func whenAbandoned(v view) (decision, bool) {
	if !v.abandoned || v.turn.Spec.DesiredState == v1alpha1.DesiredStateCancelled {
		return decision{}, false
	}
	return decision{action: cancel}, true
}

// isAbandoned says whether a Turn is one of a sub-agent whose parent was cancelled, has ended or is gone. The cache has every
// parent that has not ended: it came before its child.
func (r *TurnReconciler) isAbandoned(ctx context.Context, t *v1alpha1.Turn) (bool, error) {
	owner, ok := translate.Parent(t)
	if _, called := t.Labels[translate.ParentLabel]; !ok || !called {
		return false, nil // somebody else has made it, who may let Turns own each other
	}
	var parent v1alpha1.Turn
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: owner.Name}, &parent)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("failed to get turn %q, which has called this one: %w", owner.Name, err)
	}
	return parent.UID != owner.UID || isOver(&parent), nil
}

// isOver says whether nobody waits for the Turns of a Turn's sub-agents.
func isOver(t *v1alpha1.Turn) bool {
	return t.IsFinished() || !t.DeletionTimestamp.IsZero() || t.Spec.DesiredState == v1alpha1.DesiredStateCancelled
}

// cancelTurn asks for the end of a Turn.
func (r *TurnReconciler) cancelTurn(ctx context.Context, t *v1alpha1.Turn) error {
	before := t.DeepCopy()
	t.Spec.DesiredState = v1alpha1.DesiredStateCancelled
	if err := r.Client.Patch(ctx, t, client.MergeFrom(before)); err != nil {
		return err
	}
	r.wrote.Expect(t)
	return nil
}

// turnOf maps a ToolApproval to the Turn that it is about.
func turnOf(_ context.Context, o client.Object) []reconcile.Request {
	a, ok := o.(*v1alpha1.ToolApproval)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.TurnRef.Name}}}
}

// relativesOf maps a Turn to the one that waits for it, and to those of its sub-agents if it is over.
func (r *TurnReconciler) relativesOf(ctx context.Context, o client.Object) []reconcile.Request {
	t, ok := o.(*v1alpha1.Turn)
	if !ok {
		return nil
	}
	var requests []reconcile.Request
	if owner, ok := translate.Parent(t); ok {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: t.Namespace, Name: owner.Name}})
	}
	children, err := r.children(ctx, t)
	if err != nil {
		reportUnlisted(ctx, err)
	}
	for i := range children {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&children[i])})
	}
	return requests
}

// concernsRelatives lets through what bears on the Turns above and below one: that it is over, and that it begins or ends to
// wait for people.
func concernsRelatives() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Turn)
			after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
			return ok && isTurn && (before.UID != after.UID || isOver(before) != isOver(after) ||
				(before.Status.ParkedTime == nil) != (after.Status.ParkedTime == nil))
		},
	}
}

// decisionMade lets through that a ToolApproval appears: it never changes.
func decisionMade() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(event.UpdateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}
