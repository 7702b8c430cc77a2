package loop

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// enter waits until a request may be sent to a candidate, and returns the ticket for the request. The request is not in
// the journal yet, so a run that stops during the wait has sent nothing. If the gate refuses the request, for example
// because the wait would be too long, the ticket is a refusedTicket. Before the wait, enter releases the memory of the
// newest reply, because the requests that occupy the gate may need that memory to finish.
func (run *runner) enter(ctx context.Context, c *Candidate, q *modelRequest) (model.Ticket, error) {
	gate, ok := c.Provider.(model.Gate)
	if !ok {
		return ungatedTicket{c.Provider}, nil
	}
	if run.CountReply != nil {
		if err := run.CountReply(); err != nil {
			return nil, err
		}
	}
	run.tools = nil // frees the tools during the wait
	ticket, err := gate.Enter(ctx, run.waitOf(ctx, c, q))
	if err == nil {
		return ticket, nil
	}
	if ctx.Err() != nil {
		return nil, contextCause(ctx, &GateError{Provider: c.ProviderName})
	}
	if stop := run.safePoint(ctx); stop != nil {
		return nil, stop
	}
	return refusedTicket{model.AsError(err)}, nil
}

// GateError is joined to the cause of a context that ended while a request waited at the gate.
type GateError struct {
	// Provider is the name of the provider.
	Provider string
}

// Error names the provider.
func (e *GateError) Error() string {
	return fmt.Sprintf("the next request waited for ModelProvider %q", e.Provider)
}

// waitOf returns the bounds for the wait of a request at the gate. If another candidate or a step must follow the
// request, the wait may take at most half of the time until the Turn's deadline.
func (run *runner) waitOf(ctx context.Context, c *Candidate, q *modelRequest) model.Wait {
	return model.Wait{
		Model: c.Model, Tokens: q.tokens, Fallback: run.hasFallback(c, q.purpose, model.Overloaded), FallbackTime: run.fallbackTime(),
		MaxWait: run.firstEventTimeout(ctx, c, q.purpose), Stop: run.Interrupt,
	}
}

// refusedTicket is the ticket of a request that is not sent. The candidate is not asked again for this step.
type refusedTicket struct{ failure *model.Error }

// Generate returns the reason why the request is not sent.
func (r refusedTicket) Generate(context.Context, *model.Request) (*model.Reply, error) {
	return nil, r.failure
}

// Leave does nothing.
func (refusedTicket) Leave() {}

// isRefused reports whether a ticket is a refusedTicket.
func isRefused(t model.Ticket) bool {
	_, ok := t.(refusedTicket)
	return ok
}

// ungatedTicket is the ticket of a provider without a gate.
type ungatedTicket struct{ model.Provider }

// Leave does nothing.
func (ungatedTicket) Leave() {}
