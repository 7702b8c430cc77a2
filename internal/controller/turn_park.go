package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// waitProgress holds the state of everything that a parked Turn waits for, as the cache shows it.
type waitProgress struct {
	// decided reports for each of the Turn's pendingApprovals whether there is a decision that may be used.
	decided []bool
	// unused says why some decisions may not be used. It is empty if all decisions may be used.
	unused string
	// unfinished holds the Turn's awaitedTurns that have not ended. They belong to the cache and must not be
	// changed.
	unfinished []*v1alpha1.Turn
	// pausedSince is the earliest time since which the time limit of an unfinished Turn is paused, because that Turn,
	// or a Turn that it waits for, waits for people or for the reset of a Budget. It is nil if no time limit is paused.
	pausedSince *metav1.MicroTime
}

// isParked reports whether a Turn is parked: its executor has handed it back because it waits for people or
// sub-agents, and no reconciliation has since found that it can continue.
func isParked(t *v1alpha1.Turn) bool {
	if t.IsFinished() || t.BoundTo() != "" {
		return false
	}
	reason := t.StateReason()
	return reason == v1alpha1.TurnReasonAwaitingApproval || reason == v1alpha1.TurnReasonWaitingForSubAgent
}

// whenParked keeps a Turn parked until its executor has something to do. That is when a person has decided about
// a call, when a call's approval has expired, or when all awaited Turns have ended.
func whenParked(v snapshot) (decision, bool) {
	t := v.turn
	if !isParked(t) || (len(t.Status.AwaitedTurns) > 0 && len(v.awaited.unfinished) == 0) {
		return decision{}, false
	}
	d := decision{action: park}
	d.reason, d.message = turnstatus.WaitReason(t)
	if v.awaited.unused != "" {
		d.message += "; " + v.awaited.unused
		d.wakeWithin(unusedRecheck)
	}
	for i, p := range t.Status.PendingApprovals {
		left := p.ExpiryTime.Sub(v.now)
		// A request without an ID comes from an older version, which did not show enough of the call, so the executor
		// requests the approval again.
		if v.awaited.isDecided(i) || left <= 0 || p.RequestID == "" {
			return decision{}, false
		}
		d.wakeWithin(left)
	}
	if len(t.Status.PendingApprovals) == 0 {
		if len(t.Status.AwaitedTurns) == 0 {
			return decision{}, false // the Turn waits for nothing
		}
		if v.awaited.pausedSince == nil {
			d.wakeWithin(untilDeadline(v))
		}
	}
	return d, true
}

// unusedRecheck is the interval at which a Turn is reconciled while a decision about one of its calls may not be used.
// It is needed because the manager does not watch the objects that determine which decisions may be used.
const unusedRecheck = 10 * time.Second

// wakeWithin makes sure that the Turn is reconciled again no later than after this time.
func (d *decision) wakeWithin(after time.Duration) {
	if after = max(after, time.Millisecond); d.after == 0 || after < d.after {
		d.after = after
	}
}

func (w waitProgress) isDecided(i int) bool { return i < len(w.decided) && w.decided[i] }

// pausedSince returns since when the time limit of a parked Turn is paused, or nil if it runs. It is paused while the
// Turn, or a Turn that it waits for, waits for people or for the reset of a Budget. If the Turn itself waits, its
// status has the exact time.
func (v snapshot) pausedSince() *metav1.MicroTime {
	if len(v.turn.Status.PendingApprovals) > 0 || waitsForReset(v.turn, v.now) {
		return new(metav1.NewMicroTime(v.now))
	}
	since := v.awaited.pausedSince
	if since == nil {
		return nil
	}
	if start := v.turn.Status.StartTime; since.Before(start) { // the Turn was suspended since then
		since = start
	}
	if since.After(v.now) { // clocks differ
		since = new(metav1.NewMicroTime(v.now))
	}
	return since
}

// clock returns the time up to which the time limit of the Turn has run. The status of a Turn that waits for a
// sub-agent says only after this reconciliation that the time limit is paused. No controller may have run for a while
// after the sub-agent began to wait, so the pause counts from its beginning.
func (v snapshot) clock() time.Time {
	if isParked(v.turn) && v.turn.Status.ParkedTime == nil {
		if since := v.pausedSince(); since != nil {
			return since.Time
		}
	}
	return v.now
}

// waitProgress returns the state of everything that an unbound Turn waits for. agent is nil if the Agent does not
// exist. One watch delivers both parents and children, and a child is created before its parent waits for it. So the
// cache shows the child first, and a child that is not in the cache has ended or was deleted.
func (r *TurnReconciler) waitProgress(ctx context.Context, t *v1alpha1.Turn, agent *v1alpha1.Agent) (waitProgress, error) {
	var w waitProgress
	if len(t.Status.PendingApprovals) > 0 {
		var err error
		if w.decided, w.unused, err = r.decided(ctx, t, agent); err != nil {
			return w, err
		}
	}
	var err error
	if w.unfinished, err = r.unfinishedAwaited(ctx, t); err != nil {
		return w, err
	}
	w.pausedSince, err = r.pausedSince(ctx, w.unfinished, maxSubAgentDepth)
	return w, err
}

// unfinishedAwaited returns the awaitedTurns of a Turn that have not ended. They belong to the cache and must not be
// changed.
func (r *TurnReconciler) unfinishedAwaited(ctx context.Context, t *v1alpha1.Turn) ([]*v1alpha1.Turn, error) {
	if len(t.Status.AwaitedTurns) == 0 {
		return nil, nil
	}
	children, err := r.children(ctx, t)
	if err != nil {
		return nil, err
	}
	var unfinished []*v1alpha1.Turn
	for i := range children {
		if slices.Contains(t.Status.AwaitedTurns, children[i].Name) {
			unfinished = append(unfinished, &children[i])
		}
	}
	return unfinished, nil
}

// maxSubAgentDepth is the highest depth of a sub-agent, which the schema of Turns sets, too. It ends the search for
// sub-agents if edited statuses name each other.
const maxSubAgentDepth = 8

// pausedSince returns the earliest time since which the time limit of one of these Turns is paused, or nil if none is
// paused. It looks at most at this number of levels of sub-agents below them: after a change of the leader, the status
// of a Turn that itself waits for a sub-agent may not say yet that its time limit is paused.
func (r *TurnReconciler) pausedSince(ctx context.Context, turns []*v1alpha1.Turn, levels int) (*metav1.MicroTime, error) {
	var first *metav1.MicroTime
	for _, t := range turns {
		since := t.Status.ParkedTime
		if since == nil && levels > 0 && isParked(t) {
			awaited, err := r.unfinishedAwaited(ctx, t)
			if err != nil {
				return nil, err
			}
			if since, err = r.pausedSince(ctx, awaited, levels-1); err != nil {
				return nil, err
			}
		}
		if first == nil || since.Before(first) {
			first = since
		}
	}
	return first, nil
}

// decided reports for each of the Turn's pendingApprovals whether there is a decision that may be used. unused says why
// some decisions may not be used.
func (r *TurnReconciler) decided(ctx context.Context, t *v1alpha1.Turn, agent *v1alpha1.Agent) (decided []bool, unused string, err error) {
	var known v1alpha1.ToolApprovalList
	err = r.Client.List(ctx, &known, client.InNamespace(t.Namespace), client.MatchingFields{indexApprovalTurn: t.Name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, "", fmt.Errorf("failed to list the turn's tool approvals: %w", err)
	}
	var decisions []v1alpha1.ToolApproval
	for _, a := range known.Items {
		decides := func(p v1alpha1.PendingApproval) bool { return translate.IsDecisionFor(&a, t, p) }
		if slices.ContainsFunc(t.Status.PendingApprovals, decides) {
			decisions = append(decisions, a)
		}
	}
	checks := approvals.Checks{Author: r.Approvals, Requester: r.Requesters}
	usable, unused, err := approvals.Counted(ctx, checks, r.Client, agent, t, decisions)
	if err != nil {
		return nil, "", err
	}
	for _, p := range t.Status.PendingApprovals {
		decides := func(a v1alpha1.ToolApproval) bool { return translate.IsDecisionFor(&a, t, p) }
		decided = append(decided, slices.ContainsFunc(usable, decides))
	}
	return decided, unused, nil
}

// children returns the unfinished Turns of a Turn's sub-agents. They belong to the cache and must not be changed.
func (r *TurnReconciler) children(ctx context.Context, t *v1alpha1.Turn) ([]v1alpha1.Turn, error) {
	var turns v1alpha1.TurnList
	err := r.Client.List(ctx, &turns, client.InNamespace(t.Namespace),
		client.MatchingFields{indexTurnParent: string(t.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("failed to list the turns of sub-agents: %w", err)
	}
	return turns.Items, nil
}

// whenSubAgentsRunning cancels the Turns of sub-agents that a Turn waits for, before the Turn itself ends. The Turn
// then waits until they have ended, so that their usage is known, but for at most executorGrace.
func whenSubAgentsRunning(v snapshot) (decision, bool) {
	t := v.turn
	if t.BoundTo() != "" || len(v.awaited.unfinished) == 0 {
		return decision{}, false
	}
	active := t.Spec.DesiredState != v1alpha1.DesiredStateSuspended
	if left := v.executorGrace(); left > 0 && (t.IsCancelled() || active && untilDeadline(v) <= 0) {
		return decision{action: cancelSubAgents, after: left}, true
	}
	return decision{}, false
}

// cancelSubAgents cancels the Turns that a Turn waits for. If one of them cannot be cancelled, it cancels the others
// before it returns the error. A cancellation that the API server rejects is logged and is not an error, so that it is
// not repeated with the short delays that follow errors. cancelSubAgents returns when the Turn must be reconciled
// again.
func (r *TurnReconciler) cancelSubAgents(ctx context.Context, v snapshot, d decision) (after time.Duration, failed error) {
	after = d.after
	for _, child := range v.awaited.unfinished {
		if child.IsCancelled() {
			continue
		}
		switch err := r.cancelTurn(ctx, child.DeepCopy()); { // because the cache owns child
		case writeerror.IsRejected(err):
			ctrl.LoggerFrom(ctx).Error(err, "Failed to cancel the turn of a sub-agent, because the API server rejects it",
				"child", child.Name)
			after = afterRejection(err, after)
		case client.IgnoreNotFound(err) != nil:
			failed = errors.Join(failed, err)
		}
	}
	return after, failed
}

// afterRejection returns when a Turn must be reconciled again after the API server has rejected a cancellation with
// err. after is when it must be reconciled otherwise. A denial by admission may pass, so it is tried again sooner.
func afterRejection(err error, after time.Duration) time.Duration {
	if writeerror.IsUnstorable(err) {
		return after
	}
	return min(after, denialRetry)
}

// whenOrphaned cancels the Turn of a sub-agent that no parent Turn waits for any more.
func whenOrphaned(v snapshot) (decision, bool) {
	if !v.orphaned || v.turn.IsCancelled() {
		return decision{}, false
	}
	return decision{
		action: cancel, reason: v1alpha1.TurnReasonCancelled, message: "no Turn waits for the answer of this sub-agent any more",
		after: maxTimer,
	}, true
}

// cancelOrphan cancels the Turn of a sub-agent that no parent Turn waits for any more. If the API server rejects every
// change of its spec, because of an admission policy or a newer schema, a Turn that runs continues until its executor
// ends it or hands it back, and any other Turn ends: its status can still be written, and the rest of its usage is then
// taken from its journal. Otherwise the rejected write would be repeated, and the Turn would never reach its deadline.
// cancelOrphan returns when the Turn must be reconciled again.
func (r *TurnReconciler) cancelOrphan(ctx context.Context, v snapshot, d decision) (after time.Duration, err error) {
	err = r.cancelTurn(ctx, v.turn)
	if !writeerror.IsRejected(err) {
		return d.after, err
	}
	if v.isRunning() {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to cancel the turn of a sub-agent, because the API server rejects it")
		r.useSlot(v.turn, confirmSlot)
		return afterRejection(err, d.after), nil
	}
	d.message += "; the turn ended without an executor, because its spec cannot be changed: " + err.Error()
	return d.after, r.endTurn(ctx, v.turn, d)
}

// isOrphaned reports whether a Turn belongs to a sub-agent and its parent was cancelled, has ended or was deleted.
// The cache has every unfinished parent, because a parent is older than its child.
func (r *TurnReconciler) isOrphaned(ctx context.Context, t *v1alpha1.Turn) (bool, error) {
	owner, ok := translate.Caller(t)
	if !ok {
		return false, nil
	}
	var parent v1alpha1.Turn
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: owner.Name}, &parent)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("failed to get parent turn %q: %w", owner.Name, err)
	}
	return parent.UID != owner.UID || isOver(&parent), nil
}

// isOver reports whether a Turn no longer needs the results of its sub-agents.
func isOver(t *v1alpha1.Turn) bool {
	return t.IsFinished() || t.IsCancelled()
}

// cancelTurn requests the cancellation of a Turn. It does nothing if another Turn has the name by now: the watch will
// show it. A conflict is an error, because the Turn is not cancelled then.
func (r *TurnReconciler) cancelTurn(ctx context.Context, t *v1alpha1.Turn) error {
	err := r.Client.Patch(ctx, t, client.RawPatch(types.MergePatchType, translate.CancelPatch(t.UID)))
	if translate.IsOtherObject(err) {
		return nil
	}
	if err != nil {
		return err
	}
	r.expectations.Expect(t)
	return nil
}

// turnOf maps a ToolApproval to its Turn.
func turnOf(_ context.Context, o client.Object) []reconcile.Request {
	a, ok := o.(*v1alpha1.ToolApproval)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.TurnRef.Name}}}
}

// relativesOf maps a Turn to its parent, and to the unfinished Turns of its sub-agents.
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
		logListFailure(ctx, err)
	}
	for i := range children {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&children[i])})
	}
	return requests
}

// relativesChanged passes the changes of a Turn that may affect its parent and its children: the Turn ends or is
// cancelled, or its time limit is paused or runs again.
func relativesChanged() predicate.Predicate {
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

// approvalCreated passes the creation of a ToolApproval. A ToolApproval never changes.
func approvalCreated() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(event.UpdateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}
