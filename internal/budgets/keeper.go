package budgets

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// interval is the time between two rounds. A round writes the status of a Budget at most once, however many
	// requests the Budget counts.
	interval = 5 * time.Second
	// writesOfRound limits the statuses that one round writes. The remaining statuses are written in the next rounds.
	writesOfRound = 200
	// keepAfterEnd is how long an account is kept after the end of its period, for requests that end late, and for a
	// clock that was hours ahead for a while: the earlier period then continues.
	keepAfterEnd = 24 * time.Hour
	// cleanInterval is the time between two deletions of old accounts.
	cleanInterval = time.Minute
	// callTimeout limits one call to the ledger.
	callTimeout = 30 * time.Second
)

// Keeper writes the status of Budgets from the ledger, restores accounts that the store has lost, emits the Events of
// Budgets, and deletes accounts that are no longer needed. It implements manager.Runnable, and runs only in the leader.
type Keeper struct {
	// Ledger holds the accounts.
	Ledger budget.Ledger
	// Set holds the Budgets that apply.
	Set *Set
	// Client reads Budgets from the cache and writes their status.
	Client client.Client
	// Requesters reports whether the API server checks the requesters of Turns. If Requesters is nil, requesters count
	// as unchecked.
	Requesters approvals.RequesterCheck
	// Events emits the Events of Budgets.
	Events events.EventRecorder
	// Now returns the time by the clock of the API server.
	Now func() time.Time
	Log logr.Logger

	cleaned time.Time
	// nextIndex is the index of the Budget with which the next round begins.
	nextIndex int
}

// NeedLeaderElection returns true, because only one process may write a status.
func (k *Keeper) NeedLeaderElection() bool { return true }

// Start updates the status of the Budgets until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := k.round(ctx); err != nil && ctx.Err() == nil {
			k.Log.Error(err, "Failed to update the status of budgets, trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// round updates the status of all Budgets once.
func (k *Keeper) round(ctx context.Context) error {
	now := k.Now()
	if err := k.clean(ctx, now); err != nil {
		return err
	}
	var all v1alpha1.BudgetList
	if err := k.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("failed to list budgets: %w", err)
	}
	if len(all.Items) == 0 {
		metrics.SetBudgets(nil)
		return nil
	}
	accounts, err := k.accounts(ctx, now)
	if err != nil {
		return err
	}
	errs := []error{k.restore(ctx, all.Items, accounts, now)}
	unchecked := sync.OnceValues(func() (bool, error) { return k.unchecked(ctx, now) })
	var uses []metrics.BudgetUse
	written, begin := 0, k.nextIndex%len(all.Items)
	for n := range all.Items {
		b := &all.Items[(begin+n)%len(all.Items)]
		s, used, err := k.statusOf(b, accounts, unchecked, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uses = append(uses, used...)
		if equality.Semantic.DeepEqual(&b.Status, s) {
			continue
		}
		if written++; written > writesOfRound {
			continue
		}
		k.nextIndex = begin + n + 1
		errs = append(errs, k.write(ctx, b, s))
	}
	metrics.SetBudgets(uses)
	return errors.Join(errs...)
}

// clean deletes the accounts of deleted Budgets and of old periods. If no leader has seen the deletion of a Budget, its
// account is deleted as that of an old period.
func (k *Keeper) clean(ctx context.Context, now time.Time) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if gone := k.Set.takeDeleted(); len(gone) > 0 {
		if err := k.Ledger.ForgetBudgets(bounded, gone...); err != nil {
			k.Set.addDeleted(gone...)
			return fmt.Errorf("failed to delete the accounts of deleted budgets: %w", err)
		}
	}
	if now.Sub(k.cleaned).Abs() < cleanInterval {
		return nil
	}
	if err := k.Ledger.EndPeriods(bounded, now.Add(-keepAfterEnd)); err != nil {
		return fmt.Errorf("failed to delete the accounts of old periods: %w", err)
	}
	k.cleaned = now
	return nil
}

// accounts returns the accounts of all current periods.
func (k *Keeper) accounts(ctx context.Context, now time.Time) (map[budget.Key]budget.Account, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := k.Ledger.Accounts(bounded, now)
	if err != nil {
		return nil, fmt.Errorf("failed to read the ledger of budgets: %w", err)
	}
	accounts := make(map[budget.Key]budget.Account, len(all))
	for _, a := range all {
		accounts[a.Key] = a
	}
	return accounts, nil
}

// restore raises the accounts of which the store has lost amounts, because it is new or an older copy, to the amounts
// in the status of their Budgets. It changes accounts even if it cannot change the store: the status then keeps its
// amounts, and the next round tries again. accounts must have been read after the Budgets: an account that was read
// earlier could lack amounts that a status has, although the store has them.
func (k *Keeper) restore(ctx context.Context, all []v1alpha1.Budget, accounts map[budget.Key]budget.Account, now time.Time) error {
	var lost []*v1alpha1.Budget
	var before, raised []budget.Account
	for i := range all {
		b := &all[i]
		rule := translate.Budget(b)
		p, err := budget.PeriodAt(rule.Unit, rule.Zone, now)
		if err != nil {
			continue // statusOf reports it
		}
		spent, known := translate.SpentOf(b, p)
		a, found := accounts[spent.Key]
		isNew := !found && spent.Turns > 0 // an account is created when its first Turn counts
		if !known || !isNew && !a.Lacks(spent) {
			continue
		}
		lost, before = append(lost, b), append(before, a)
		a.Key = spent.Key
		a.Raise(spent)
		accounts[a.Key] = a
		raised = append(raised, spent)
	}
	if len(lost) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := k.Ledger.RaiseAccounts(bounded, raised...); err != nil {
		return fmt.Errorf("failed to restore the accounts of %d budgets, which the store has lost: %w", len(lost), err)
	}
	for i, b := range lost {
		after := accounts[raised[i].Key]
		k.Events.Eventf(b, nil, corev1.EventTypeWarning, v1alpha1.EventStoreLostAmounts, "Count", "%s", fmt.Sprintf(
			"the store of the journals has lost amounts of the current period, and has only %s: the budget continues with the "+
				"higher amounts of the store and its status, %s", amounts(b, before[i]), amounts(b, after)))
	}
	return nil
}

// amounts returns the amounts that an account has spent, for people.
func amounts(b *v1alpha1.Budget, a budget.Account) string {
	text := fmt.Sprintf("%d tokens, %s %s and %d Turns", a.Tokens, a.Cost, b.Spec.Currency, a.Turns)
	if a.Unpriced > 0 {
		text += fmt.Sprintf(", and %d requests without a price", a.Unpriced)
	}
	return text
}

// statusOf returns the status that a Budget should have, and its use for the metrics.
func (k *Keeper) statusOf(
	b *v1alpha1.Budget, accounts map[budget.Key]budget.Account, requestersUnchecked func() (bool, error), now time.Time,
) (*v1alpha1.BudgetStatus, []metrics.BudgetUse, error) {
	rule := translate.Budget(b)
	p, err := budget.PeriodAt(rule.Unit, rule.Zone, now)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to compute the period of budget %s/%s: %w", b.Namespace, b.Name, err)
	}
	account := accounts[budget.KeyOf(rule.UID, p)]
	unchecked := false
	if rule.ByRequester() {
		if unchecked, err = requestersUnchecked(); err != nil {
			return nil, nil, fmt.Errorf("failed to update the status of budget %s/%s: %w", b.Namespace, b.Name, err)
		}
	}
	s := translate.BudgetStatus(b, rule, translate.BudgetState{
		Period: p, Account: account, Applies: k.Set.Applies(b), Unchecked: unchecked,
	}, now)
	if !k.Set.Applies(b) {
		return s, nil, nil
	}
	var uses []metrics.BudgetUse
	for _, u := range rule.Uses(account) {
		uses = append(uses, metrics.BudgetUse{
			Namespace: b.Namespace, Budget: b.Name, Resource: string(u.Of),
			Spent: u.Spent.InexactFloat64(), Limit: u.Limit.InexactFloat64(),
			Warn: u.Limit.InexactFloat64() * float64(translate.WarnPercent(b)) / 100,
		})
	}
	return s, uses, nil
}

// unchecked reports whether the requester that a Turn names may be forged at present.
func (k *Keeper) unchecked(ctx context.Context, now time.Time) (bool, error) {
	if k.Requesters == nil {
		return true, nil
	}
	why, err := k.Requesters(ctx, now)
	return why != "", err
}

// write writes a status, and then emits Events about the conditions that have changed. A conflict is resolved by the
// next round.
func (k *Keeper) write(ctx context.Context, b *v1alpha1.Budget, s *v1alpha1.BudgetStatus) error {
	next := b.DeepCopy()
	next.Status = *s.DeepCopy() // the client writes the response into next
	switch err := k.Client.Status().Update(ctx, next); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("failed to write the status of budget %s/%s: %w", b.Namespace, b.Name, err)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionWarning, v1alpha1.ConditionExceeded} {
		k.emit(next, kind, meta.FindStatusCondition(b.Status.Conditions, kind), meta.FindStatusCondition(s.Conditions, kind))
	}
	return nil
}

// emit emits an Event if a condition has entered or left the state that needs attention: False for Ready, and True for
// Warning and Exceeded.
func (k *Keeper) emit(b *v1alpha1.Budget, kind string, before, after *metav1.Condition) {
	alarm := metav1.ConditionTrue
	if kind == v1alpha1.ConditionReady {
		alarm = metav1.ConditionFalse
	}
	if after == nil {
		return // the Budget does not apply any more, and Ready says so
	}
	was, is := before != nil && before.Status == alarm, after.Status == alarm
	switch {
	case is && !was:
		k.Events.Eventf(b, nil, corev1.EventTypeWarning, after.Reason, "Count", "%s", after.Message)
	case was && !is:
		k.Events.Eventf(b, nil, corev1.EventTypeNormal, after.Reason, "Count", "%s", after.Message)
	}
}
