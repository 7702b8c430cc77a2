package pace

import (
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Permit allows one request.
type Permit struct {
	gate      *Gate
	lane      *lane
	namespace string
	tokens    int64
	// number is the number of the request among the requests to the model.
	number int64
	// admitted is when the request was let in.
	admitted time.Time
	// tries is true if the request tries an endpoint that has failed, until the first part of its answer has arrived.
	tries bool
	// begun is true once the endpoint has begun an answer, or has refused the request.
	begun bool
	// done reports the result to the circuit. It is nil once the result was reported or is no longer needed.
	done func(error)
	// ended is true once the request has ended.
	ended bool
}

// Outcome is the end of a request.
type Outcome struct {
	// Tokens is the number of tokens that count for the limits.
	Tokens int64
	// Unsent is true if nothing was sent.
	Unsent bool
	// Failure is the failure of the request, or nil if it succeeded.
	Failure *model.Error
	// OwnTimeout is true if the request itself bounded the time, so that a timeout does not mean that the endpoint
	// failed.
	OwnTimeout bool
	// Silent is true if the time of the request or of its Turn was over. It counts only if no part of an answer
	// arrived.
	Silent bool
}

// errNoSign means that the end of a request says nothing about the endpoint.
var errNoSign = errors.New("no sign")

// sign returns what an outcome says about the endpoint: nil if the endpoint works, its failure, or errNoSign. An
// endpoint that refuses a request works.
func (o *Outcome) sign() error {
	switch {
	case o.Unsent, o.Failure != nil && (o.Failure.Unsent || errors.Is(o.Failure.Err, model.ErrOwnMemory)):
		return errNoSign
	case o.Failure == nil:
		return nil
	}
	switch o.Failure.Kind {
	case model.Overloaded, model.Network:
		return o.Failure
	case model.Timeout:
		if o.OwnTimeout {
			return errNoSign
		}
		return o.Failure
	case model.Cancelled, model.Malformed, model.Unusable, model.OverBudget:
		return errNoSign
	case model.RateLimited, model.ContextLength, model.ContentFiltered, model.ReplyTooLong, model.Auth, model.InvalidRequest,
		model.QuotaExceeded:
		return nil
	}
	return nil
}

// Done ends the request. Only the first call has an effect.
func (p *Permit) Done(o Outcome) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.finish(o)
}

// finish is Done for a caller that holds the lock of the gate.
func (p *Permit) finish(o Outcome) {
	if p.ended {
		return
	}
	p.ended = true
	g, l, now := p.gate, p.lane, clock()
	g.used = now
	o.Tokens = boundedTokens(o.Tokens)
	o.Unsent = o.Unsent || o.Failure != nil && o.Failure.Unsent
	g.total.settle(&o, p.tokens, now.Sub(p.admitted))
	l.settle(&o, p.tokens, now.Sub(p.admitted))
	l.recordEnd(p, o.Unsent)
	sign := o.sign()
	switch {
	case errors.Is(sign, errNoSign) && o.Silent:
		sign = l.silentEnd(p, now)
	case sign == nil && o.Failure == nil:
		l.recordAnswer(p, now)
	case sign == nil:
		l.recordResponse(p, now)
	}
	if failure, ok := errors.AsType[*model.Error](sign); ok {
		l.recordFailure(p, failure)
	}
	if sign == nil && p.tries {
		l.closeCircuit(p)
	}
	p.report(sign)
	switch {
	case o.Unsent:
	case o.Failure == nil:
		l.recordAcceptance(p.number)
	case o.Failure.Kind == model.RateLimited || o.Failure.RetryAfter > 0:
		l.startPause(p.number, o.Failure.RetryAfter, now)
	}
	if o.Failure != nil {
		g.evict(l, now)
	}
	g.letIn(now)
}

// report reports the result of the request to the circuit, at most once.
func (p *Permit) report(sign error) {
	if p.lane.trial == p {
		p.lane.trial = nil
	}
	if p.done != nil {
		p.done(sign)
	}
	p.done, p.tries = nil, false
}

// abandonTrial lets another request try the endpoint. If the answer to this request begins later, it still counts.
func (p *Permit) abandonTrial() {
	p.done(errNoSign)
	p.done, p.lane.trial = nil, nil
}

// ObserveBegin records that the answer has begun. If the request is a trial of the endpoint, the trial has succeeded:
// the other requests need not wait for the whole answer.
func (p *Permit) ObserveBegin() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.ended {
		return
	}
	now := clock()
	p.lane.recordAnswer(p, now)
	if p.tries {
		p.lane.closeCircuit(p)
	}
	g.letIn(now)
}

// boundedTokens returns a number of tokens that an endpoint has reported, within bounds.
func boundedTokens(n int64) int64 { return min(max(0, n), model.MaxTokens) }

// ObserveLimits sets the limits that the endpoint has stated in the answer to this request. It does nothing if the
// answer to a later request has already stated limits.
func (p *Permit) ObserveLimits(stated model.StatedLimits) {
	g, l := p.gate, p.lane
	g.mu.Lock()
	defer g.mu.Unlock()
	statesNone := stated.Requests.Reset <= 0 && stated.Tokens.Reset <= 0
	if statesNone || p.ended || p.number < l.statedBy {
		return
	}
	l.statedBy = p.number
	now := clock()
	l.setStatedLimits(p, stated, now)
	g.evict(l, now)
	g.letIn(now)
}
