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
	// MaxSteps is the maximum number of steps in which the model may call tools, at least 1. After them, the model must
	// answer without calls.
	MaxSteps int
	// MaxToolCalls is the maximum number of tool calls.
	MaxToolCalls int
	// MaxDescendants is the maximum number of Turns of sub-agents at any depth.
	MaxDescendants int
	// ApprovalTimeout is how long a call waits for a decision. When it expires, the call is denied.
	ApprovalTimeout time.Duration
	// MaxTokens is the maximum number of tokens of all requests, input and output together. 0 means no limit. A request
	// that was cut off counts with the estimate of its prompt.
	MaxTokens int64
	// MaxCost is the maximum cost of all requests in the currency of the prices. 0 means no limit.
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
	for sub := range s.SubAgentUsage {
		sum = sum.Add(sub.Usage)
		cost = cost.Add(sub.KnownCost())
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

// minReply is the smallest output limit, in tokens, with which a request is worth sending. The limit may be smaller if
// the model or the Agent requires it.
const minReply = 1024

// safeOutputLimit is an output limit that every model is assumed to accept.
const safeOutputLimit = 4096

// limitedRequest is a request that a budget may limit.
type limitedRequest struct {
	// limits is the budget. tokens and cost are the part of it that is used.
	limits Limits
	tokens int64
	cost   decimal.Decimal
	// prompt is the estimated number of tokens of the prompt. most is the number of tokens that the request allows for
	// the reply, and window is the context window. most and window are 0 if they are unknown.
	prompt, most, window int64
	// pricing is the price of the model. If it is nil, the price is unknown and only the tokens are limited.
	pricing *model.Pricing
}

// limited returns a request to a candidate with the limits of the Turn.
func (run *runner) limited(c *Candidate, r *Request) *limitedRequest {
	q := &limitedRequest{limits: run.Limits, prompt: r.EstimatedTokens, most: c.outputLimit(), window: c.ContextWindow, pricing: c.Pricing}
	q.tokens, q.cost = run.State.spent()
	return q
}

// outputLimit returns the output limit that the request must have to keep to the budget and the context window, or 0 if
// the request may keep its own limit. If the rest of the budget does not suffice for the prompt and a useful reply, the
// request must not be sent, and why says so.
//
// Servers refuse a request whose prompt and output limit together exceed the context window. If at least half of the
// output limit and at least minReply fit into the window, the reply may use the rest of the window. Otherwise the
// request keeps its limit, so that the server refuses it and the conversation is shortened.
//
// If it is unknown how long a reply may be, only the prompt must fit into the budget. If more than safeOutputLimit
// tokens are left, no limit is set, so the reply may exceed the budget. Otherwise the reply may exceed the budget by at
// most minReply.
func (q *limitedRequest) outputLimit() (limit int64, why string) {
	most := q.most
	if q.window > 0 {
		most = min(most, max(0, q.window-q.prompt))
	}
	useful := min(most, minReply)
	tokens, cost := q.tokensLeft(), q.costLeft()
	switch left := min(tokens, cost); {
	case tokens < useful:
		return 0, q.tooManyTokens(most, useful)
	case cost < useful:
		return 0, q.tooCostly(most, useful)
	case most > 0 && left < most:
		return left, ""
	case most < q.most && most >= max(q.most/2, minReply):
		return most, ""
	case most > 0 || left > safeOutputLimit:
		return 0, ""
	default:
		limit = max(left, minReply)
	}
	if q.window > 0 {
		limit = max(0, min(limit, q.window-q.prompt))
	}
	return limit, ""
}

// tokensLeft returns the number of tokens that the budget leaves for the reply. The number is negative if the budget
// does not suffice for the prompt.
func (q *limitedRequest) tokensLeft() int64 {
	if q.limits.MaxTokens <= 0 {
		return model.MaxTokens
	}
	return q.limits.MaxTokens - q.tokens - q.prompt
}

// costLeft returns the number of tokens of the reply that the rest of the cost budget pays for. The number is negative
// if the rest does not suffice for the prompt.
func (q *limitedRequest) costLeft() int64 {
	if !q.limits.MaxCost.IsPositive() {
		return model.MaxTokens
	}
	const million = 1_000_000
	left := q.limits.MaxCost.Sub(q.cost).Sub(q.expected(0))
	if left.IsNegative() {
		return -1
	}
	price := q.expected(million).Sub(q.expected(0))
	if !price.IsPositive() {
		return model.MaxTokens
	}
	tokens := left.Mul(decimal.NewFromInt(million)).Div(price).Floor()
	return decimal.Min(tokens, decimal.NewFromInt(model.MaxTokens)).IntPart()
}

// expected returns the cost of the request with a reply of this number of tokens, or 0 if the price is unknown.
func (q *limitedRequest) expected(reply int64) decimal.Decimal {
	if c := q.pricing.Expected(q.prompt, reply); c != nil {
		return c.Amount
	}
	return decimal.Zero
}

// tooManyTokens returns the message that the rest of the tokens does not suffice for the request with a useful reply.
// most is the number of tokens of the longest reply.
func (q *limitedRequest) tooManyTokens(most, useful int64) string {
	more := fmt.Sprintf("would use about %d more", q.prompt)
	if useful > 0 {
		more = fmt.Sprintf("may use %d more, about %d for its prompt and %s %d for the reply", q.prompt+useful, q.prompt,
			bound(most), useful)
	}
	return fmt.Sprintf("the turn used %d tokens and the next request %s: together they exceed its budget of %d tokens%s", q.tokens,
		more, q.limits.MaxTokens, remedy("maxTokens", most))
}

// tooCostly is like tooManyTokens, but for the cost.
func (q *limitedRequest) tooCostly(most, useful int64) string {
	more := fmt.Sprintf("would cost about %s more", q.expected(0))
	if useful > 0 {
		more = fmt.Sprintf("may cost %s more with a reply of %s %d tokens", q.expected(useful), bound(most), useful)
	}
	return fmt.Sprintf("the turn cost %s and the next request %s: together they exceed its budget of %s%s", q.cost, more,
		q.limits.MaxCost, remedy("maxCost", most))
}

// bound returns the words before the number of tokens of the shortest useful reply. most is the longest reply.
func bound(most int64) string {
	if most > minReply {
		return "at least"
	}
	return "up to"
}

// remedy returns the end of a message: what to do if a request exceeds a limit. most is the longest reply.
func remedy(limit string, most int64) string {
	switch {
	case most == 0:
		return ""
	case most > minReply:
		return ": raise limits." + limit
	}
	return fmt.Sprintf(": raise limits.%s, or lower parameters.maxOutputTokens of the Agent", limit)
}

// keepToBudget gives a request the output limit that the budget allows. If the budget does not allow the request,
// keepToBudget returns an End. If the chain has another candidate, which may cost less, it returns the failure of this
// candidate instead.
func (run *runner) keepToBudget(ctx context.Context, c *Candidate, r *Request) (end *End, err error) {
	if c.Unusable {
		return nil, nil //nolint:nilnil // because nothing is sent
	}
	limit, why := run.limited(c, r).outputLimit()
	r.OutputLimit = limit
	if why == "" {
		return nil, nil //nolint:nilnil // because the request may be sent
	}
	return run.overBudget(ctx, c, r, why)
}

// limitedByBudget reports whether a budget lowers the output limit of a request. It returns false if the context window
// leaves no more tokens than the output limit.
func limitedByBudget(c *Candidate, r *Request) bool {
	most := c.outputLimit()
	if c.ContextWindow > 0 {
		if rest := max(0, c.ContextWindow-r.EstimatedTokens); most == 0 || rest < most {
			most = rest
		}
	}
	return r.OutputLimit > 0 && (r.OutputLimit < most || most == 0 && c.ContextWindow == 0)
}

// CutByWindow reports whether the last reply is cut off because the context window left no more tokens for it.
func (s *State) CutByWindow() bool {
	step, n := s.LastStep(), len(s.Requests)
	return step != nil && step.Reply.FinishReason == model.FinishLength && !step.Reply.TooLong && !step.OverBudget &&
		n > 0 && s.Requests[n-1].OutputLimit > 0
}

// cutByBudget returns the end of a Turn whose budget has cut off a reply.
func (run *runner) cutByBudget(s *Step) *End {
	if n := len(run.State.Requests); n > 0 && run.State.Requests[n-1].Budget != "" {
		return &End{Reason: OverBudget, Message: fmt.Sprintf("the model's answer was cut off after %d output tokens, because Budget %q "+
			"left no more: wait for its next period, or ask for a shorter answer",
			s.Reply.Usage.OutputTokens, run.State.Requests[n-1].Budget)}
	}
	return &End{Reason: OverBudget, Message: fmt.Sprintf("the model's answer was cut off after %d output tokens, because the turn's "+
		"budget left no more: raise limits.maxTokens or limits.maxCost, or ask for a shorter answer", s.Reply.Usage.OutputTokens)}
}
