package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// requests keeps account of the requests of one attempt of a task: in Budgets, in the record of the Turn, in metrics
// and in the trace of the Turn. The requests are sent one after another. requests implements ask.Account.
//
// As in a Turn, a request is reserved before it is sent. If the process is killed after that, the estimate counts.
type requests struct {
	work     *followUp
	observer observer
	// budgets returns the Budgets that apply to the Turn now. It is nil if there are none.
	budgets func() ([]budget.Rule, error)
	// key is the key of the attempt in the trace, and started is the time at which the attempt started.
	key     string
	started time.Time
	// begun is the time at which the current request began.
	begun time.Time
	// sent is the number of requests that have begun. used is the number of tokens of the requests that have ended.
	sent int
	used int64
	// ended is the expense of the last request, until settle charges it. It is nil if there is nothing to charge.
	ended *turnrecord.Expense
	// refused is true if Budgets have refused a request. contended is true if a refused request will fit once other
	// requests have ended.
	refused, contended bool
	// err is the error because of which the account cannot be kept any more. It is nil if there is none.
	err error
}

func newRequests(ctx context.Context, f *followUp) *requests {
	e, t := f.executor, &f.turn
	return &requests{
		work: f, budgets: e.budgetsOf(ctx, t, f.agent), started: e.Now(),
		observer: observerOf(e.Traces, t),
		key:      fmt.Sprintf("%s/%d", f.task.Kind, f.task.Claim),
	}
}

// Begin reserves a request in the Budgets that apply to the Turn now.
func (a *requests) Begin(ctx context.Context, c *loop.Candidate, r *loop.Request) (context.Context, *model.Error) {
	f := a.work
	a.settle(ctx, nil) // the reply to an earlier request may have been unusable, and so is not charged yet
	if a.err != nil {  // the expense of an earlier request could not be charged
		return ctx, a.fail(a.err)
	}
	var rules []budget.Rule
	if a.budgets != nil {
		var err error
		if rules, err = a.budgets(); err != nil {
			return ctx, a.fail(fmt.Errorf("failed to find the budgets of the turn: %w", err))
		}
		rules = rules[:min(len(rules), budget.MaxOfTurn)]
	}
	reserve, err := loop.Reservations(rules, c, r, false, f.executor.Now())
	if err != nil {
		return ctx, a.fail(err)
	}
	r.ID = fmt.Sprintf("%s/%s/%d", f.task.UID, a.key, a.sent+1)
	next := a.expense(r, model.Usage{InputTokens: r.EstimatedTokens, Estimated: true}, r.EstimatedCost)
	err = f.Store.ChargeTask(ctx, f.task.Held(), task.Charge{Next: &next, Reserve: reserve})
	if refusal, ok := errors.AsType[*budget.Refusal](err); ok {
		a.refused = true
		a.contended = a.contended || !slices.ContainsFunc(refusal.Refused, func(b budget.Refused) bool { return !b.Contended })
		return ctx, &model.Error{Kind: model.OverBudget, Message: loop.DescribeRefusal(rules, c, r, refusal), Unsent: true}
	}
	if err != nil && ctx.Err() != nil { // the time for this question is over, so the account did not fail
		return ctx, ask.OutOfTime(err)
	}
	if err != nil {
		return ctx, a.fail(err)
	}
	a.sent++
	a.begun = f.executor.Now()
	return a.observer.Within(ctx, turn.RequestKey(r.ID)), nil
}

// fail ends the attempt because of an error.
func (a *requests) fail(err error) *model.Error {
	a.err = err
	return &model.Error{Kind: model.Cancelled, Message: "failed to keep account of a request: " + err.Error(), Unsent: true, Err: err}
}

// expense returns the expense of one request.
func (a *requests) expense(r *loop.Request, u model.Usage, cost *model.Cost) turnrecord.Expense {
	e := turnrecord.Expense{For: string(a.work.task.Kind), Provider: r.Provider, Model: r.Model, Requests: 1, Usage: u}
	if cost != nil {
		e.Cost = &turnrecord.Cost{Amount: cost.Amount.String(), Currency: cost.Currency}
	}
	return e
}

// End stores the usage of a request that has ended, and charges it if the request has failed. If there is a reply,
// settle charges the usage later, together with the findings from the reply.
func (a *requests) End(
	ctx context.Context, c *loop.Candidate, r *loop.Request, reply *loop.Step, failure *loop.FailedRequest,
) {
	f := a.work
	span := &turn.Span{
		Kind: turn.SpanRequest, Key: turn.RequestKey(r.ID), Parent: a.key, Start: a.begun, End: f.executor.Now(), Request: r, Candidate: c,
		Reply: reply, Failed: failure,
	}
	var usage model.Usage
	var cost *model.Cost
	if reply != nil {
		usage, cost = reply.Reply.Usage, reply.Cost
	} else {
		usage, cost, span.Failure = failure.Usage, failure.Cost, string(failure.Kind)
	}
	a.used += usage.InputTokens + usage.OutputTokens
	a.ended = new(a.expense(r, usage, cost))
	if reply == nil {
		a.settle(ctx, nil) // a wait for the next attempt must not hold the reservation
	}
	a.observer.Observe(span)
}

// settle charges the last request, unless it is charged already. In the same transaction it stores found, the findings
// of all questions so far, unless found is nil. The caller settles directly after it has read a reply. If the process
// is killed before that, the estimate of the request counts, and the question is asked again, because its reply was not
// recorded. If the process is killed after that, the question is not asked again. settle writes even if ctx has ended,
// and repeats a failed write for up to taskWriteTimeout, because every paid request must count. If that fails, settle
// sets a.err. If a is nil, settle does nothing.
func (a *requests) settle(ctx context.Context, found *task.Result) {
	if a == nil || a.err != nil || a.ended == nil && found == nil {
		return
	}
	f := a.work
	charge := task.Charge{Ended: a.ended, Found: found}
	a.ended = nil
	write, stop := forPaidWork(ctx)
	defer stop()
	a.err = keepTrying(write, func() error { return f.Store.ChargeTask(write, f.task.Held(), charge) })
}

// close reports the attempt in the trace. It returns nil if the work is done, and otherwise the end of the attempt.
// unanswered is true if a question has no reply yet. refused is true if an endpoint has refused a question. The next
// attempt asks only these questions again, because the replies to the others are stored. close also returns an end if
// ctx has ended, if the account cannot be kept, or if Budgets have allowed no request, in this attempt or an earlier
// one, and no endpoint may accept a question later.
func (a *requests) close(ctx context.Context, unanswered, refused bool) *done {
	f := a.work
	a.settle(ctx, nil)
	span := &turn.Span{Kind: turn.SpanFollowUp, Key: a.key, Start: a.started, End: f.executor.Now(), Work: f.task.Kind}
	var end *done
	switch {
	case ctx.Err() != nil:
		span.Failure, end = turn.FailureInterrupted, &done{err: context.Cause(ctx)}
	case a.err != nil:
		span.Failure, end = turn.FailureInterrupted, new(retried(afterFailure, a.err))
	case unanswered && a.contended:
		span.Failure, end = string(model.OverBudget), new(retried(afterRefusal, nil)) // requests of Turns have reserved the rest
	case refused && f.executor.Now().Sub(f.task.Created) < retryAge: // Budgets may have refused only the other models
		end = new(retried(afterRefusal, nil))
	case a.sent == 0 && a.refused && f.task.Partial == nil:
		span.Failure, end = string(model.OverBudget), new(f.skipped(task.BudgetExceeded))
	}
	if end != nil {
		end.used = a.used
	}
	a.observer.Observe(span)
	return end
}
