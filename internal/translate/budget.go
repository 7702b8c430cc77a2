package translate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

// BudgetRule is a Budget with its selector, in the form of the engine.
type BudgetRule struct {
	budget.Rule
	// Fault says which part of the Budget's spec cannot be used, and is empty for a valid spec. The rule applies in
	// both cases.
	Fault string

	agents     []types.NamespacedName // empty selects all
	byLabel    labels.Selector        // nil selects all
	requesters []string               // empty selects all
}

// Budget returns the rule of a Budget. A Budget applies even if its spec has a fault that the schema cannot detect:
// with an unknown time zone, its periods are in UTC; a cost that is not a decimal counts as 0; a name that no Agent can
// have selects no Agent; with a label selector that cannot be used, it selects Agents with any labels.
func Budget(b *v1alpha1.Budget) BudgetRule {
	r := BudgetRule{Rule: budget.Rule{
		UID: string(b.UID), Name: b.Name, Generation: b.Generation, Unit: budget.Unit(b.Spec.Period), Zone: time.UTC,
		Limits: budget.Limits{Tokens: b.Spec.Limits.Tokens, Turns: b.Spec.Limits.Turns}, Currency: b.Spec.Currency,
		Queue: b.Spec.OnExceeded == v1alpha1.OnBudgetExceededQueue,
	}}
	if name := b.Spec.TimeZone; name != "" {
		if location, err := zone.Load(name); err != nil {
			r.Fault = fmt.Sprintf("spec.timeZone %q is not an IANA time zone: until it is corrected, the periods are in UTC",
				name)
		} else {
			r.Zone = location
		}
	}
	if cost := b.Spec.Limits.Cost; cost != nil {
		amount, err := decimal.NewFromString(*cost)
		if err != nil {
			r.Fault = fmt.Sprintf("spec.limits.cost %q is not a decimal: until it is corrected, it counts as 0", *cost)
		}
		r.Limits.Cost = &amount
	}
	if s := b.Spec.Selector; s != nil {
		r.requesters = s.Requesters
		if s.Agents != nil {
			r.selectNames(s.Agents.Names, b.Namespace)
			r.selectLabels(s.Agents.LabelSelector)
		}
	}
	return r
}

// selectNames sets the names of the Agents. The schema of an older version accepted names that no Agent can have.
func (r *BudgetRule) selectNames(names []string, namespace string) {
	for i, name := range names {
		ref := v1alpha1.ParseSharedReference(name)
		key := ref.Key(namespace)
		if len(validation.IsDNS1123Subdomain(key.Name)) > 0 ||
			ref.Namespace != "" && len(validation.IsDNS1123Label(ref.Namespace)) > 0 {
			r.Fault = fmt.Sprintf("spec.selector.agents.names[%d] %q cannot be the name of an Agent: until it is corrected, it selects "+
				"no Agent", i, name)
		}
		r.agents = append(r.agents, key)
	}
}

// selectLabels sets the selector of labels.
func (r *BudgetRule) selectLabels(s *v1alpha1.LabelSelector) {
	if s == nil {
		return
	}
	selector, err := s.Selector()
	if err != nil {
		r.Fault = fmt.Sprintf("spec.selector.agents.labelSelector cannot be used: %s: until it is corrected, Agents with any labels are "+
			"selected", err)
		return
	}
	r.byLabel = selector
}

// SelectsRequester reports whether the rule applies to the Turns of a requester. name is empty if the requester is
// unknown or was not checked. The rule applies to such Turns.
func (r *BudgetRule) SelectsRequester(name string) bool {
	return !r.ByRequester() || name == "" || slices.Contains(r.requesters, name)
}

// ByRequester reports whether the rule depends on the requester of a Turn.
func (r *BudgetRule) ByRequester() bool { return len(r.requesters) > 0 }

// SelectsAgent reports whether the rule applies to the Turns of an Agent. key has the namespace of the Agent, so it
// does not depend on whether the reference of the Turn names that namespace. agentLabels are the labels of the Agent:
// all of them, or the result of BudgetLabels.
func (r *BudgetRule) SelectsAgent(key types.NamespacedName, agentLabels map[string]string) bool {
	return (len(r.agents) == 0 || slices.Contains(r.agents, key)) && (r.byLabel == nil || r.selectsLabels(BudgetLabels(agentLabels)))
}

func (r *BudgetRule) selectsLabels(of map[string]string) bool {
	_, tooMany := of[tooManyLabels]
	return tooMany || r.byLabel.Matches(labels.Set(of))
}

const (
	// maxAgentLabels is the maximum number of labels of an Agent that Budgets compare.
	maxAgentLabels = 64
	// tooManyLabels stands for the labels of an Agent that has more. The API server accepts no label with spaces, so no
	// user can set this one.
	tooManyLabels = "too many labels"
)

// BudgetLabels returns the labels of an Agent that the manager keeps for the label selectors of Budgets. If an Agent
// has more than 64 labels, it returns one label that every label selector selects. Otherwise an owner of an Agent could
// fill the memory of the manager with labels, or evade a Budget with them.
func BudgetLabels(of map[string]string) map[string]string {
	if len(of) <= maxAgentLabels {
		return of
	}
	return map[string]string{tooManyLabels: ""}
}

// WarnPercent returns the percentage of a limit from which the condition Warning of a Budget is True.
func WarnPercent(b *v1alpha1.Budget) int64 {
	if b.Spec.WarnPercent == nil {
		return 80
	}
	return int64(*b.Spec.WarnPercent)
}

// BudgetState holds the facts about a Budget that are not in its object.
type BudgetState struct {
	Period  budget.Period
	Account budget.Account
	// Applies is false if the namespace has too many Budgets.
	Applies bool
	// Unchecked is true if the API server does not check the requesters of Turns.
	Unchecked bool
}

// readiness returns the reason and the message of the condition Ready. The condition is True if the reason is Ready.
func (r *BudgetRule) readiness(state BudgetState) (reason, message string) {
	switch {
	case !state.Applies:
		return v1alpha1.ReasonTooManyBudgets, fmt.Sprintf(
			"the budget does not apply, because the namespace has %d older budgets: delete budgets", budget.MaxOfTurn)
	case r.Fault != "":
		return v1alpha1.ReasonInvalidBudget, r.Fault
	case r.ByRequester() && state.Unchecked:
		return v1alpha1.ReasonRequestersNotChecked, "the API server does not check requesters, so the budget applies to the Turns of " +
			"all requesters: install config/policy, or set requesterPolicy.install=true in the chart"
	}
	return v1alpha1.ReasonReady, "the budget applies to each request"
}

// BudgetStatus returns the status of a Budget.
func BudgetStatus(b *v1alpha1.Budget, r BudgetRule, state BudgetState, now time.Time) *v1alpha1.BudgetStatus {
	p, a := state.Period, state.Account
	s := b.Status.DeepCopy()
	s.ObservedGeneration = b.Generation
	set := func(conditionType string, isTrue bool, trueReason, falseReason, message string) {
		c := metav1.Condition{
			Type: conditionType, Status: metav1.ConditionFalse, Reason: falseReason, Message: message,
			ObservedGeneration: b.Generation, LastTransitionTime: metav1.NewTime(now),
		}
		if isTrue {
			c.Status, c.Reason = metav1.ConditionTrue, trueReason
		}
		meta.SetStatusCondition(&s.Conditions, c)
	}
	reason, message := r.readiness(state)
	set(v1alpha1.ConditionReady, reason == v1alpha1.ReasonReady, reason, reason, message)
	if Stalls(reason, false) {
		set(v1alpha1.ConditionStalled, true, reason, "", message)
	} else {
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionStalled)
	}
	if !state.Applies {
		for _, kind := range []string{v1alpha1.ConditionWarning, v1alpha1.ConditionExceeded} {
			meta.RemoveStatusCondition(&s.Conditions, kind)
		}
		s.PeriodStartTime, s.ResetTime, s.Spent, s.Reserved = nil, nil, nil, nil
		return s
	}
	s.PeriodStartTime, s.ResetTime = new(metav1.NewTime(p.Start)), new(metav1.NewTime(p.End))
	s.Spent = &v1alpha1.BudgetSpent{Tokens: a.Tokens, Cost: a.Cost.String(), Turns: a.Turns, UnpricedRequests: a.Unpriced}
	s.Reserved = nil
	if a.ReservedTokens > 0 || a.ReservedCost.IsPositive() {
		s.Reserved = &v1alpha1.BudgetReserved{Tokens: a.ReservedTokens, Cost: a.ReservedCost.String()}
	}
	percent := WarnPercent(b)
	var warning, exceeded string
	for _, u := range r.Uses(a) {
		text := fmt.Sprintf("%s of %s %s are spent; the next period begins at %s",
			u.Spent, u.Limit, u.Of, p.End.In(r.Zone).Format(time.RFC3339))
		if exceeded == "" && !u.Spent.LessThan(u.Limit) {
			exceeded = fmt.Sprintf("Budget %q: %s", b.Name, text)
		}
		if warning == "" && !u.Spent.Mul(decimal.NewFromInt(100)).LessThan(u.Limit.Mul(decimal.NewFromInt(percent))) {
			warning = fmt.Sprintf("the warning threshold of %d %% is reached: %s", percent, text)
		}
	}
	set(v1alpha1.ConditionWarning, warning != "", v1alpha1.ReasonWarnPercentReached, v1alpha1.ReasonBelowWarnPercent,
		cmp.Or(warning, "less than warnPercent of each limit is spent"))
	set(v1alpha1.ConditionExceeded, exceeded != "", v1alpha1.ReasonLimitReached, v1alpha1.ReasonWithinLimits,
		cmp.Or(exceeded, "no limit is reached"))
	return s
}

// spentCost matches the costs that Capstan writes into the status of a Budget, whose field has at most 64 characters.
var spentCost = regexp.MustCompile(`^[0-9]{1,20}(\.[0-9]{1,30})?$`)

// SpentOf returns the amounts that a Budget's status says were spent in a period, as the account of that period. It
// returns false if the status says nothing about this period. A cost that Capstan does not write counts as 0, because
// the sum with later costs might not fit into a status.
func SpentOf(b *v1alpha1.Budget, p budget.Period) (budget.Account, bool) {
	s := &b.Status
	if s.Spent == nil || s.PeriodStartTime == nil || s.ResetTime == nil ||
		s.PeriodStartTime.Unix() != p.Start.Unix() || s.ResetTime.Unix() != p.End.Unix() {
		return budget.Account{}, false
	}
	cost := decimal.Zero
	if spentCost.MatchString(s.Spent.Cost) {
		cost, _ = decimal.NewFromString(s.Spent.Cost) // it is a number
	}
	return budget.Account{
		Key: budget.KeyOf(string(b.UID), p), Tokens: s.Spent.Tokens, Cost: cost, Turns: s.Spent.Turns,
		Unpriced: s.Spent.UnpricedRequests,
	}, true
}

// BudgetUse is one limit of a Budget, with the amount that is spent.
type BudgetUse struct {
	Of           budget.Reason
	Spent, Limit decimal.Decimal
}

// Uses returns the limits of a Budget, each with the amount that is spent.
func (r *BudgetRule) Uses(a budget.Account) []BudgetUse {
	var all []BudgetUse
	if limit := r.Limits.Tokens; limit != nil {
		all = append(all, BudgetUse{budget.OverTokens, decimal.NewFromInt(a.Tokens), decimal.NewFromInt(*limit)})
	}
	if limit := r.Limits.Cost; limit != nil {
		all = append(all, BudgetUse{budget.OverCost, a.Cost, *limit})
	}
	if limit := r.Limits.Turns; limit != nil {
		all = append(all, BudgetUse{budget.OverTurns, decimal.NewFromInt(a.Turns), decimal.NewFromInt(*limit)})
	}
	return all
}

// AwaitedBudget returns the Budget that a parked Turn waits for.
func AwaitedBudget(b *loop.BudgetWait) *v1alpha1.AwaitedBudget {
	return &v1alpha1.AwaitedBudget{
		Name: b.Name, UID: b.UID, Generation: b.Generation, RetryTime: metav1.NewMicroTime(b.Until),
		Message: TruncateJSON(b.Message, longestBudgetMessage),
	}
}

// longestBudgetMessage is the maximum size of a message about a Budget, in bytes.
const longestBudgetMessage = 512
