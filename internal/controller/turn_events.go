package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairqueue"
)

// slotEvents returns a handler that releases the slot of a Turn as soon as the watch shows that the Turn has ended, was
// deleted or was unbound. So the slot goes to the next Turn immediately, however long the queue of the reconciler is.
// The handler does not enqueue Turns. It reports each event to the queue, which counts the writes that the watch has
// not shown yet: see fairqueue.Queue.Expect.
func (r *TurnReconciler) slotEvents() handler.EventHandler {
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ turnQueue) {
			before, ok := e.ObjectOld.(*v1alpha1.Turn)
			after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
			if !ok || !isTurn || r.expectations.IsStale(after) { // stale: this process has written the Turn since this event
				return
			}
			key := client.ObjectKeyFromObject(after)
			r.fairQueue().Observe(reconcile.Request{NamespacedName: key})
			switch {
			case after.IsFinished():
				r.slots.Release(key)
			case before.BoundTo() != "" && after.BoundTo() == "":
				r.slots.ReleaseBound(key)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ turnQueue) {
			key := client.ObjectKeyFromObject(e.Object)
			r.fairQueue().Observe(reconcile.Request{NamespacedName: key})
			var cached v1alpha1.Turn
			if err := r.Client.Get(ctx, key, &cached); err == nil && cached.UID != e.Object.GetUID() {
				return // the cache already has another Turn of that name
			}
			r.slots.Release(key)
		},
	}
}

// agentEvents returns a handler that passes changes of Agents to the scheduler, and enqueues the Turns that a change
// may affect. If spec.limits has changed, these are all unbound Turns of the Agent, because their deadlines may have
// changed. If the labels have changed, these are also the Turns that wait for a Budget. If the Agent was ready and
// still is, the handler does not enqueue the Turns that wait for a slot: the scheduler has received the Agent's new
// maxParallelTurns.
func (r *TurnReconciler) agentEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ turnQueue) {
			if a, ok := e.Object.(*v1alpha1.Agent); ok {
				r.agentChanged(ctx, nil, a)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ turnQueue) {
			before, ok := e.ObjectOld.(*v1alpha1.Agent)
			if after, isAgent := e.ObjectNew.(*v1alpha1.Agent); ok && isAgent {
				r.agentChanged(ctx, before, after)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ turnQueue) {
			if a, ok := e.Object.(*v1alpha1.Agent); ok {
				key := client.ObjectKeyFromObject(a)
				r.slots.ForgetAgent(key)
				r.wakeUnbound(ctx, a, func(t *v1alpha1.Turn) bool {
					_, why := agentReadinessOf(nil, key, t.Namespace)
					return r.isConcerned(t, why)
				})
			}
		},
	}
}

// agentChanged handles an Agent that has changed, or that has appeared if before is nil.
func (r *TurnReconciler) agentChanged(ctx context.Context, before, after *v1alpha1.Agent) {
	key := client.ObjectKeyFromObject(after)
	r.slots.SetAgent(agentInfo(after))
	r.updateAgentModelsDown(after)
	if before == nil {
		r.waiting.agentCreated(key)
	}
	checked, _ := agentReadinessOf(after, key, key.Namespace)
	if checked {
		r.slots.Resume(key)
	}
	if before != nil && !equality.Semantic.DeepEqual(before.Spec.Limits, after.Spec.Limits) {
		r.wakeUnbound(ctx, after, func(*v1alpha1.Turn) bool { return true }) // their deadlines may have changed
		return
	}
	relabelled := before == nil || !maps.Equal(before.Labels, after.Labels)
	// If the Agent is not checked yet, its check follows and causes another event.
	rechecked := checked && (before == nil || readinessChanged(before, after))
	if !relabelled && !rechecked {
		return
	}
	r.wakeUnbound(ctx, after, func(t *v1alpha1.Turn) bool {
		if t.StateReason() == v1alpha1.TurnReasonWaitingForBudget {
			return relabelled // the Budget may no longer select the Agent
		}
		_, why := agentReadinessOf(after, key, t.Namespace)
		return rechecked && r.isConcerned(t, why)
	})
}

// readinessChanged reports whether the status or the message of an Agent's Ready condition has changed.
func readinessChanged(before, after *v1alpha1.Agent) bool {
	was := ready(before.Status.Conditions, before.Generation)
	is := ready(after.Status.Conditions, after.Generation)
	return (was == nil) != (is == nil) || was != nil && (was.Status != is.Status || was.Message != is.Message)
}

// isConcerned reports whether an unbound Turn must be reconciled after a change of its Agent's readiness. why says why
// the Agent is not ready; it is empty if the Agent is ready.
func (r *TurnReconciler) isConcerned(t *v1alpha1.Turn, why string) bool {
	switch t.StateReason() {
	case v1alpha1.TurnReasonWaitingForAgent:
		c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
		return c.Message != why
	case v1alpha1.TurnReasonQueued, v1alpha1.TurnReasonPending:
		return why != "" || !r.slots.IsWaiting(client.ObjectKeyFromObject(t))
	case "":
		return true
	}
	return false
}

// wakeUnbound enqueues the unbound Turns of an Agent for which concerned returns true, in all namespaces, the oldest
// first.
func (r *TurnReconciler) wakeUnbound(ctx context.Context, a *v1alpha1.Agent, concerned func(*v1alpha1.Turn) bool) {
	var turns v1alpha1.TurnList
	err := r.Client.List(ctx, &turns, client.MatchingFields{indexTurnAgent: client.ObjectKeyFromObject(a).String()},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the turns of an agent", "agent", a.Name)
		return
	}
	var found []*v1alpha1.Turn
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() == "" && concerned(t) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b *v1alpha1.Turn) int { // the queue keeps the order
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for _, t := range found {
		r.enqueue(client.ObjectKeyFromObject(t), fairqueue.Normal)
	}
}
