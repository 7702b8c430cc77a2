package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// maxParallel is how many calls of a wave are made at the same time.
const maxParallel = 8

// done is a call that has come back.
type done struct {
	*planned
	result tool.Result
	err    error
}

// errNotCalled is that of a call that was not made, because the Turn had ended.
var errNotCalled = errors.New("the tool was not called: the turn ended before")

// run makes the calls of a wave, whose intents are in the journal, and journals what becomes of each as it comes. It returns
// when none is under way any more, with a *Parked where the result of a call comes later.
func (in *Input) run(ctx context.Context, wave []*planned) error {
	within, stop := context.WithCancel(ctx)
	var under sync.WaitGroup
	defer under.Wait()
	defer stop()
	results := make(chan done, maxParallel)
	running := 0
	start := func(c *planned) {
		call := tool.Call{
			IdempotencyKey: c.intent.IdempotencyKey, Step: c.intent.Step, CallID: c.intent.CallID, Attempt: c.intent.Attempt,
			Repeatable: effectOf(c.tool).Repeatable(), TurnUID: in.State.TurnUID(c.intent.Step, c.intent.CallID), Arguments: c.intent.Arguments, Left: in.left(ctx), Descendants: c.intent.Descendants,
		}
		running++
		under.Go(func() {
			d := done{planned: c, err: tool.ErrNoResult}
			defer func() { results <- d }() // also where the adapter ends its goroutine
			d.result, d.err = c.make(within, call)
		})
	}
	var parked Parked
	for {
		for ; running < maxParallel && len(wave) > 0; wave = wave[1:] {
			start(wave[0])
		}
		if running == 0 {
			break
		}
		d := <-results
		running--
		switch next, err := in.settle(ctx, d); {
		case err != nil:
			return err
		case next.again:
			start(d.planned)
		case next.turn != "":
			parked.Turns = append(parked.Turns, next.turn)
			if next.uid != "" {
				parked.Begun = append(parked.Begun, Begun{Step: d.intent.Step, CallID: d.intent.CallID, TurnUID: next.uid})
			}
		}
		if in.interrupted() {
			wave = nil // more than are under way at once only read: the next run makes them
		}
	}
	if len(parked.Turns) > 0 {
		return &parked
	}
	return nil
}

func (in *Input) interrupted() bool {
	select {
	case <-in.Interrupt:
		return true
	default:
		return false
	}
}

// next is what follows from a call that has come back without an end.
type next struct {
	// again is true for one that is made once more; turn and uid are the name and the UID of the Turn whose end another waits for.
	again     bool
	turn, uid string
}

// settle journals what became of a call.
func (in *Input) settle(ctx context.Context, d done) (next, error) {
	// The context is looked at first: one that has ended because the run was given up says so from then on, but one that had
	// not ended a moment ago may have by now.
	over := ctx.Err() != nil
	if d.err != nil && over && in.Abandoned() {
		return next{}, context.Cause(ctx) // the intent stays open, and the next run judges it
	}
	e := in.ending(d.intent.Step, d.placed, d.tool)
	e.DurationMS, e.Spent, e.Descendants = d.took, d.result.Spent, d.result.Descendants
	pending, waits := errors.AsType[*tool.Pending](d.err)
	switch {
	case errors.Is(d.err, errNotCalled):
		return next{}, in.Record(e.failed(Refused, tool.Denied, d.err.Error()))
	case waits && effectOf(d.tool).Repeatable():
		return next{turn: pending.Turn, uid: pending.UID}, nil
	case waits:
		return next{}, in.Record(e.failed(Unknown, tool.OutcomeUnknown, unknown+"its result comes later, and the call cannot be made again to get it"+findOut))
	case d.err == nil:
		return next{}, in.Record(e.succeeded(d.result))
	case !over && in.retries(ctx, d):
		d.intent.Attempt, d.intent.Retry = d.intent.Attempt+1, true
		return next{again: true}, in.Record(journal.Record{Kind: journal.ToolIntended, Payload: d.intent})
	}
	return next{}, in.Record(e.failure(over, effectOf(d.tool), d.err))
}

// retries says whether a call that gave no result in time is made once more.
func (in *Input) retries(ctx context.Context, d done) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < leastTime {
		return false
	}
	return tool.AsError(d.err).Class == tool.Timeout && d.tool.RetryOnTimeout && effectOf(d.tool).Repeatable() &&
		!in.State.retried(d.intent.Step, d.intent.CallID)
}

const (
	// turnEnded is what a call comes to that the end of its Turn has cut off.
	turnEnded = "the turn ended while the call was under way"
	// unknown begins what a model is told of a call of which nobody knows whether it was done, and findOut ends it.
	unknown = "the outcome of this call is unknown: "
	findOut = ". It may have been done: find out, as the same call is not made twice."
)

// failure is the end of a call that gave no result. One that does harm may have been done all the same, unless the tool has
// said what became of it: an error without a class does not.
func (e ending) failure(over bool, effect tool.Effect, err error) journal.Record {
	failure := tool.AsError(err)
	_, classified := errors.AsType[*tool.Error](err)
	e.Stack = tool.StackOf(err)
	switch {
	case over && effect.Repeatable() && !classified:
		return e.failed(Failed, failure.Class, turnEnded)
	case effect.Repeatable():
		return e.failedAs(Failed, failure.Class, failure.Message, failure.Said)
	case over:
		return e.failed(Unknown, tool.OutcomeUnknown, unknown+turnEnded)
	case failure.Class == tool.Timeout || failure.Class == tool.OutcomeUnknown:
		return e.failedAs(Unknown, failure.Class, unknown+failure.Message+findOut, failure.Said)
	case tool.IsUncertain(err):
		return e.failedAs(Unknown, tool.OutcomeUnknown, unknown+failure.Message+findOut, failure.Said)
	}
	return e.failedAs(Failed, failure.Class, failure.Message, failure.Said)
}

// make makes the call within its time, unless the Turn has ended while the intent was written, which may take long.
func (c *planned) make(ctx context.Context, call tool.Call) (tool.Result, error) {
	if ctx.Err() != nil {
		return tool.Result{}, errNotCalled
	}
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	defer func() { c.took += time.Since(begin).Milliseconds() }()
	return tool.Guarded(ctx, c.tool, call)
}
