// Package ask asks models questions about Turns that have ended: those of judges, and those about memories. It counts
// what the requests use.
package ask

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/verdicts"
)

// Timeout is the maximum time of one question, with all its requests and the waits between them.
const Timeout = 2 * time.Minute

// Question is a question for a model.
type Question struct {
	// Request returns the request. structured is true if the endpoint itself makes the model keep to a schema.
	Request func(structured bool) model.Request
	// Read reads a reply. It returns an error for one that makes no sense, which is requested once more.
	Read func(*model.Reply) error
	// MaxOutputTokens is the length of a reply that is enough, in tokens. It is a limit if the model accepts it.
	MaxOutputTokens int64
	// Purpose says what the question is for.
	Purpose loop.Purpose
	// Account keeps account of the requests. It may be nil.
	Account Account
}

// Account keeps account of requests, which are sent one after another.
type Account interface {
	// Begin is called before a request is sent. The request is not sent if Begin returns a failure. The returned
	// context is that of the request.
	Begin(ctx context.Context, c *loop.Candidate, r *loop.Request) (context.Context, *model.Error)
	// End is called when a request has ended, after each Begin that returned no failure. One of reply, which has no
	// content, and failure is nil.
	End(ctx context.Context, c *loop.Candidate, r *loop.Request, reply *loop.Step, failure *loop.FailedRequest)
}

// Outcome is what a question has used.
type Outcome struct {
	// Provider and Model are the model that was asked last. They are empty if none was.
	Provider, Model string
	// Usage is the usage of all requests.
	Usage model.Usage
	// Cost is the cost of Usage, or nil if it is not known.
	Cost *model.Cost
	// MayRetry is true if the question failed without a cost: the endpoint accepted no request in time, or refused each
	// one. A later attempt may succeed.
	MayRetry bool
}

// Ask asks the models of a chain, in order. The next one is asked if the request to one fails. It returns an error if
// there is no reply that makes sense.
func Ask(ctx context.Context, chain []loop.Candidate, q *Question) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	a := &asking{question: q, priced: true}
	refused := false
	why := errors.New("there is no model to ask")
	for i := range chain {
		c := &chain[i]
		a.Provider, a.Model = c.ProviderName, c.Model
		if why = a.answer(ctx, c); why == nil {
			return a.Outcome, nil
		}
		failure, failed := errors.AsType[*model.Error](why)
		if failed {
			refused = isRefusal(failure)
		}
		if !failed || failure.Kind.Next() == model.NoModel || ctx.Err() != nil {
			break
		}
	}
	a.MayRetry = refused && !a.paid
	return a.Outcome, why
}

// isRefusal reports whether the endpoint did no work, and may do it later.
func isRefusal(f *model.Error) bool {
	if f.Unsent {
		return f.Kind.Retryable() || f.Kind == model.Cancelled
	}
	return f.Kind == model.RateLimited || f.Kind == model.Overloaded
}

// asking is a question that is under way.
type asking struct {
	Outcome
	question *Question
	// priced is true as long as the cost of all requests is known.
	priced bool
	// paid is true once a request may have been paid for.
	paid bool
}

// answer asks one model. It returns a *model.Error if the requests fail, and another error if the replies make no
// sense.
func (a *asking) answer(ctx context.Context, c *loop.Candidate) (err error) {
	for range verdicts.MaxReplies {
		reply, failure := a.request(ctx, c)
		if failure != nil {
			return failure
		}
		if err = a.question.Read(reply); err == nil {
			return nil
		}
	}
	return err
}

// request sends the question to one model, and repeats it where that may help.
func (a *asking) request(ctx context.Context, c *loop.Candidate) (*model.Reply, *model.Error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.Retry.InitialBackoff, c.Retry.MaxBackoff, 2
	for attempt := 1; ; attempt++ {
		reply, failure := a.attempt(ctx, c)
		if failure == nil {
			return reply, nil
		}
		delay := max(min(wait.NextBackOff(), c.Retry.MaxBackoff), failure.RetryAfter)
		deadline, _ := ctx.Deadline()
		if !failure.Kind.Retryable() || failure.MayBeBilled || attempt >= c.Retry.MaxAttempts || time.Until(deadline) <= delay {
			return nil, failure
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, failure
		}
	}
}

// attempt sends one request, and counts its usage.
func (a *asking) attempt(ctx context.Context, c *loop.Candidate) (*model.Reply, *model.Error) {
	r := a.question.Request(c.StructuredOutput)
	entry := loop.Outside(c, &r, a.question.Purpose, a.question.MaxOutputTokens)
	r.Parameters = r.Parameters.ForQuestion()
	// A request that waits at the gate has reserved nothing yet: requests of Turns go first.
	ticket, failure := loop.EnterOutside(ctx, c, entry)
	if failure != nil {
		return nil, failure
	}
	defer ticket.Leave()
	if ctx.Err() != nil { // a gate that is open lets the request in all the same
		return nil, OutOfTime(ctx.Err())
	}
	account := a.question.Account
	if c.Unusable {
		account = nil // nothing is sent
	}
	if account != nil {
		within, failure := account.Begin(ctx, c, entry)
		if failure != nil {
			return nil, failure
		}
		ctx = within
	}
	var facts model.Facts
	r.Facts = &facts
	begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	reply, err := loop.Generate(ctx, ticket, &r)
	took := time.Since(begun).Milliseconds()
	var replied *loop.Step
	var failed *loop.FailedRequest
	if err != nil {
		reply, failure = nil, model.AsError(err)
		failed = loop.FailureOutside(c, entry, failure, took)
		a.paid = a.paid || failure.MayBeBilled || failed.Usage != (model.Usage{})
		a.count(failed.Usage, failed.Cost)
	} else {
		if reply.Release != nil {
			defer reply.Release()
		}
		a.paid = true
		replied = loop.ReplyOutside(c, entry, reply, &facts, took)
		a.count(replied.Reply.Usage, replied.Cost)
	}
	if account != nil {
		account.End(ctx, c, entry, replied, failed)
	}
	return reply, failure
}

// OutOfTime returns the failure of a request that is not sent because its context has ended. err is the cause.
func OutOfTime(err error) *model.Error {
	return &model.Error{Kind: model.Cancelled, Message: "there was no time left for the request", Err: err, Unsent: true}
}

// count adds the usage of a request.
func (a *asking) count(usage model.Usage, cost *model.Cost) {
	a.Usage = a.Usage.Add(usage)
	switch {
	case usage == (model.Usage{}): // a request that used nothing needs no price
	case cost == nil, a.Cost != nil && a.Cost.Currency != cost.Currency:
		a.priced = false
	case a.Cost == nil:
		sum := *cost
		a.Cost = &sum
	default:
		a.Cost.Amount = a.Cost.Amount.Add(cost.Amount)
	}
	if !a.priced {
		a.Cost = nil
	}
}
