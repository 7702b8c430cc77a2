package judge

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/verdicts"
)

// Timeout is the maximum time of one evaluation, with all its requests and the waits between them.
const Timeout = 2 * time.Minute

// Asker asks models on behalf of judges.
type Asker struct {
	// Chain are the models to ask, in order. The next one is asked if the request to one fails.
	Chain []loop.Candidate
	// Redact returns a text of a model without the credentials that the Turn must not have. If it is nil, texts stay
	// unchanged.
	Redact func(text string) string
}

// Ask makes the judge evaluate an answer. It always returns an evaluation: that of a judge that fails is Failed, with a
// reason in Capstan's own words. A reply that makes no sense is requested once more.
func (a *Asker) Ask(ctx context.Context, j *Judge, s *Subject) Evaluation {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	e := &evaluation{Evaluation: j.New(), asker: a, judge: j, subject: s, priced: true}
	refused := false
	why := errors.New("there is no model to ask")
	for i := range a.Chain {
		c := &a.Chain[i]
		e.Provider, e.Model = c.ProviderName, c.Model
		score, reason, err := e.verdict(ctx, c)
		if err == nil {
			e.Evaluate(score, reason)
			return e.Evaluation
		}
		why = err
		if failure, failed := errors.AsType[*model.Error](err); failed {
			refused = failure.Unsent && (failure.Kind.Retryable() || failure.Kind == model.Cancelled)
		}
		if failure, failed := errors.AsType[*model.Error](err); !failed || failure.Kind.Next() == model.NoModel || ctx.Err() != nil {
			break
		}
	}
	reason := why.Error()
	if a.Redact != nil {
		reason = a.Redact(reason)
	}
	e.Reason = verdicts.Reason(reason)
	e.MayRetry = refused && !e.sent
	return e.Evaluation
}

// evaluation is an evaluation that is under way.
type evaluation struct {
	Evaluation
	asker   *Asker
	judge   *Judge
	subject *Subject
	// priced is true as long as the cost of all requests is known.
	priced bool
	// sent is true once a request may have been sent.
	sent bool
}

// verdict asks one model. It returns a *model.Error if the requests fail, and another error if the replies make no
// sense.
func (e *evaluation) verdict(ctx context.Context, c *loop.Candidate) (score Score, reason string, err error) {
	for range verdicts.MaxReplies {
		reply, failure := e.request(ctx, c)
		if failure != nil {
			return 0, "", failure
		}
		if score, reason, err = Read(reply, e.asker.Redact); err == nil {
			return score, reason, nil
		}
	}
	return 0, "", err
}

// request sends the question to one model, and repeats it where that may help.
func (e *evaluation) request(ctx context.Context, c *loop.Candidate) (*model.Reply, *model.Error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.Retry.InitialBackoff, c.Retry.MaxBackoff, 2
	for attempt := 1; ; attempt++ {
		reply, failure := e.attempt(ctx, c)
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
func (e *evaluation) attempt(ctx context.Context, c *loop.Candidate) (*model.Reply, *model.Error) {
	r := e.judge.Request(e.subject, c.StructuredOutput)
	r.Model, r.Parameters = c.Model, c.Parameters
	r.Parameters.Stop = nil // they are those of the Agent's answers, and may occur in a verdict
	reply, err := loop.Generate(ctx, c.Provider, &r)
	var failure *model.Error
	if err != nil {
		reply, failure = nil, model.AsError(err)
		e.sent = e.sent || !failure.Unsent
	} else if reply.Release != nil {
		defer reply.Release()
	}
	e.sent = e.sent || failure == nil
	usage, cost := loop.SpentOn(c, &r, reply, failure)
	e.count(usage, cost)
	return reply, failure
}

// count adds the usage of a request.
func (e *evaluation) count(usage model.Usage, cost *model.Cost) {
	e.Usage = e.Usage.Add(usage)
	switch {
	case usage == (model.Usage{}): // a request that used nothing needs no price
	case cost == nil, e.Cost != nil && e.Cost.Currency != cost.Currency:
		e.priced = false
	case e.Cost == nil:
		sum := *cost
		e.Cost = &sum
	default:
		e.Cost.Amount = e.Cost.Amount.Add(cost.Amount)
	}
	if !e.priced {
		e.Cost = nil
	}
}
