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
	// MaxSteps is the number of replies after which the loop continues, at least 1.
	MaxSteps int
	// MaxToolCalls is the number of tool calls.
	MaxToolCalls int
	// MaxDescendants is the number of Turns that sub-agents may create at any depth, their own Turns included.
	MaxDescendants int
	// ApprovalTimeout is how long a call waits for a decision. When it expires, the call is denied.
	ApprovalTimeout time.Duration
	// MaxTokens is the number of tokens that the requests may use, input and output together. 0 means no limit. A
	// request that was cut off counts with the estimate of its prompt.
	MaxTokens int64
	// MaxCost is the cost of the requests in the currency of the prices. 0 means no limit.
	MaxCost decimal.Decimal
}

// spent returns the usage of all requests and sub-agents. It adds costs in different currencies without conversion:
// a limit that is reached too early is better than no limit.
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

// left returns the rest of the Turn's budget. Its Time is 0 if the Turn has no deadline.
func (run *runner) left(ctx context.Context) tool.Left {
	var l tool.Left
	if deadline, ok := ctx.Deadline(); ok {
		l.Time = max(0, time.Until(deadline))
	}
	tokens, cost := run.State.spent()
	if run.Limits.MaxTokens > 0 {
		l.Tokens = new(max(0, run.Limits.MaxTokens-tokens))
	}
	if run.Limits.MaxCost.IsPositive() {
		l.Cost = new(decimal.Max(decimal.Zero, run.Limits.MaxCost.Sub(cost)))
	}
	return l
}

// budgetSpent returns the reason why the budget allows no further action at all, or "" if the budget is not spent.
func (run *runner) budgetSpent() string {
	tokens, cost := run.State.spent()
	switch l := run.Limits; {
	case l.MaxTokens > 0 && tokens > l.MaxTokens:
		return fmt.Sprintf("the turn used %d tokens, which is more than its budget of %d tokens: no further tools were called",
			tokens, l.MaxTokens)
	case l.MaxCost.IsPositive() && cost.GreaterThan(l.MaxCost):
		return fmt.Sprintf("the turn cost %s, which is more than its budget of %s: no further tools were called", cost, l.MaxCost)
	}
	return ""
}

// overBudget returns the reason why a request to a candidate must not be sent, or "" if it may be sent. The request is
// expected to use its prompt and a long reply: see expectedReply.
func (run *runner) overBudget(c *Candidate, r *Request) string {
	if c.Unusable {
		return "" // nothing is sent
	}
	reply := run.expectedReply(c)
	if c.ContextWindow > 0 {
		reply = min(reply, max(0, c.ContextWindow-r.EstimatedTokens))
	}
	tokens, cost := run.State.spent()
	if l := run.Limits.MaxTokens; l > 0 && tokens+r.EstimatedTokens+reply > l {
		more, remedy := fmt.Sprintf("would use about %d more", r.EstimatedTokens), ""
		if reply > 0 {
			more = fmt.Sprintf("may use %d more, about %d for its prompt and up to %d for the reply", r.EstimatedTokens+reply,
				r.EstimatedTokens, reply)
			remedy = ": raise limits.maxTokens, or lower parameters.maxOutputTokens of the Agent"
		}
		return fmt.Sprintf("the turn used %d tokens and the next request %s: together they exceed its budget of %d tokens%s",
			tokens, more, l, remedy)
	}
	expected := c.Pricing.Expected(r.EstimatedTokens, reply)
	if expected == nil {
		expected = &model.Cost{} // unknown: only maxTokens limits such requests
	}
	if l := run.Limits.MaxCost; l.IsPositive() && cost.Add(expected.Amount).GreaterThan(l) {
		more, remedy := fmt.Sprintf("would cost about %s more", expected.Amount), ""
		if reply > 0 {
			more = fmt.Sprintf("may cost %s more with a reply of up to %d tokens", expected.Amount, reply)
			remedy = ": raise limits.maxCost, or lower parameters.maxOutputTokens of the Agent"
		}
		return fmt.Sprintf("the turn cost %s and the next request %s: together they exceed its budget of %s%s", cost, more, l, remedy)
	}
	return ""
}

// usualReply is the number of tokens that a reply is expected to have if the request does not limit it.
const usualReply = 1024

// expectedReply returns the number of tokens that a reply of a candidate is expected to have at most, or 0 if that is
// unknown. It is the limit that the Agent sets, because the request contains it. What a model could write if it were
// asked to is far more than what it usually writes. So without a limit of the Agent, the longest reply of the Turn so
// far counts, and at least usualReply, if the model is declared to write so much.
func (run *runner) expectedReply(c *Candidate) int64 {
	longest := c.longestReply()
	if c.Parameters.MaxOutputTokens != nil {
		return longest
	}
	usual := int64(usualReply)
	for one := range run.State.Spendings {
		usual = max(usual, one.Usage.OutputTokens)
	}
	return min(longest, usual)
}
