package metrics

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// maxBudgets is the maximum number of limits of Budgets that have series.
const maxBudgets = 100

// BudgetUse is one limit of a Budget, with the amount that is spent.
type BudgetUse struct {
	// Resource is tokens, cost or turns.
	Namespace, Budget, Resource string
	Spent, Limit                float64
	// Warn is the amount from which the condition Warning of the Budget is True.
	Warn float64
}

// part returns which part of the limit is spent. A limit of 0 is always reached.
func (u BudgetUse) part() float64 {
	if u.Limit <= 0 {
		return 1
	}
	return u.Spent / u.Limit
}

// exported returns the limits that have series, at most maxBudgets: first the one of each namespace with the largest
// part spent, then the second of each, and so on. So a namespace cannot hide the limits of others.
func exported(all []BudgetUse) []BudgetUse {
	sorted := slices.SortedFunc(slices.Values(all), func(x, y BudgetUse) int {
		return cmp.Or(cmp.Compare(y.part(), x.part()), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Budget, y.Budget),
			cmp.Compare(x.Resource, y.Resource))
	})
	sorted = fairgate.InTurn(sorted, func(u BudgetUse) string { return u.Namespace })
	return sorted[:min(len(sorted), maxBudgets)]
}

// SetBudgets sets the limits of all Budgets, with the amounts that are spent.
func SetBudgets(all []BudgetUse) { budgets.uses.Store(&all) }

// budgetUses collects the gauges of Budgets. Only the leader exports them.
type budgetUses struct {
	uses atomic.Pointer[[]BudgetUse]
}

var (
	budgets = &budgetUses{}

	budgetLabels = []string{"namespace", "budget", "resource"}
	budgetSpent  = prometheus.NewDesc("capstan_budget_spent",
		"Tokens, cost or turns spent in the current period of a Budget. Exported for at most 100 limits: first, for each "+
			"namespace, the limit with the largest part spent, then the second one of each namespace, and so on.",
		budgetLabels, nil)
	budgetWarn = prometheus.NewDesc("capstan_budget_warning_level",
		"The amount of capstan_budget_spent from which the Budget warns.", budgetLabels, nil)
	budgetLimit = prometheus.NewDesc("capstan_budget_limit", "The limit of capstan_budget_spent.", budgetLabels, nil)
)

// Describe sends the descriptions of the gauges.
func (b *budgetUses) Describe(out chan<- *prometheus.Desc) {
	out <- budgetSpent
	out <- budgetWarn
	out <- budgetLimit
}

// Collect sends the gauges with the values that were set last.
func (b *budgetUses) Collect(out chan<- prometheus.Metric) {
	all := b.uses.Load()
	if all == nil {
		return
	}
	for _, u := range exported(*all) {
		out <- prometheus.MustNewConstMetric(budgetSpent, prometheus.GaugeValue, u.Spent, u.Namespace, u.Budget, u.Resource)
		out <- prometheus.MustNewConstMetric(budgetWarn, prometheus.GaugeValue, u.Warn, u.Namespace, u.Budget, u.Resource)
		out <- prometheus.MustNewConstMetric(budgetLimit, prometheus.GaugeValue, u.Limit, u.Namespace, u.Budget, u.Resource)
	}
}
