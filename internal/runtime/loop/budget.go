package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Limits bound a Turn over all its runs.
type Limits struct {
	// MaxSteps is how many replies the loop goes on from; at least 1.
	MaxSteps int
	// MaxToolCalls is how many calls of tools it makes.
	MaxToolCalls int
	// MaxDescendants is how many Turns sub-agents may create, theirs included.
	MaxDescendants int
	// ApprovalTimeout is how long a call waits for a decision; its end is a denial.
	ApprovalTimeout time.Duration
	// MaxTokens is how many tokens its requests may take, input and output together; 0 for any number. A request that was cut
	// off takes what its prompt was estimated at.
	MaxTokens int64
	// MaxCost is what they may cost, in the currency of the prices; 0 for any amount.
	MaxCost decimal.Decimal
}

// spent adds up all requests, and what sub-agents took. Costs in several currencies are added as they are: a bound that is reached
// too early is better than none.
func (s *State) spent() (tokens int64, cost decimal.Decimal) {
	var sum model.Usage
	for one := range s.Spendings {
		sum = sum.Add(one.Usage)
		if one.Cost != nil {
			cost = cost.Add(one.Cost.Amount)
		}
	}
	for sub := range s.SubAgents {
		sum = sum.Add(sub.Usage)
		if sub.Cost != nil {
			cost = cost.Add(sub.Cost.Amount)
		} else if sub.Known != nil {
			cost = cost.Add(*sub.Known)
		}
	}
	return sum.InputTokens + sum.OutputTokens, cost
}

// left is what the Turn may still take. Without a deadline it has no time.
func (in *Input) left(ctx context.Context) tool.Left {
	var l tool.Left
	if deadline, ok := ctx.Deadline(); ok {
		l.Time = max(0, time.Until(deadline))
	}
	tokens, cost := in.State.spent()
	if in.Limits.MaxTokens > 0 {
		l.Tokens = new(max(0, in.Limits.MaxTokens-tokens))
	}
	if in.Limits.MaxCost.IsPositive() {
		l.Cost = new(decimal.Max(decimal.Zero, in.Limits.MaxCost.Sub(cost)))
	}
	return l
}

// budgetSpent says why nothing more may be done, whatever it takes; empty if something may.
func (in *Input) budgetSpent() string {
	tokens, cost := in.State.spent()
	switch l := in.Limits; {
	case l.MaxTokens > 0 && tokens > l.MaxTokens:
		return fmt.Sprintf("the turn has taken %d tokens, which is more than its budget of %d tokens: no more tools were called", tokens, l.MaxTokens)
	case l.MaxCost.IsPositive() && cost.GreaterThan(l.MaxCost):
		return fmt.Sprintf("the turn has cost %s, which is more than its budget of %s: no more tools were called", cost, l.MaxCost)
	}
	return ""
}

// overBudget says why a request must not be sent; empty if it may. Of its reply nothing is known.
func (in *Input) overBudget(r *Request) string {
	l := in.Limits
	tokens, cost := in.State.spent()
	if l.MaxTokens > 0 && tokens+r.EstimatedTokens > l.MaxTokens {
		return fmt.Sprintf("the turn has taken %d tokens and the next request would take about %d: that is more than its budget of %d tokens",
			tokens, r.EstimatedTokens, l.MaxTokens)
	}
	var more decimal.Decimal
	if r.EstimatedCost != nil {
		more = r.EstimatedCost.Amount
	}
	if l.MaxCost.IsPositive() && cost.Add(more).GreaterThan(l.MaxCost) {
		return fmt.Sprintf("the turn has cost %s and the next request would cost about %s: that is more than its budget of %s", cost, more, l.MaxCost)
	}
	return ""
}
