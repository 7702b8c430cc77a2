package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/budgets"
	"github.com/capstan-dev/capstan/internal/fairqueue"
)

// budgetVerdict returns the effect of the Budgets on a Turn that is not bound.
func (r *TurnReconciler) budgetVerdict(v snapshot) budgets.Verdict {
	if v.turn.BoundTo() != "" || v.agent == nil {
		return budgets.Verdict{}
	}
	return r.Budgets.Evaluate(v.turn, v.agent.Labels, v.now)
}

// whenBudgetExceeded makes a Turn wait for the reset of a Budget. The ledger decides about each request; this policy
// only avoids binding a Turn whose next request would be refused. A Turn that a run has parked for a Budget
// (status.awaitedBudget) stays parked, so a time limit that is paused for the reset stays paused.
func whenBudgetExceeded(v snapshot) (decision, bool) {
	if v.budgets.Message == "" {
		return decision{}, false
	}
	d := decision{action: wait, reason: v1alpha1.TurnReasonWaitingForBudget, message: v.budgets.Message}
	if v.turn.Status.AwaitedBudget != nil {
		d.action = park
	}
	d.wakeWithin(v.budgets.Until.Sub(v.now))
	if v.pausedSince() == nil {
		d.wakeWithin(untilDeadline(v))
	}
	return d, true
}

// whenParkedForBudget lets a Turn that a run has parked wait for the reset, although its Agent may not be ready: the
// Turn needs its Agent only afterwards, and as a Turn that waits for its Agent it would lose the pause of its time
// limit.
func whenParkedForBudget(v snapshot) (decision, bool) {
	if v.turn.Status.AwaitedBudget == nil {
		return decision{}, false
	}
	return whenBudgetExceeded(v)
}

// budgetChanged enqueues the Turns of a Budget's namespace that wait for a Budget, if the change of this Budget may let
// them continue. The set of Budgets calls budgetChanged once the set contains the changed Budget.
func (r *TurnReconciler) budgetChanged(before, after *v1alpha1.Budget) {
	if !mayOpen(before, after) {
		return
	}
	ctx := context.Background() // the list comes from the cache, so it does not block
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.InNamespace(before.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		logListFailure(ctx, err)
		return
	}
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() == "" && t.StateReason() == v1alpha1.TurnReasonWaitingForBudget {
			r.enqueue(client.ObjectKeyFromObject(t), fairqueue.Normal)
		}
	}
}

// mayOpen reports whether Turns may continue after a change of a Budget: its spec has changed, it was deleted, or it is
// no longer exceeded.
func mayOpen(before, after *v1alpha1.Budget) bool {
	return after == nil || before.UID != after.UID || before.Generation != after.Generation || isExceeded(before) && !isExceeded(after)
}

// isExceeded reports whether the status of a Budget shows that a limit is reached.
func isExceeded(b *v1alpha1.Budget) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionExceeded)
}

// waitsForReset reports whether the time limit of a Turn is paused because the Turn waits for the reset of a Budget.
func waitsForReset(t *v1alpha1.Turn, now time.Time) bool {
	return t.Status.AwaitedBudget != nil && t.Status.ParkedTime != nil && now.Before(t.Status.AwaitedBudget.RetryTime.Time)
}
