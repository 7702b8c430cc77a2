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
	// MaxTokens is how many tokens its requests may take, input and output together; 0 for any number. A request that was cut
	// off takes what its prompt was estimated at.
	MaxTokens int64
	// MaxCost is what they may cost, in the currency of the prices; 0 for any amount.
	MaxCost decimal.Decimal
}

// charsPerToken estimates the tokens of messages of which no endpoint has said yet how many they have.
const charsPerToken = 4

// spent adds up all requests. Those that were cut off are of the budget, or a run that is cut off again and again would spend
// without bound; they are not of the usage that is reported, as nobody knows theirs. Costs in several currencies are added as they are: a bound that is reached too early is
// better than none.
func (s *State) spent() (tokens int64, cost decimal.Decimal) {
	var sum model.Usage
	for u, c := range s.Spendings {
		sum = sum.Add(u)
		if c != nil {
			cost = cost.Add(c.Amount)
		}
	}
	for _, r := range s.cutOff {
		sum = sum.Add(model.Usage{InputTokens: r.EstimatedTokens})
		if r.EstimatedCost != nil {
			cost = cost.Add(r.EstimatedCost.Amount)
		}
	}
	return sum.InputTokens + sum.OutputTokens, cost
}

// budgetSpent says why nothing more may be done, whatever it takes; empty if something may.
func (in Input) budgetSpent() string {
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
func (in Input) overBudget(r Request) string {
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

// estimate is about how many tokens a prompt has: those of the last one, its reply without the reasoning, which is not sent
// back, and what was said since.
func estimate(s *State, messages []model.Message) int64 {
	last := s.LastStep()
	if last == nil || last.Reply.Usage.InputTokens == 0 {
		return characters(messages) / charsPerToken
	}
	since := len(messages)
	for since > 0 && messages[since-1].Role != model.RoleAssistant {
		since--
	}
	u := last.Reply.Usage
	return u.InputTokens + max(0, u.OutputTokens-u.ReasoningTokens) + characters(messages[since:])/charsPerToken
}

func characters(messages []model.Message) int64 {
	var n int64
	for _, m := range messages {
		n += int64(len(m.Content))
	}
	return n
}
