package loop

import (
	"context"
	"errors"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Outside returns the entry of a request that is sent outside of a Turn, and sets the model, the parameters and the
// output limit of the request. most is the number of tokens that suffices for the reply. It becomes the output limit
// unless the model's own limit is lower. If the model's own limit is unknown and most is above safeOutputLimit, the
// request gets no output limit. If such a reply does not fit into the context window, the rest of the window becomes
// the output limit instead.
func Outside(c *Candidate, r *model.Request, purpose Purpose, most int64) *Request {
	r.Model, r.Parameters = c.Model, c.Parameters
	entry := &Request{Purpose: purpose, Provider: c.ProviderName, Model: c.Model, Attempt: 1, EstimatedTokens: countPrompt(*r)}
	entry.EstimatedCost = c.Pricing.Cost(model.Usage{InputTokens: entry.EstimatedTokens})
	own := c.outputLimit()
	if own == 0 && most <= safeOutputLimit || most < own {
		entry.OutputLimit = most
	}
	if c.ContextWindow > 0 {
		// Servers refuse a request whose output limit does not fit into the context window.
		if rest := max(1, c.ContextWindow-entry.EstimatedTokens); rest < most && (own == 0 || rest < own) {
			entry.OutputLimit = rest
		}
	}
	if entry.OutputLimit > 0 {
		r.OutputLimit = int(entry.OutputLimit)
	}
	return entry
}

// EstimateOutside estimates the number of tokens of a request that is sent outside of a Turn, and of a short reply.
func EstimateOutside(r *model.Request) int64 { return countPrompt(*r) + minReply }

// EnterOutside waits until a request outside of a Turn may be sent, and returns the ticket for it. The caller must use
// the ticket or leave it.
func EnterOutside(ctx context.Context, c *Candidate, r *Request) (model.Ticket, *model.Error) {
	gate, ok := c.Provider.(model.Gate)
	if !ok {
		return ungatedTicket{c.Provider}, nil
	}
	ticket, err := gate.Enter(ctx, model.Wait{Model: c.Model, Tokens: r.EstimatedTokens})
	if err == nil {
		return ticket, nil
	}
	failure, ok := errors.AsType[*model.Error](err)
	if !ok {
		failure = &model.Error{Kind: model.Cancelled, Message: "the request was cancelled", Err: err, Unsent: true}
	}
	return nil, failure
}

// ReplyOutside returns the entry of the reply to a request that was sent outside of a Turn, without its content. facts
// and took, in milliseconds, are those of the request.
func ReplyOutside(c *Candidate, r *Request, reply *model.Reply, facts *model.Facts, took int64) *Step {
	usage := usageOfReply(r, reply)
	return &Step{
		Purpose: r.Purpose, Provider: r.Provider, Model: r.Model, Cost: c.Pricing.Cost(usage), DurationMS: took,
		FirstEventMS: facts.FirstEvent.Milliseconds(), ResponseModel: facts.Model,
		Reply: model.Reply{Usage: usage, FinishReason: reply.FinishReason},
	}
}

// FailureOutside returns the entry of the failure of a request that was sent outside of a Turn. took is its time in
// milliseconds.
func FailureOutside(c *Candidate, r *Request, failure *model.Error, took int64) *FailedRequest {
	usage := usageOfFailure(r, failure)
	return &FailedRequest{
		Purpose: r.Purpose, Provider: r.Provider, Model: r.Model, Kind: failure.Kind, Message: failure.Message, Usage: usage,
		Cost: c.Pricing.Cost(usage), DurationMS: took, Unsent: failure.Unsent, NotReached: failure.NotReached,
		MayBeBilled: failure.MayBeBilled,
	}
}
