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

// maxCutOff is the number of requests for one step that a candidate may receive in addition to Retry.MaxAttempts,
// because earlier requests were cut off.
const maxCutOff = 8

// ask sends a request to one candidate, and repeats it if another attempt may succeed. It records the reply, so the
// reply is never paid for again. If the candidate fails for good, the error is a *model.Error. If the budget does not
// allow an attempt, ask returns an End.
func (run *runner) ask(ctx context.Context, c *Candidate, q *modelRequest) (*End, error) {
	wait := backoffOf(c)
	r := run.requestEntry(c, q)
	sent, cutOff := run.State.countSent(r)
	// Each run may send at least one request, because a request that a restart cut off must not use up the only
	// attempt. The number of such requests is bounded, because the request itself may be the reason why each run
	// ends.
	if sent >= c.Retry.MaxAttempts+maxCutOff {
		return nil, cutOffFailure(sent, cutOff)
	}
	r.Attempt = sent
	var ticket model.Ticket = ungatedTicket{}
	defer func() { ticket.Leave() }() // also after a panic
	var waited contention
	for {
		r.Attempt++
		r.Reserved, r.Budget = false, ""
		if end, err := run.keepToBudget(ctx, c, r); end != nil || err != nil {
			return end, err
		}
		entered, err := run.enter(ctx, c, q)
		if err != nil {
			return nil, err
		}
		ticket = entered
		forOthers, end, err := run.begin(ctx, c, r, &waited)
		if end != nil || err != nil {
			return end, err
		}
		if forOthers > 0 { // the next attempt waits at the gate again
			ticket.Leave()
			ticket = ungatedTicket{}
			r.Attempt--
			if err := run.pause(ctx, forOthers); err != nil {
				return nil, err
			}
			continue
		}
		limit := run.firstEventTimeout(ctx, c, q.purpose)
		begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		facts := new(model.Facts)
		reply, err := Generate(run.forRequest(ctx, r), ticket, run.providerRequest(ctx, c, q, r, limit, facts))
		took := time.Since(begin)
		if err == nil {
			return nil, run.keepReply(c, r, reply, facts, took.Milliseconds())
		}
		failure := model.AsError(err).Redacted(run.redacted)
		delay, final := run.afterFailure(ctx, c, r, wait, failure, limit > 0 && took >= limit)
		ownStore := errors.Is(failure, model.ErrOwnStore)
		switch {
		case ownStore:
			final = nil
		case isRefused(ticket):
			final = failure
		}
		if err := run.recordFailure(ctx, c, r, failure, final, took.Milliseconds()); err != nil {
			return nil, err
		}
		if ownStore { // like any other failed read of the journal: a later run reads again, however often it takes
			return nil, failure.Err
		}
		// With ErrStopped, nothing was sent. With ErrNoSpace, another attempt or model would only cost more.
		if errors.Is(err, model.ErrStopped) || errors.Is(err, model.ErrNoSpace) {
			return nil, ErrInterrupted
		}
		if final != nil {
			return nil, final
		}
		if isOwnShortage(failure) { // it was no attempt
			r.Attempt--
		}
		if err := run.pause(ctx, delay); err != nil {
			return nil, err
		}
	}
}

// isOwnShortage reports whether this process had no socket for a request.
func isOwnShortage(failure *model.Error) bool { return errors.Is(failure, model.ErrOwnShortage) }

// backoffOf returns the backoff between the attempts of a candidate.
func backoffOf(c *Candidate) *backoff.ExponentialBackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.Retry.InitialBackoff, c.Retry.MaxBackoff, 2
	return wait
}

// forRequest returns the context in which a request is sent.
func (run *runner) forRequest(ctx context.Context, r *Request) context.Context {
	if run.ForRequest == nil {
		return ctx
	}
	return run.ForRequest(ctx, r.ID)
}

// afterFailure returns the wait before the next attempt. If the candidate must not be asked again, afterFailure returns
// the failure to report as final. timeUsed is true if the request used all the time that the candidate has.
func (run *runner) afterFailure(ctx context.Context, c *Candidate, r *Request, wait *backoff.ExponentialBackOff,
	failure *model.Error, timeUsed bool,
) (delay time.Duration, final *model.Error) {
	delay = min(wait.NextBackOff(), c.Retry.MaxBackoff)
	untilNext := max(delay, failure.RetryAfter) // the time until the next attempt is sent
	if _, gated := c.Provider.(model.Gate); gated {
		untilNext = max(delay, min(failure.RetryAfter, model.MaxPause)) // after delay, the gate holds the attempt back
	} else {
		delay = untilNext
	}
	deadline, limited := ctx.Deadline()
	switch billed := failure.MayBeBilled; {
	case !failure.Kind.Retryable():
		return 0, failure
	case billed && (r.Purpose != ForStep || timeUsed), // the rest of the time is for the step itself, or for another model
		billed && run.State.billedTimeouts(r) >= maxBilledTimeouts,
		r.Attempt >= c.Retry.MaxAttempts && !isOwnShortage(failure): // a shortage ends by itself, or the Turn at its deadline
		return 0, withAttempts(failure, r.Attempt)
	case failure.RetryAfter > run.fallbackTime() && run.hasFallback(c, r.Purpose, failure.Kind):
		return 0, waitTooLongFailure(failure)
	case limited && time.Until(deadline) <= untilNext:
		return 0, beyondDeadlineFailure(failure, untilNext)
	}
	return delay, nil
}

// requestEntry returns the journal entry for a request to a candidate.
func (run *runner) requestEntry(c *Candidate, q *modelRequest) *Request {
	return &Request{
		Step: q.step, Purpose: q.purpose, Provider: c.ProviderName, Model: c.Model, Place: run.placeOf(c), EstimatedTokens: q.tokens,
		EstimatedCost: c.Pricing.Cost(model.Usage{InputTokens: q.tokens}),
	}
}

// cutOffFailure returns the failure of a candidate whose requests were cut off too often. The next candidate of the
// chain is asked, because its requests may not be cut off.
func cutOffFailure(sent, cutOff int) *model.Error {
	return &model.Error{Kind: model.Network, Message: fmt.Sprintf(
		"stopped after %d requests for one step, because %d of them were cut off when their run ended: the logs "+
			"of the executor show the cause", sent, cutOff)}
}

// keepReply records a reply. The memory of the reply stays reserved until the reply is recorded. After that, Keep
// decides when the memory is released.
func (run *runner) keepReply(c *Candidate, r *Request, reply *model.Reply, facts *model.Facts, took int64) error {
	release := reply.Release
	defer func() {
		if release != nil {
			release() // also after a panic
		}
	}()
	reply.Redact(run.redacted)
	if err := run.recordReply(c, r, reply, facts, took); err != nil || release == nil || run.Keep == nil {
		return err
	}
	kept := release
	release = nil
	return run.Keep(kept)
}

// redacted returns a text of a model or a tool without the credentials that the Turn must not have.
func (run *runner) redacted(text string) string {
	if run.Redact == nil || text == "" {
		return text
	}
	return run.Redact(text)
}

// recordReply records the reply to a request.
func (run *runner) recordReply(c *Candidate, r *Request, given *model.Reply, facts *model.Facts, took int64) error {
	reply := run.replyForJournal(*given, r.Purpose)
	if d := reply.ProviderData; d != nil {
		d.Provider, d.Model, d.Endpoint = c.ProviderName, c.Model, c.Endpoint
	}
	reply.Usage = usageOfReply(r, given)
	responseModel := run.redacted(facts.Model)
	if responseModel == c.Model {
		responseModel = ""
	}
	return run.Record(journal.Record{Kind: journal.ModelReplied, Payload: Step{
		Step: r.Step, Purpose: r.Purpose, Provider: r.Provider, Model: r.Model, Reply: reply, Cost: c.Pricing.Cost(reply.Usage),
		DurationMS: took, FirstEventMS: facts.FirstEvent.Milliseconds(), ResponseModel: responseModel,
		Last:       r.Purpose == ForStep && run.isLast(r.Step, reply),
		OverBudget: reply.FinishReason == model.FinishLength && !reply.TooLong && limitedByBudget(c, r),
	}, Ledger: settle(r, reply.Usage, c.Pricing.Cost(reply.Usage))})
}

// recordFailure records the failure of a request. final is the failure with which the run gives up the candidate. It is
// nil if the candidate is asked again. recordFailure returns an error if the run must stop.
func (run *runner) recordFailure(ctx context.Context, c *Candidate, r *Request, failure, final *model.Error, took int64) error {
	// A cancelled request counts with its usage, because it was sent. A later run asks again.
	usage := usageOfFailure(r, failure)
	entry := FailedRequest{
		Step: r.Step, Purpose: r.Purpose, Provider: r.Provider, Model: r.Model, Place: r.Place, Kind: failure.Kind,
		Message: failure.Message, RemoteMessage: failure.RemoteMessage,
		Usage: usage, Cost: c.Pricing.Cost(usage), DurationMS: took, Unsent: failure.Unsent, NotReached: failure.NotReached,
		StoreUnread: errors.Is(failure, model.ErrOwnStore), OwnShortage: isOwnShortage(failure),
		MayBeBilled: failure.MayBeBilled, Empty: failure.Empty, Stack: stackOf(failure),
	}
	if final != nil && failure.Kind != model.Cancelled && ctx.Err() == nil {
		entry.GaveUp = final.Message
	}
	err := run.Record(journal.Record{Kind: journal.ModelFailed, Payload: entry, Ledger: settleFailure(r, &entry)})
	if ctx.Err() != nil {
		return contextCause(ctx, err)
	}
	return err
}

// replyForJournal returns the part of a reply that the journal keeps.
func (run *runner) replyForJournal(reply model.Reply, purpose Purpose) model.Reply {
	reply.Usage = boundedUsage(reply.Usage)
	if !run.KeepReasoning {
		reply.Reasoning = ""
	}
	if purpose != ForStep {
		reply.ToolCalls, reply.ProviderData = nil, nil // no tools were offered, and the reply is never sent back
	}
	reply.ToolCalls = run.State.identified(reply.ToolCalls)
	return reply
}

// isLast reports whether a reply is the last one because the steps are used up. This includes a reply that requests
// tools although none were offered any more: the model would have needed more steps.
func (run *runner) isLast(number int, reply model.Reply) bool {
	return run.lastStep(number) || number > run.Limits.MaxSteps && len(reply.ToolCalls) > 0
}

// boundedUsage returns a usage with values that can be added up and priced, whatever an endpoint reported.
func boundedUsage(u model.Usage) model.Usage { return model.Usage{}.Add(u) }

// adapterPanic is the stack of an adapter that panicked. The value of the panic is not kept, because it may contain a
// part of the prompt; a stack contains only names and addresses.
type adapterPanic string

// Error reports the panic without its value.
func (adapterPanic) Error() string { return "panic in an adapter" }

func stackOf(err error) string {
	stack, _ := errors.AsType[adapterPanic](err)
	return string(stack)
}

// Generate asks a provider and turns a panic of its adapter into an error of this request.
func Generate(ctx context.Context, p model.Provider, r *model.Request) (reply *model.Reply, err error) {
	defer recoverPanic(&err)
	return p.Generate(ctx, r)
}

// recoverPanic turns a panic of the adapter into an error. It must be deferred.
func recoverPanic(err *error) {
	if recover() != nil {
		*err = &model.Error{
			Kind: model.InvalidRequest, Err: adapterPanic(debug.Stack()),
			Message: "the adapter of the provider panicked, which is a bug in Capstan: the turn's journal contains the stack",
		}
	}
}

// providerRequest returns the request that a provider receives. It must not be inlined: otherwise the stack of a
// waiting Turn would hold a copy of the request.
//
//go:noinline
func (run *runner) providerRequest(
	ctx context.Context, c *Candidate, q *modelRequest, entry *Request, firstEvent time.Duration, facts *model.Facts,
) *model.Request {
	r := new(model.Request)
	*r = q.request
	if q.purpose == ForStep && run.State.wasEmpty(entry) {
		r.Messages = append(slices.Clip(r.Messages), emptyNote(len(r.Offered()) > 0))
	}
	r.ID, r.Model, r.Parameters = entry.ID, c.Model, c.Parameters
	if entry.OutputLimit > 0 {
		r.OutputLimit = int(entry.OutputLimit)
	}
	r.FirstEventTimeout, r.Facts = firstEvent, facts
	if slices.ContainsFunc(r.Messages, func(m model.Message) bool { return len(m.Attachments) > 0 }) {
		r.Content = func(a *model.Attachment) ([]byte, error) { return run.Content(ctx, a) }
	}
	return r
}

// contextCause returns the cause of a context that has ended, joined with err if err is not nil.
func contextCause(ctx context.Context, err error) error {
	if err == nil {
		return context.Cause(ctx)
	}
	return errors.Join(context.Cause(ctx), err)
}

func withAttempts(failure *model.Error, attempts int) *model.Error {
	if attempts == 1 {
		return failure
	}
	e := *failure
	e.Message = fmt.Sprintf("%s (%d attempts)", failure.Message, attempts)
	return &e
}

// safePoint returns an error if the run must stop at this safe point.
func (run *runner) safePoint(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-run.Interrupt:
		return ErrInterrupted
	default:
		return nil
	}
}

// pause waits before the next attempt.
func (run *runner) pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-run.Interrupt:
		return ErrInterrupted
	}
}

// beyondDeadlineFailure returns the failure of an endpoint whose next attempt would be after the Turn's deadline.
func beyondDeadlineFailure(failure *model.Error, wait time.Duration) *model.Error {
	e := *failure
	e.Message = fmt.Sprintf("%s (the next attempt in %s would be after the turn's deadline)", failure.Message, rounded(wait))
	return &e
}

// rounded rounds a duration so that people can read it easily.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
