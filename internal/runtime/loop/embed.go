package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Embed returns the vectors of at most model.MaxEmbedTexts texts, in their order, for the preparation of a Turn. It
// reserves, records and charges the request like any other request of the Turn. It sends the request at most once, does
// not wait for budgets, and gives up if there is no reply within the timeout. The Input must have the fields that a
// loop needs to record requests.
//
// A *model.Error means that there are no vectors, and that the Turn should continue without them. After any other
// error, the run must stop.
func Embed(
	ctx context.Context, in *Input, c *Candidate, texts []string, dimensions int, timeout time.Duration,
) ([][]float32, error) {
	run := &runner{Input: in}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request := model.Request{Model: c.Model, Embed: &model.Embed{Texts: texts, Dimensions: dimensions}, Facts: new(model.Facts)}
	tokens := countPrompt(request)
	r := &Request{
		Purpose: ForEmbedding, Provider: c.ProviderName, Model: c.Model, Attempt: 1, EstimatedTokens: tokens,
		EstimatedCost: c.Pricing.Cost(model.Usage{InputTokens: tokens}),
	}
	if c.Unusable { // nothing is sent, so nothing is recorded
		_, err := Generate(bounded, c.Provider, &request)
		return nil, asTimeout(ctx, bounded, model.AsError(err), timeout)
	}
	if _, why := run.limited(c, r).outputLimit(); why != "" {
		return nil, &model.Error{Kind: model.OverBudget, Message: why, Unsent: true}
	}
	ticket, failure := EnterOutside(bounded, c, r)
	if failure != nil {
		return nil, asTimeout(ctx, bounded, failure, timeout)
	}
	defer ticket.Leave()
	rules, change, err := run.reservations(c, r)
	if err != nil {
		return nil, err
	}
	r.ID = fmt.Sprintf("%s/%d", run.TurnUID, run.NextSeq())
	err = run.Record(journal.Record{Kind: journal.ModelRequested, Payload: *r, Ledger: change})
	if refusal, ok := errors.AsType[*budget.Refusal](err); ok {
		return nil, &model.Error{Kind: model.OverBudget, Message: DescribeRefusal(rules, c, r, refusal), Unsent: true}
	}
	if err != nil {
		return nil, err
	}
	request.ID = r.ID
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	reply, err := Generate(run.forRequest(bounded, r), ticket, &request)
	took := time.Since(begin).Milliseconds()
	if err != nil {
		failure = asTimeout(ctx, bounded, model.AsError(err).Redacted(run.redacted), timeout)
		if err := run.recordFailure(ctx, c, r, failure, failure, took); err != nil {
			return nil, err
		}
		return nil, failure
	}
	return reply.Vectors, run.keepReply(c, r, reply, request.Facts, took)
}

// asTimeout turns a failure into a time-out if the time of the request is over, but the time of its Turn is not.
func asTimeout(ctx, bounded context.Context, failure *model.Error, timeout time.Duration) *model.Error {
	if ctx.Err() != nil || bounded.Err() == nil || failure.Kind != model.Cancelled {
		return failure
	}
	timedOut := *failure
	timedOut.Kind = model.Timeout
	timedOut.Message = fmt.Sprintf("the endpoint did not return vectors within %s", timeout.Round(time.Millisecond))
	return &timedOut
}

// EmbeddedBefore reports whether the journal has a request for vectors. The journal never has the vectors themselves.
func (s *State) EmbeddedBefore() bool {
	for i := range s.Requests {
		if s.Requests[i].Purpose == ForEmbedding {
			return true
		}
	}
	return false
}
