package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// contentionFirst and contentionMost are the first and the longest wait for the requests of other Turns that have
	// reserved the rest of a budget. After contentionPatience, the Turn is parked for contentionPark.
	contentionFirst    = 250 * time.Millisecond
	contentionMost     = 4 * time.Second
	contentionPatience = 30 * time.Second
	contentionPark     = 30 * time.Second
	// lowerings is the number of times that the output limit of one attempt is lowered, while other Turns spend.
	lowerings = 3
)

// BudgetWait says for which budget a Turn waits.
type BudgetWait struct {
	// UID and Name identify the budget. Generation is the generation of the object that refused the request.
	UID, Name  string
	Generation int64
	// Until is when to try again: the reset of the budget, or some seconds from now if Contended is true.
	Until time.Time
	// Contended is true if the budget is not spent, but requests of other Turns have reserved the rest.
	Contended bool
	// Started is true if the Turn has sent a request before. Requests for vectors do not count, because they belong to
	// the preparation.
	Started bool
	// Message describes the wait for people.
	Message string
}

// begin records that a request is about to be sent, and reserves it in the budgets of the Turn. If wait is above 0,
// requests of other Turns have reserved the rest of a budget. The caller must then call begin again after this time. It
// must not wait with a ticket, because the request would occupy the gate of its provider meanwhile.
func (run *runner) begin(ctx context.Context, c *Candidate, r *Request, waited *contention) (wait time.Duration, end *End, err error) {
	for range lowerings {
		if err := run.safePoint(ctx); err != nil {
			return 0, nil, err
		}
		rules, change, err := run.reservations(c, r)
		if err != nil {
			return 0, nil, err
		}
		r.ID = fmt.Sprintf("%s/%d", run.TurnUID, run.NextSeq())
		err = run.Record(journal.Record{Kind: journal.ModelRequested, Payload: *r, Ledger: change})
		refusal, refused := errors.AsType[*budget.Refusal](err)
		if !refused {
			run.tools = nil // frees the tools until the model has answered
			return 0, nil, err
		}
		v := run.evaluate(c, r, rules, refusal)
		switch {
		case v.exceeded != "":
			end, err := run.overBudget(ctx, c, r, v.exceeded)
			return 0, end, err
		case v.wait != nil:
			return 0, nil, &Parked{Budget: v.wait}
		case v.contended != nil:
			wait, err := waited.next(v.contended)
			return wait, nil, err
		}
		r.OutputLimit, r.Budget = v.lower, v.lowerFor
	}
	wait, err = waited.next(nil)
	return wait, nil, err
}

// contention describes the waits of one request for requests of other Turns: the last wait, and all waits together.
type contention struct{ last, total time.Duration }

// next returns and counts the wait before the next attempt to reserve. After contentionPatience it returns a *Parked
// instead, so that the Turn holds no slot. refusal is nil if the reservation failed only because other Turns spent at
// the same time.
func (w *contention) next(refusal *BudgetWait) (time.Duration, error) {
	if refusal != nil && w.total >= contentionPatience {
		return 0, &Parked{Budget: refusal}
	}
	w.last = min(max(2*w.last, contentionFirst), contentionMost)
	w.total += w.last
	return w.last, nil
}

// reservations returns the budgets of the Turn, and the change of the ledger for a request. The change is nil if there
// is none. It sets r.Reserved and r.CountsTurn.
func (run *runner) reservations(c *Candidate, r *Request) ([]budget.Rule, *budget.Change, error) {
	var rules []budget.Rule
	if run.Budgets != nil && !c.Unusable {
		var err error
		if rules, err = run.Budgets(); err != nil {
			return nil, nil, fmt.Errorf("failed to find the budgets of the turn: %w", err)
		}
		rules = rules[:min(len(rules), budget.MaxOfTurn)]
	}
	r.Reserved = len(rules) > 0
	if r.CountsTurn = r.Reserved && !run.State.counted && !run.IsCounted; !r.Reserved {
		return nil, run.State.CloseReservations(), nil
	}
	reserve, err := Reservations(rules, c, r, r.CountsTurn, run.Now())
	if err != nil {
		return nil, nil, err
	}
	return rules, &budget.Change{Reserve: reserve}, nil
}

// Reservations returns the reservations of a request in budgets, one for each rule. first is true for the first request
// of a Turn. It returns an error if a period cannot be computed.
func Reservations(rules []budget.Rule, c *Candidate, r *Request, first bool, now time.Time) ([]budget.Reservation, error) {
	unknown := amountOf(model.Usage{InputTokens: r.EstimatedTokens}, r.EstimatedCost)
	reply := longestReply(c, r)
	cost := c.Pricing.Expected(r.EstimatedTokens, reply)
	var all []budget.Reservation
	for _, rule := range rules {
		p, err := budget.PeriodAt(rule.Unit, rule.Zone, now)
		if err != nil {
			return nil, fmt.Errorf("failed to compute the period of budget %q: %w", rule.Name, err)
		}
		next := budget.Reservation{
			Hold: budget.Hold{
				Key: budget.KeyOf(rule.UID, p), Currency: rule.Currency, Tokens: r.EstimatedTokens + reply, Unknown: unknown,
			},
			Limits: rule.Limits, CountTurn: first, Unpriced: true,
		}
		if cost != nil && cost.Currency == rule.Currency {
			next.Cost, next.Unpriced = cost.Amount, false
		}
		all = append(all, next)
	}
	return all, nil
}

// longestReply returns the number of tokens that are reserved for the reply to a request: all that the request allows,
// or minReply if it has no limit.
func longestReply(c *Candidate, r *Request) int64 {
	most := c.outputLimit()
	if c.ContextWindow > 0 {
		most = min(most, max(0, c.ContextWindow-r.EstimatedTokens))
	}
	switch {
	case c.Embeds:
		return 0
	case r.OutputLimit > 0 && (most == 0 || r.OutputLimit < most):
		return r.OutputLimit
	case most == 0:
		return minReply
	}
	return most
}

// amountOf returns a usage and its cost as an amount. cost is nil if it is unknown.
func amountOf(u model.Usage, cost *model.Cost) budget.Amount {
	a := budget.Amount{Tokens: u.InputTokens + u.OutputTokens}
	if cost != nil {
		a.Cost, a.Currency = cost.Amount, cost.Currency
	}
	return a
}

// settle returns the change of the ledger for a request that has ended, or nil if nothing was reserved for the request.
func settle(r *Request, u model.Usage, cost *model.Cost) *budget.Change {
	if !r.Reserved {
		return nil
	}
	return &budget.Change{Outcome: new(amountOf(u, cost))}
}

// settleFailure returns the change of the ledger for a request that has failed. If the request was not sent, the
// budgets do not count the Turn because of it. settleFailure returns nil if nothing was reserved for the request.
func settleFailure(r *Request, f *FailedRequest) *budget.Change {
	change := settle(r, f.Usage, f.Cost)
	if change != nil {
		change.Uncount = !f.WasSent() && r.CountsTurn
	}
	return change
}

// CloseReservations returns the change of the ledger that charges estimates for the requests whose outcome is unknown.
// The Turn's own usage contains the same estimates. It returns nil if there are no such requests.
func (s *State) CloseReservations() *budget.Change {
	for i := range s.cutOff {
		if s.cutOff[i].Reserved {
			return new(budget.Change)
		}
	}
	return nil
}

// ReservationOpen reports whether the newest request is still reserved, because the run that has sent it was cut off
// and no other run has begun. The next run must charge it before it reserves anything.
func (s *State) ReservationOpen() bool { return s.newestOpen && s.cutOff[len(s.cutOff)-1].Reserved }

// started reports whether a request was sent. Requests for vectors do not count, because they belong to the
// preparation.
func (s *State) started() bool {
	return slices.ContainsFunc(s.Requests, func(r Request) bool { return r.Purpose != ForEmbedding })
}

// refusalVerdict says how to handle a request that budgets refuse. The first of its fields that is set applies.
type refusalVerdict struct {
	// exceeded says why the request must not be sent at all.
	exceeded string
	// wait is the wait for the reset of a budget. contended is the wait for requests of other Turns.
	wait, contended *BudgetWait
	// lower is the output limit with which the request fits, because of the budget lowerFor.
	lower    int64
	lowerFor string
}

// evaluate decides how to handle a request that budgets refuse.
func (run *runner) evaluate(c *Candidate, r *Request, rules []budget.Rule, refusal *budget.Refusal) refusalVerdict {
	v := refusalVerdict{lower: longestReply(c, r)}
	for _, f := range refusal.Refused {
		for i := range rules {
			if rules[i].UID == f.Account.Budget {
				run.evaluateOne(&v, refusedRequest{c: c, r: r, rule: &rules[i], refused: f})
			}
		}
	}
	return v
}

// evaluateOne adds one limit to a verdict. If several limits require a wait, the longest wait applies.
func (run *runner) evaluateOne(v *refusalVerdict, f refusedRequest) {
	reset := f.refused.Account.Reset()
	wait := &BudgetWait{
		UID: f.rule.UID, Name: f.rule.Name, Generation: f.rule.Generation, Until: reset, Started: run.State.started(),
		Message: f.describe(),
	}
	useful, reply := f.replies()
	switch {
	case f.refused.Reason == budget.NoPrice:
		v.exceeded = f.describe()
	case f.refused.Contended:
		if wait.Until, wait.Contended = run.Now().Add(contentionPark), true; wait.Until.After(reset) {
			wait.Until = reset
		}
		v.contended = wait
	case f.rule.Queue && f.fitsInEmptyPeriod():
		if v.wait == nil || v.wait.Until.Before(reset) {
			v.wait = wait
		}
	case reply >= useful && f.refused.Reason != budget.OverTurns && f.c.outputLimit() > 0:
		if reply < v.lower {
			v.lower, v.lowerFor = reply, f.rule.Name
		}
	default:
		v.exceeded = f.describe()
	}
}

// overBudget returns the end of a Turn whose budgets do not allow a request. If the chain has another candidate, which
// may cost less, overBudget returns the failure of this candidate instead.
func (run *runner) overBudget(ctx context.Context, c *Candidate, r *Request, why string) (end *End, err error) {
	r.Reserved = false // there is no open reservation that the failure would settle
	if !run.hasFallback(c, r.Purpose, model.OverBudget) {
		return &End{Reason: OverBudget, Message: why}, nil
	}
	failure := &model.Error{Kind: model.OverBudget, Message: why, Unsent: true}
	if err := run.recordFailure(ctx, c, r, failure, failure, 0); err != nil {
		return nil, err
	}
	return nil, failure
}

// refusedRequest is a request that one limit of a budget refuses.
type refusedRequest struct {
	c       *Candidate
	r       *Request
	rule    *budget.Rule
	refused budget.Refused
}

// limited returns the request with the limit of the budget, which has spent the amounts of the given account.
func (f refusedRequest) limited(spent budget.Account) *limitedRequest {
	q := &limitedRequest{
		prompt: f.r.EstimatedTokens, most: longestReply(f.c, f.r), window: f.c.ContextWindow, pricing: f.c.Pricing,
		tokens: spent.Tokens, cost: spent.Cost,
	}
	switch f.refused.Reason { //nolint:exhaustive // because the others do not depend on the reply
	case budget.OverTokens:
		q.limits.MaxTokens = *f.rule.Limits.Tokens
	case budget.OverCost:
		q.limits.MaxCost = *f.rule.Limits.Cost
	}
	return q
}

// replies returns the least number of tokens of a useful reply, and the number that the rest of the budget pays for.
func (f refusedRequest) replies() (useful, reply int64) {
	q := f.limited(f.refused.Account)
	return min(q.most, minReply), f.affordable(q)
}

// affordable returns the number of tokens of the reply that the rest of a budget pays for. It is negative if the rest
// does not suffice for the prompt, or if the limit is 0.
func (f refusedRequest) affordable(q *limitedRequest) int64 {
	switch f.refused.Reason { //nolint:exhaustive // because the others do not depend on the reply
	case budget.OverTokens:
		if q.limits.MaxTokens > 0 {
			return q.tokensLeft()
		}
	case budget.OverCost:
		if q.limits.MaxCost.IsPositive() {
			return q.costLeft()
		}
	}
	return -1
}

// fitsInEmptyPeriod reports whether a wait for the next period helps, because the request and at least a useful reply
// fit the limit of an empty period. A limit of 0 pauses the Turns of a budget until the limit is raised.
func (f refusedRequest) fitsInEmptyPeriod() bool {
	switch f.refused.Reason {
	case budget.OverTurns:
		return true
	case budget.OverTokens:
		if *f.rule.Limits.Tokens == 0 {
			return true
		}
	case budget.OverCost:
		if f.rule.Limits.Cost.IsZero() {
			return true
		}
	case budget.NoPrice:
		return false
	}
	if f.refused.Account.Tokens == 0 && f.refused.Account.Cost.IsZero() {
		return false // this period is empty
	}
	q := f.limited(budget.Account{})
	return f.affordable(q) >= min(q.most, minReply)
}

// DescribeRefusal describes for people which budgets refuse a request, and why.
func DescribeRefusal(rules []budget.Rule, c *Candidate, r *Request, refusal *budget.Refusal) string {
	var all []string
	for _, f := range refusal.Refused {
		if i := slices.IndexFunc(rules, func(rule budget.Rule) bool { return rule.UID == f.Account.Budget }); i >= 0 {
			all = append(all, refusedRequest{c: c, r: r, rule: &rules[i], refused: f}.describe())
		}
	}
	return strings.Join(all, "; ")
}

// describe names the budget, its limit, the amount that is spent, and the time of the reset.
func (f refusedRequest) describe() string {
	a, per := f.refused.Account, strings.ToLower(string(f.rule.Unit))
	reset := fmt.Sprintf("the next period begins at %s", a.Reset().In(f.rule.Zone).Format(time.RFC3339))
	name := fmt.Sprintf("Budget %q", f.rule.Name)
	switch f.refused.Reason {
	case budget.OverTurns:
		return fmt.Sprintf("%s allows %d turns per %s, and %d have begun: %s", name, *f.rule.Limits.Turns, per, a.Turns, reset)
	case budget.OverTokens:
		return fmt.Sprintf("%s allows %d tokens per %s: %d are spent and %d are reserved by other requests, and the next request may use "+
			"%d: %s", name, *f.rule.Limits.Tokens, per, a.Tokens, a.ReservedTokens, f.r.EstimatedTokens+longestReply(f.c, f.r), reset)
	case budget.OverCost:
		expected := decimal.Zero
		if c := f.c.Pricing.Expected(f.r.EstimatedTokens, longestReply(f.c, f.r)); c != nil {
			expected = c.Amount
		}
		return fmt.Sprintf("%s allows %s %s per %s: %s are spent and %s are reserved by other requests, and the next request "+
			"may cost %s: %s", name, f.rule.Limits.Cost, f.rule.Currency, per, a.Cost, a.ReservedCost, expected, reset)
	case budget.NoPrice:
	}
	return fmt.Sprintf("%s limits the cost in %s, and model %q of ModelProvider %q has no price in %s: declare it in "+
		"spec.models[].pricing of the ModelProvider", name, f.rule.Currency, f.c.Model, f.c.ProviderName, f.rule.Currency)
}
