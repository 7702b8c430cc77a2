package loop

import (
	"fmt"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Limits bound a Turn over all its runs.
type Limits struct {
	// MaxSteps is how many replies the loop goes on from; at least 1.
	MaxSteps int
	// MaxToolCalls is how many calls of tools it makes.
	MaxToolCalls int
	// MaxTokens is how many tokens its requests may take, input and output together; 0 for any number.
	MaxTokens int64
	// MaxCost is what they may cost, in the currency of the prices; 0 for any amount.
	MaxCost decimal.Decimal
}

// charsPerToken estimates tokens of a prompt of which no endpoint has said yet how many it has.
const charsPerToken = 4

// spent adds up all requests. Costs in several currencies are added as they are: a bound that is reached too early is
// better than none.
func (s *State) spent() (tokens int64, cost decimal.Decimal) {
	var sum model.Usage
	for u, c := range s.Spendings {
		sum = sum.Add(u)
		if c != nil {
			cost = cost.Add(c.Amount)
		}
	}
	return sum.InputTokens + sum.OutputTokens, cost
}

// overBudget says why the next request to a candidate must not be sent; empty if it may. The next prompt has at least what
// the last one had, with its reply; of the next reply nothing is known.
func (in Input) overBudget(c Candidate, messages []model.Message) string {
	l := in.Limits
	if l.MaxTokens == 0 && l.MaxCost.IsZero() {
		return ""
	}
	tokens, cost := in.State.spent()
	next := estimate(in.State, messages)
	if l.MaxTokens > 0 && tokens+next > l.MaxTokens {
		return fmt.Sprintf("the turn has taken %d tokens and the next request would take about %d: that is more than its budget of %d tokens", tokens, next, l.MaxTokens)
	}
	var more decimal.Decimal
	if p := c.Pricing.Cost(model.Usage{InputTokens: next}); p != nil {
		more = p.Amount
	}
	if l.MaxCost.IsPositive() && cost.Add(more).GreaterThan(l.MaxCost) {
		return fmt.Sprintf("the turn has cost %s and the next request would cost about %s: that is more than its budget of %s", cost, more, l.MaxCost)
	}
	return ""
}

// estimate is about how many tokens a prompt has.
func estimate(s *State, messages []model.Message) int64 {
	if last := s.LastStep(); last != nil && last.Reply.Usage.InputTokens > 0 {
		return last.Reply.Usage.InputTokens + last.Reply.Usage.OutputTokens
	}
	chars := 0
	for _, m := range messages {
		chars += len(m.Content)
	}
	return int64(chars / charsPerToken)
}
