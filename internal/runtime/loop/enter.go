package loop

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// enter waits until a candidate may get a request, and returns the ticket for it. The request is not in the journal
// yet, so a run that stops during the wait has sent nothing. If the request must not wait any longer, the ticket is a
// refusal. The run keeps no memory of its newest reply during the wait: it waits for a request of another Turn, which
// may need that memory.
func (run *runner) enter(ctx context.Context, c *Candidate, q *modelRequest) (model.Ticket, error) {
	gate, ok := c.Provider.(model.Gate)
	if !ok {
		return open{c.Provider}, nil
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
	return refusal{model.AsError(err)}, nil
}

// GateError is joined to the cause of a context that ended while a request waited for its turn.
type GateError struct {
	// Provider is the name of the provider.
	Provider string
}

// Error names the provider.
func (e *GateError) Error() string {
	return fmt.Sprintf("the next request waited for ModelProvider %q", e.Provider)
}

// waitOf returns how a request waits. If something must follow, half of the time that is left is kept for it.
func (run *runner) waitOf(ctx context.Context, c *Candidate, q *modelRequest) model.Wait {
	return model.Wait{
		Model: c.Model, Tokens: q.tokens, Fallback: run.hasFallback(c, q.purpose, model.Overloaded), MaxPause: run.fallbackTime(),
		MaxWait: run.firstEventTimeout(ctx, c, q.purpose), Stop: run.Interrupt,
	}
}

// refusal is the ticket of a request that is not sent. The candidate is not asked again for this step.
type refusal struct{ failure *model.Error }

// Generate returns why the request is not sent.
func (r refusal) Generate(context.Context, *model.Request) (*model.Reply, error) {
	return nil, r.failure
}

// Leave does nothing.
func (refusal) Leave() {}

// isRefusal reports whether a ticket is a refusal.
func isRefusal(t model.Ticket) bool {
	_, ok := t.(refusal)
	return ok
}

// open is the ticket of a provider without a gate.
type open struct{ model.Provider }

// Leave does nothing.
func (open) Leave() {}
