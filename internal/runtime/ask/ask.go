// Package ask asks models questions about ended Turns: the questions of judges, and questions about memories. It adds
// up the usage of the requests.
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
	// Request returns the request. structured is true if the endpoint can enforce a schema.
	Request func(structured bool) model.Request
	// Read reads a reply. It returns an error for an unusable reply, which is then requested once more.
	Read func(*model.Reply) error
	// MaxOutputTokens is the length that suffices for a reply, in tokens. It limits the reply if the model accepts such
	// a limit.
	MaxOutputTokens int64
	// Purpose is the purpose of the requests.
	Purpose loop.Purpose
	// Account keeps account of the requests. It may be nil.
	Account Account
}

// Account keeps account of requests, which are sent one after another.
type Account interface {
	// Begin is called before a request is sent. It returns the context for the request, or a failure. If it returns a
	// failure, the request is not sent.
	Begin(ctx context.Context, c *loop.Candidate, r *loop.Request) (context.Context, *model.Error)
	// End is called when a request has ended, after each Begin that returned no failure. Either reply or failure is
	// nil. reply has no content.
	End(ctx context.Context, c *loop.Candidate, r *loop.Request, reply *loop.Step, failure *loop.FailedRequest)
}

// Outcome describes the requests of a question.
type Outcome struct {
	// Provider and Model name the model that was asked last. They are empty if no model was asked.
	Provider, Model string
	// Usage is the usage of all requests.
	Usage model.Usage
	// Cost is the cost of Usage, or nil if it is not known.
	Cost *model.Cost
	// MayRetry is true if the question failed without a cost, and an endpoint accepted no request in time or refused
	// all requests. A later attempt may succeed, whatever the failures of the other models are.
	MayRetry bool
}

// Ask asks the models of a chain, in order. If the request to a model fails, Ask asks the next model, unless no other
// model may be asked after such a failure: see model.ErrorKind.Next. After unusable replies, it asks no other model.
// Ask returns an error if there is no usable reply.
func Ask(ctx context.Context, chain []loop.Candidate, q *Question) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	a := &asking{question: q, priced: true}
	refused := false
	err := errors.New("there is no model to ask")
	for i := range chain {
		c := &chain[i]
		a.Provider, a.Model = c.ProviderName, c.Model
		if err = a.answer(ctx, c); err == nil {
			return a.Outcome, nil
		}
		failure, failed := errors.AsType[*model.Error](err)
		if failed { // a model that can never answer does not change that a model before it may answer later
			refused = refused || isRefusal(failure)
		}
		if !failed || failure.Kind.Next() == model.NoModel || ctx.Err() != nil {
			break
		}
	}
	a.MayRetry = refused && !a.paid
	return a.Outcome, err
}

// isRefusal reports whether the endpoint has not processed the request, but may accept it later.
func isRefusal(f *model.Error) bool {
	if f.Unsent {
		return f.Kind.Retryable() || f.Kind == model.Cancelled
	}
	return f.Kind == model.RateLimited || f.Kind == model.Overloaded
}

// asking is a question that is being asked.
type asking struct {
	Outcome
	question *Question
	// priced is true while the cost of all requests is known.
	priced bool
	// paid is true once a request may have been paid for.
	paid bool
}

// answer asks one model. It returns a *model.Error if the requests fail, and another error if no reply is usable.
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

// request sends the question to one model, and repeats a request whose failure may be temporary.
func (a *asking) request(ctx context.Context, c *loop.Candidate) (*model.Reply, *model.Error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.Retry.InitialBackoff, c.Retry.MaxBackoff, 2
	for attempt := 1; ; attempt++ {
		reply, failure := a.attempt(ctx, c)
		if failure == nil {
			return reply, nil
		}
		delay := max(min(wait.NextBackOff(), c.Retry.MaxBackoff), failure.RetryAfter)
		if errors.Is(failure, model.ErrOwnShortage) {
			attempt-- // it was no attempt: the shortage ends by itself, or the question with its time
		}
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
	// Enter the gate before anything is reserved, because requests of Turns go first.
	ticket, failure := loop.EnterOutside(ctx, c, entry)
	if failure != nil {
		return nil, failure
	}
	defer ticket.Leave()
	if ctx.Err() != nil { // an open gate does not check the context
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
