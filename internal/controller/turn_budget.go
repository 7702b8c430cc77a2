package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/budgets"
)

// budgetVerdict returns the effect of the Budgets on a Turn that is not bound.
func (r *TurnReconciler) budgetVerdict(v snapshot) budgets.Verdict {
	if v.turn.BoundTo() != "" || v.agent == nil {
		return budgets.Verdict{}
	}
	return r.Budgets.Evaluate(v.turn, v.agent.Labels, v.now)
}

// whenBudgetExceeded makes a Turn wait for the reset of a Budget. The ledger decides about each request; this only
// keeps Turns from being bound in vain. The time of a Turn that has run stays stopped, as its executor has left it.
func whenBudgetExceeded(v snapshot) (decision, bool) {
	if v.budgets.Message == "" {
		return decision{}, false
	}
	d := decision{action: wait, reason: v1alpha1.TurnReasonWaitingForBudget, message: v.budgets.Message}
	if v.turn.Status.AwaitedBudget != nil {
		d.action = park
	}
	d.wakeWithin(v.budgets.Until.Sub(v.now))
	if !v.clockPaused() {
		d.wakeWithin(untilDeadline(v))
	}
	return d, true
}

// awaitingBudget maps a Budget to the Turns of its namespace that wait for a Budget.
func (r *TurnReconciler) awaitingBudget(ctx context.Context, o client.Object) []reconcile.Request {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		logListFailure(ctx, err)
		return nil
	}
	var requests []reconcile.Request
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() == "" && t.StateReason() == v1alpha1.TurnReasonWaitingForBudget {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(t)})
		}
	}
	return requests
}

// budgetMayOpen passes the changes of a Budget after which Turns may continue: its spec changes, it is deleted, or it
// is no longer exceeded.
func budgetMayOpen() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Budget)
			after, isBudget := e.ObjectNew.(*v1alpha1.Budget)
			return ok && isBudget && (before.UID != after.UID || before.Generation != after.Generation ||
				isExceeded(before) && !isExceeded(after))
		},
	}
}

// isExceeded reports whether the status of a Budget shows that a limit is reached.
func isExceeded(b *v1alpha1.Budget) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionExceeded)
}

// waitsForReset reports whether the time of a Turn is stopped because it waits for the reset of a Budget.
func waitsForReset(t *v1alpha1.Turn, now time.Time) bool {
	return t.Status.AwaitedBudget != nil && t.Status.ParkedTime != nil && now.Before(t.Status.AwaitedBudget.RetryTime.Time)
}
