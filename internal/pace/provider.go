package pace

import (
	"context"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Caller is a Turn that sends requests to models.
type Caller struct {
	// Namespace and Agent belong to the Turn. Namespaces take turns, and so do the Agents of a namespace.
	Namespace, Agent string
	// Waits is called with the name of a provider when a request has waited for it for some seconds, and with an empty
	// name when the wait is over. It must not block. It may be nil.
	Waits func(provider string)
	// Low lets all requests of other callers go first.
	Low bool
}

// Provider returns a provider, a model.Gate, whose requests wait at the gate before inner sends them.
func (g *Gate) Provider(caller Caller, inner model.Provider) model.Provider {
	return &gated{gate: g, caller: caller, inner: inner}
}

// gated implements model.Gate.
type gated struct {
	gate   *Gate
	caller Caller
	inner  model.Provider
}

// Enter waits until a request may be sent.
func (g *gated) Enter(ctx context.Context, w model.Wait) (model.Ticket, error) {
	r := &Request{Wait: w, Namespace: g.caller.Namespace, Agent: g.caller.Agent, Low: g.caller.Low}
	if g.caller.Waits != nil {
		r.Waits = g.waits
	}
	permit, err := g.gate.Enter(ctx, r)
	if err != nil {
		return nil, err
	}
	return &ticket{permit: permit, request: r, inner: g.inner}, nil
}

func (g *gated) waits(waits bool) {
	if waits {
		g.caller.Waits(g.gate.provider)
	} else {
		g.caller.Waits("")
	}
}

// Generate waits as long as necessary, and then sends the request.
func (g *gated) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	ticket, err := g.Enter(ctx, model.Wait{Model: req.Model})
	if err != nil {
		return nil, unsent(err)
	}
	return ticket.Generate(ctx, req)
}

// unsent returns the failure of a request that was not let in.
func unsent(err error) error {
	if _, ok := errors.AsType[*model.Error](err); ok {
		return err
	}
	return &model.Error{Kind: model.Cancelled, Message: "the request was cancelled", Err: err, Unsent: true}
}

// freshFor is how long a request may be sent after it was let in.
const freshFor = 5 * time.Second

// ticket implements model.Ticket.
type ticket struct {
	permit  *Permit
	request *Request
	inner   model.Provider
}

// renew waits again if too much time has passed since the request was let in. Otherwise, all requests that were let in
// during an outage of the journal would be sent at the same time.
func (t *ticket) renew(ctx context.Context) error {
	gate := t.permit.gate
	if clock().Sub(t.permit.admitted) <= freshFor {
		return nil
	}
	t.Leave()
	permit, err := gate.Enter(ctx, t.request)
	if err != nil {
		return unsent(err)
	}
	t.permit = permit
	return nil
}

// Leave gives the ticket back.
func (t *ticket) Leave() { t.permit.Done(Outcome{Unsent: true}) }

// Generate sends the request. If the request was let in too long ago, it first waits for its turn again.
func (t *ticket) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	defer t.Leave() // has an effect only if the adapter panics
	if err := t.renew(ctx); err != nil {
		return nil, err
	}
	req.Observer = t.permit
	bound, begin := req.FirstEventTimeout, time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	reply, err := t.inner.Generate(ctx, req)
	t.finish(reply, err, bound > 0 && time.Since(begin) >= bound, errors.Is(ctx.Err(), context.DeadlineExceeded))
	return reply, err
}

// finish ends the request. It must not be inlined: its variables would stay on the stack of a waiting Turn.
//
//go:noinline
func (t *ticket) finish(reply *model.Reply, err error, ownTimeout, timeOver bool) {
	o := Outcome{OwnTimeout: ownTimeout}
	var usage model.Usage
	if err != nil {
		o.Failure = model.AsError(err)
		usage = o.Failure.Usage
		o.Silent = o.Failure.Kind == model.Timeout && ownTimeout || o.Failure.Kind == model.Cancelled && timeOver
	} else {
		usage = reply.Usage
	}
	o.Tokens = boundedTokens(usage.InputTokens) + boundedTokens(usage.OutputTokens)
	if o.Tokens == 0 && (err == nil || o.Failure.MayBeBilled) {
		o.Tokens = t.request.Tokens
	}
	t.permit.Done(o)
}
