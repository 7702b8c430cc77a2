package translate

import (
	"fmt"
	"strings"
	"time"

	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// SessionTotals writes the totals of a Session at the end of a Turn into the status of the Session, and reports whether
// the status changed. Two kinds of totals change nothing:
//  1. Totals that are older than those of the status: an executor that was unreachable may write them late.
//  2. Totals of a Turn that asked no model: such a Turn does not count.
func SessionTotals(s *v1alpha1.Session, totals session.Totals, turnName string, end time.Time) (changed bool) {
	before := &s.Status
	if totals.Turns < before.Turns || totals.Turns == 0 || (totals.Turns == before.Turns && before.LastTurnName != turnName) {
		return false
	}
	after := before.DeepCopy()
	after.Turns, after.LastTurnName, after.ContextTokens, after.Usage = totals.Turns, turnName, totals.ContextTokens, nil
	// A repeated write does not change the time. A Turn that was charged late may have ended before the last Turn.
	if last := before.LastTurnTime; last == nil || totals.Turns > before.Turns && end.After(last.Time) {
		after.LastTurnTime = new(metav1.NewMicroTime(end))
	}
	after.MissingTurns = max(before.MissingTurns, totals.Missing)
	after.KnownCost = ""
	if totals.KnownCost.IsPositive() {
		after.KnownCost = totals.KnownCost.String()
	}
	if totals.Usage != (model.Usage{}) {
		after.Usage = Usage(totals.Usage, totals.Cost, totals.KnownCost)
	}
	if equality.Semantic.DeepEqual(before, after) {
		return false
	}
	s.Status = *after
	return true
}

// KnownTotals returns the totals in the status of a Session. If the journal of the Session has lower totals, history is
// lost.
func KnownTotals(s *v1alpha1.Session) session.Totals {
	known := session.Totals{
		Turns: s.Status.Turns, KnownCost: cost(s), ContextTokens: s.Status.ContextTokens,
		Missing: s.Status.MissingTurns,
	}
	if u := s.Status.Usage; u != nil {
		known.Usage = model.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, ReasoningTokens: u.ReasoningTokens,
			CacheReadTokens: u.CacheReadTokens, CacheCreationTokens: u.CacheCreationTokens,
			Estimated: u.Estimated,
		}
		if u.Cost != nil {
			known.Cost = &finalize.Cost{Amount: u.Cost.Amount, Currency: u.Cost.Currency}
		}
	}
	return known
}

// SessionTurn returns what a Turn that has ended adds to the totals of its Session: the usage and cost in its status,
// including those of sub-agents. It has no messages.
func SessionTurn(t *v1alpha1.Turn) session.Turn {
	spent := SubAgentUsage(t)
	out := session.Turn{UID: string(t.UID), Name: t.Name, Namespace: t.Namespace, Usage: spent.Usage}
	switch {
	case spent.Cost != nil:
		out.Cost = &finalize.Cost{Amount: spent.Cost.Amount.String(), Currency: spent.Cost.Currency}
	case spent.Known != nil:
		out.KnownCost = *spent.Known
	}
	return out
}

// HasCounted reports whether the totals of a Session already count a Turn whose status does not show its end yet. Turns
// of a Session run one after another, so only the last Turn can be in this state.
func HasCounted(s *v1alpha1.Session, t *v1alpha1.Turn) bool {
	return s.Status.LastTurnName == t.Name && s.Status.LastTurnTime != nil && t.Status.StartTime != nil &&
		!s.Status.LastTurnTime.Before(t.Status.StartTime)
}

// LoseHistory writes into the status of a Session that the history of some of its Turns is lost, and reports
// whether the status changed.
func LoseHistory(s *v1alpha1.Session, missing int64, now time.Time) (changed bool) {
	before := s.Status.DeepCopy()
	s.Status.MissingTurns = max(s.Status.MissingTurns, missing)
	message := fmt.Sprintf("the journal has lost the history of %d of %d turns", s.Status.MissingTurns, s.Status.Turns)
	if s.Spec.OnHistoryLoss == v1alpha1.OnHistoryLossWait {
		message += "; the turns of the session wait: set spec.onHistoryLoss to Continue to continue without it, or create a new Session"
	}
	meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionHistoryComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHistoryLost, Message: message,
		ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(now),
	})
	return !equality.Semantic.DeepEqual(before, &s.Status)
}

// WaitsForHistory returns why the Turns of a Session wait after a loss of its history, or "" if they do not wait.
// After a change of the spec, the next Turn checks the history again.
func WaitsForHistory(s *v1alpha1.Session) string {
	c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionHistoryComplete)
	if c == nil || c.Status != metav1.ConditionFalse || s.Spec.OnHistoryLoss != v1alpha1.OnHistoryLossWait ||
		c.ObservedGeneration != s.Generation {
		return ""
	}
	return c.Message
}

// BudgetUsed returns the limits of a Session's budget that are used up, such as "20 of 20 turns
// (spec.budget.maxTurns)". It returns "" if no limit is used up.
func BudgetUsed(s *v1alpha1.Session) string {
	b := s.Spec.Budget
	if b == nil {
		return ""
	}
	var used []string
	if b.MaxTurns != nil && s.Status.Turns >= int64(*b.MaxTurns) {
		used = append(used, fmt.Sprintf("%d of %d turns (spec.budget.maxTurns)", s.Status.Turns, *b.MaxTurns))
	}
	if b.MaxTokens != nil && tokens(s) >= *b.MaxTokens {
		used = append(used, fmt.Sprintf("%d of %d tokens (spec.budget.maxTokens)", tokens(s), *b.MaxTokens))
	}
	if b.MaxCost != nil {
		if limit, err := decimal.NewFromString(*b.MaxCost); err == nil && cost(s).GreaterThanOrEqual(limit) {
			used = append(used, fmt.Sprintf("a cost of %s of %s (spec.budget.maxCost)", cost(s), *b.MaxCost))
		}
	}
	return strings.Join(used, ", ")
}

// leastCost is the lowest value that a limit on the cost can have.
var leastCost = decimal.New(1, -10)

// RemainingLimits returns the rest of a Session's budget as limits for a Turn, in addition to the limits of the Turn
// and its Agent. It returns nil if s is nil, or if the budget limits neither tokens nor cost. If nothing is left, the
// limit is the lowest possible value, because 0 would mean no limit. So a Turn that resumes after the budget was
// lowered sends no further request.
func RemainingLimits(s *v1alpha1.Session) *v1alpha1.Limits {
	if s == nil || s.Spec.Budget == nil {
		return nil
	}
	var left v1alpha1.Limits
	if limit := s.Spec.Budget.MaxTokens; limit != nil {
		left.MaxTokens = new(max(1, *limit-tokens(s)))
	}
	if m := s.Spec.Budget.MaxCost; m != nil {
		if limit, err := decimal.NewFromString(*m); err == nil {
			left.MaxCost = new(decimal.Max(leastCost, limit.Sub(cost(s))).String())
		}
	}
	if left == (v1alpha1.Limits{}) {
		return nil
	}
	return &left
}

// tokens returns how many tokens a Session has used.
func tokens(s *v1alpha1.Session) int64 {
	if s.Status.Usage == nil {
		return 0
	}
	return s.Status.Usage.TotalTokens
}

// cost returns the known cost of a Session; requests to models without a price are not part of it. The status of an
// older version has only the total.
func cost(s *v1alpha1.Session) decimal.Decimal {
	amount := s.Status.KnownCost
	if u := s.Status.Usage; amount == "" && u != nil && u.Cost != nil {
		amount = u.Cost.Amount
	}
	known, err := decimal.NewFromString(amount)
	if err != nil {
		return decimal.Zero
	}
	return known
}
