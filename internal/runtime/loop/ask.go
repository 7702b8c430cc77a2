package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// maxCutOff is how many requests for one step a candidate may get beyond its attempts, because those before were cut off.
const maxCutOff = 8

// ask sends a request to one candidate, again where that may help, and journals the reply: from then on it is never bought
// again. The error of a candidate that gave up is a *model.Error. There is an end if the budget does not allow an attempt.
func (in *Input) ask(ctx context.Context, c *Candidate, q *question) (*End, error) {
	wait := backoffOf(c)
	sent, cutOff := in.State.sent(q.step, q.purpose, c)
	// A run sends at least one request of its own: one that was cut off by a restart must not use up the only attempt. But
	// there is an end to it, as the request itself may be what ends each run.
	if sent >= c.Retry.MaxAttempts+maxCutOff {
		return nil, gaveUp(sent, cutOff)
	}
	r := requestOf(c, q)
	r.Attempt = sent
	for {
		r.Attempt++
		if end, err := in.mayAsk(ctx, r); end != nil || err != nil {
			return end, err
		}
		failure, err := in.attempt(ctx, c, q, r)
		if err != nil || failure == nil {
			return nil, err
		}
		if err := in.mayRepeat(ctx, c, r, wait, failure); err != nil {
			return nil, err
		}
	}
}

// backoffOf returns the waits between the attempts of a candidate.
func backoffOf(c *Candidate) *backoff.ExponentialBackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.Retry.InitialBackoff, c.Retry.MaxBackoff, 2
	return wait
}

// mayAsk returns why a request must not be sent: the run must stop here, or the budget does not allow it.
func (in *Input) mayAsk(ctx context.Context, r *Request) (*End, error) {
	if err := in.safePoint(ctx); err != nil {
		return nil, err
	}
	if why := in.overBudget(r); why != "" {
		return &End{Reason: OverBudget, Message: why}, nil
	}
	return nil, nil //nolint:nilnil // because nothing speaks against it
}

// mayRepeat waits before the next attempt. It returns why there is none.
func (in *Input) mayRepeat(ctx context.Context, c *Candidate, r *Request, wait *backoff.ExponentialBackOff, failure *model.Error) error {
	switch {
	case !failure.Kind.Retryable():
		return failure
	case r.Attempt >= c.Retry.MaxAttempts:
		return exhausted(failure, r.Attempt)
	}
	return in.pause(ctx, failure, max(min(wait.NextBackOff(), c.Retry.MaxBackoff), failure.RetryAfter))
}

// requestOf is what the journal says of the requests to a candidate for a question.
func requestOf(c *Candidate, q *question) *Request {
	return &Request{
		Step: q.step, Purpose: q.purpose, Provider: c.ProviderName, Model: c.Model, EstimatedTokens: q.tokens,
		EstimatedCost: c.Pricing.Cost(model.Usage{InputTokens: q.tokens}),
	}
}

// gaveUp is the failure of a candidate whose requests were cut off too often. Another may not end its run.
func gaveUp(sent, cutOff int) *model.Error {
	return &model.Error{Kind: model.Network, Message: fmt.Sprintf(
		"gave up after %d requests for one step, %d of which were cut off because their run ended: find out in the logs of the executor what ends it", sent, cutOff)}
}

// attempt sends one request and journals what became of it. It returns the failure of the request, or an error that stops
// the run.
func (in *Input) attempt(ctx context.Context, c *Candidate, q *question, r *Request) (*model.Error, error) {
	if err := in.requested(r); err != nil {
		return nil, err
	}
	in.tools = nil      // until the model has answered
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	reply, err := guarded(ctx, c.Provider, asked(c, q, r.ID))
	return in.came(ctx, c, r, reply, err, time.Since(begin).Milliseconds())
}

// came journals what became of a request.
func (in *Input) came(ctx context.Context, c *Candidate, r *Request, reply *model.Reply, err error, took int64) (*model.Error, error) {
	if err == nil {
		reply.Redact(in.redacted)
		return nil, in.replied(c, r, reply, took)
	}
	return in.failed(ctx, c, r, model.AsError(err).Redacted(in.redacted), took)
}

// redacted is a text from outside as the Turn may have it.
func (in *Input) redacted(text string) string {
	if in.Redact == nil || text == "" {
		return text
	}
	return in.Redact(text)
}

// requested names a request and journals that it is about to be sent.
func (in *Input) requested(r *Request) error {
	r.ID = fmt.Sprintf("%s/%d", in.TurnUID, in.NextSeq())
	return in.Record(journal.Record{Kind: journal.ModelRequested, Payload: *r})
}

// replied journals the reply to a request. The memory of the reply is held until then, and by Keep from then on.
func (in *Input) replied(c *Candidate, r *Request, given *model.Reply, took int64) error {
	reply := in.kept(*given, r.Purpose)
	reply.Usage = usageOfReply(r, given)
	err := in.Record(journal.Record{Kind: journal.ModelReplied, Payload: Step{
		Step: r.Step, Purpose: r.Purpose, Provider: r.Provider, Model: r.Model, Reply: reply, Cost: c.Pricing.Cost(reply.Usage),
		DurationMS: took, Last: r.Purpose == ForStep && in.isLast(r.Step, reply),
	}})
	switch {
	case given.Release == nil:
		return err
	case err != nil || in.Keep == nil:
		given.Release()
		return err
	}
	return in.Keep(given.Release)
}

// failed journals the failure of a request, and returns it, or an error that stops the run.
func (in *Input) failed(ctx context.Context, c *Candidate, r *Request, failure *model.Error, took int64) (*model.Error, error) {
	usage := usageOfFailure(r, failure)
	// A request that was cut short was sent all the same: it counts, and so does what it used.
	err := in.Record(journal.Record{Kind: journal.ModelFailed, Payload: Attempt{
		Step: r.Step, Purpose: r.Purpose, Provider: r.Provider, Model: r.Model, Kind: failure.Kind, Message: failure.Message, Said: failure.Said,
		Usage: usage, Cost: c.Pricing.Cost(usage), DurationMS: took, Unsent: failure.Unsent, Stack: stackOf(failure),
	}})
	if ctx.Err() != nil {
		return nil, ended(ctx, err)
	}
	return failure, err
}

// kept is what the journal keeps of a reply.
func (in *Input) kept(reply model.Reply, purpose Purpose) model.Reply {
	reply.Usage = bounded(reply.Usage)
	if !in.KeepReasoning {
		reply.Reasoning = ""
	}
	if purpose != ForStep {
		reply.ToolCalls = nil // none was offered
	}
	reply.ToolCalls = in.State.identified(reply.ToolCalls)
	return reply
}

// isLast says whether a reply is the last because the steps are used up. A model that asks for tools beyond them, where none is
// offered, wanted more.
func (in *Input) isLast(number int, reply model.Reply) bool {
	return in.lastStep(number) || number > in.Limits.MaxSteps && len(reply.ToolCalls) > 0
}

// bounded is a usage that can be added up and priced, whatever an endpoint has reported.
func bounded(u model.Usage) model.Usage { return model.Usage{}.Add(u) }

// panicked is the stack of an adapter that panicked. The value it panicked with may hold a part of the prompt and is not
// kept; a stack holds names and addresses only.
type panicked string

// Error says that there was a panic.
func (panicked) Error() string { return "panic in an adapter" }

func stackOf(err error) string {
	stack, _ := errors.AsType[panicked](err)
	return string(stack)
}

// guarded asks a provider, and makes a panic of its adapter an error of that request.
func guarded(ctx context.Context, p model.Provider, r *model.Request) (reply *model.Reply, err error) {
	defer unpanicked(&err)
	reply = new(model.Reply)
	return reply, model.Ask(ctx, p, r, reply)
}

// unpanicked makes the panic of an adapter an error. It must be deferred.
func unpanicked(err *error) {
	if recover() != nil {
		*err = &model.Error{
			Kind: model.InvalidRequest, Err: panicked(debug.Stack()),
			Message: "the adapter of the provider failed, which is a bug of Capstan: the turn's journal has the stack",
		}
	}
}

// asked is the request that a candidate is sent for a question. It is not inlined: the stack of a waiting Turn would hold a copy.
//
//go:noinline
func asked(c *Candidate, q *question, id string) *model.Request {
	r := new(model.Request)
	*r = q.request
	// The messages are frozen: each attempt gets a copy that the provider may do with as it likes.
	r.ID, r.Model, r.Parameters, r.Messages = id, c.Model, c.Parameters, slices.Clone(r.Messages)
	return r
}

// ended returns the cause of a context that ended, with the error of the journal if there is one.
func ended(ctx context.Context, err error) error {
	if err == nil {
		return context.Cause(ctx)
	}
	return errors.Join(context.Cause(ctx), err)
}

func exhausted(failure *model.Error, attempts int) *model.Error {
	if attempts == 1 {
		return failure
	}
	e := *failure
	e.Message = fmt.Sprintf("%s (%d attempts)", failure.Message, attempts)
	return &e
}

// safePoint returns why the run must stop here, if it must.
func (in *Input) safePoint(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-in.Interrupt:
		return ErrInterrupted
	default:
		return nil
	}
}

// pause waits before the next attempt. A wait that would end after the Turn is not begun.
func (in *Input) pause(ctx context.Context, failure *model.Error, wait time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		e := *failure
		e.Message = fmt.Sprintf("%s (the next attempt in %s would be after the turn's deadline)", failure.Message, rounded(wait))
		return &e
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.Interrupt:
		return ErrInterrupted
	}
}

// rounded shortens a duration to what people want to read.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
