package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/compensation"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// maxParallel is the number of calls of a wave that run at the same time.
const maxParallel = 8

// finishedCall is a call of a wave whose tool has returned.
type finishedCall struct {
	*planned
	result tool.Result
	err    error
}

// errNotCalled is the error of a call that was not made because the Turn had ended.
var errNotCalled = errors.New("the tool was not called, because the turn had ended")

// runWave makes the calls of a wave, whose intents are in the journal, and records each result when it arrives. It
// returns when no call is running. If the run is interrupted, runWave makes no further calls, and repeats none. If Hold
// returns an error, because there is no memory for a result, runWave does the same and returns that error. If a call
// has started a Turn whose result is not ready yet, it returns a *Parked instead.
func (run *runner) runWave(ctx context.Context, wave []*planned) error {
	reserved := callMemory{reserve: run.ReserveCall}
	defer reserved.keep(0)
	callCtx, stop := context.WithCancel(ctx)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	defer stop()
	results := make(chan finishedCall, maxParallel)
	running := 0
	begin := func(c *planned) {
		call := tool.Call{
			IdempotencyKey: c.intent.IdempotencyKey, Step: c.intent.Step, CallID: c.intent.CallID, Attempt: c.intent.Attempt,
			Repeatable: effectOf(c.tool).Repeatable(), TurnUID: run.State.TurnUID(c.intent.Step, c.intent.CallID),
			NotCreated: run.State.hasNotCreated(c.intent), Arguments: c.intent.Arguments,
			Left: run.left(ctx), Descendants: c.intent.Descendants,
		}
		running++
		inFlight.Go(func() {
			d := finishedCall{planned: c, err: tool.ErrNoResult}
			defer func() { results <- d }() // even if the adapter ends its goroutine
			d.result, d.err = c.invoke(run.forCall(callCtx, &call), call)
		})
	}
	var parked Parked
	var outOfMemory error
	for {
		for ; running < maxParallel && len(wave) > 0 && reserved.coversAnother(running); wave = wave[1:] {
			begin(wave[0])
		}
		reserved.keep(running - 1)
		if running == 0 {
			break
		}
		d := <-results
		running--
		switch next, err := run.recordEnd(ctx, d); {
		case err != nil:
			return err
		case next.retry:
			if outOfMemory == nil && !run.interrupted() { // otherwise, the next run repeats the call
				begin(d.planned)
			}
		case next.turn != "":
			parked.Turns = append(parked.Turns, next.turn)
			made := SubAgentCall{Step: d.intent.Step, CallID: d.intent.CallID, TurnUID: next.uid}
			if next.notCreated {
				made.NotCreated = d.intent.Attempt
			}
			if made.TurnUID != "" || made.NotCreated > 0 {
				parked.SubAgentCalls = append(parked.SubAgentCalls, made)
			}
		}
		if err := run.hold(0); outOfMemory == nil {
			outOfMemory = err
		}
		if outOfMemory != nil || run.interrupted() {
			wave = nil // the next run makes the calls that have not begun: they are all read-only
		}
	}
	if len(parked.Turns) > 0 { // even without memory: a park releases it, and records the Turns that the calls have started
		return &parked
	}
	return outOfMemory
}

// forCall returns the context in which a call is made.
func (run *runner) forCall(ctx context.Context, c *tool.Call) context.Context {
	if run.ForCall == nil {
		return ctx
	}
	return run.ForCall(ctx, c.Step, c.CallID)
}

// callMemory holds the reserved memory for the calls of a wave that run at the same time. The memory of a Turn includes
// one call. Each further call needs a reservation, for its connection and its goroutines.
type callMemory struct {
	// reserve is Config.ReserveCall. releases are the functions that it returned, one for each reservation.
	reserve  func() func()
	releases []func()
}

// coversAnother reserves the memory for another call while the given number of calls is running. It returns false if
// there is no memory for that call.
func (m *callMemory) coversAnother(running int) bool {
	if m.reserve == nil || running <= len(m.releases) {
		return true
	}
	release := m.reserve()
	if release == nil {
		return false
	}
	m.releases = append(m.releases, release)
	return true
}

// keep keeps the given number of reservations and releases the others.
func (m *callMemory) keep(number int) {
	for len(m.releases) > max(0, number) {
		last := len(m.releases) - 1
		m.releases[last]()
		m.releases = m.releases[:last]
	}
}

func (run *runner) interrupted() bool {
	select {
	case <-run.Interrupt:
		return true
	default:
		return false
	}
}

// followUp says how to continue after a call. It is the zero value if the result of the call was recorded.
type followUp struct {
	// retry is true if the call is repeated. turn and uid are the name and the UID of the Turn that the call waits for.
	// notCreated is true if the call has certainly not created this Turn yet.
	retry      bool
	turn, uid  string
	notCreated bool
}

// recordEnd records the result of a call, or the intent to repeat it. If the call started a Turn whose result is not
// ready yet, recordEnd records nothing and returns this Turn. If the Turn of the run has ended, but the call may have
// started a Turn, recordEnd records nothing and returns the cause of the end.
func (run *runner) recordEnd(ctx context.Context, d finishedCall) (followUp, error) {
	// Check the context first. If it ended because the run was given up, Abandoned already reports that. If the
	// context had not ended yet, it may end at any moment after this check.
	over := ctx.Err() != nil
	if d.err != nil && over && run.Abandoned() {
		return followUp{}, context.Cause(ctx) // the intent stays open, and the next run handles it
	}
	b := run.newResult(d.intent.Step, d.openCall, d.tool)
	b.DurationMS, b.Spent, b.Descendants = d.took, d.result.Spent, d.result.Descendants
	again := d.intent.Attempt > 1 && d.intent.Effect != tool.ReadOnly // an earlier attempt has given no result
	pending, waits := errors.AsType[*tool.Pending](d.err)
	switch {
	case errors.Is(d.err, errNotCalled) && again && isSubAgent(d.tool):
		// An earlier attempt may have created a Turn. The call stays open, so that its usage is collected.
		return followUp{}, context.Cause(ctx)
	case errors.Is(d.err, errNotCalled):
		b.MayHaveActed = again
		return followUp{}, run.Record(b.failed(Refused, tool.Denied, d.err.Error()))
	case waits && effectOf(d.tool).Repeatable():
		return followUp{turn: pending.Turn, uid: pending.UID, notCreated: pending.NotCreated}, nil
	case waits:
		return followUp{}, run.Record(b.failed(Unknown, tool.OutcomeUnknown,
			unknownPrefix+"its result arrives later, and the call cannot be repeated to get it"+unknownSuffix))
	case over && d.err != nil && isSubAgent(d.tool) && d.result.Spent == nil && d.result.Descendants == nil:
		// This attempt or an earlier one may have created a Turn. The call stays open, as above.
		return followUp{}, context.Cause(ctx)
	case d.err == nil:
		whole := d.result.Data()
		d.result, b.redact = d.result.Map(run.redacted), nil // redacted only once, because Redact counts its matches
		b.Undo = compensation.Fill(ctx, d.tool, d.intent.Arguments, whole, d.result.Data())
		b.findSources(ctx, d.result)
		return followUp{}, run.Record(b.succeeded(d.result))
	case !over && run.shouldRetry(ctx, d):
		d.intent.Attempt, d.intent.Retry = d.intent.Attempt+1, true
		return followUp{retry: true}, run.Record(journal.Record{Kind: journal.ToolIntended, Payload: d.intent})
	}
	b.MayHaveActed = again
	return followUp{}, run.Record(b.failure(over, effectOf(d.tool), d.err))
}

// shouldRetry reports whether a call that gave no result in time is repeated.
func (run *runner) shouldRetry(ctx context.Context, d finishedCall) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < leastTime {
		return false
	}
	return tool.AsError(d.err).Class == tool.Timeout && d.tool.RetryOnTimeout && effectOf(d.tool).Repeatable() &&
		!run.State.retried(d.intent.Step, d.intent.CallID)
}

const (
	// turnEnded is the message for a call that the end of its Turn cut off.
	turnEnded = "the turn ended during the call"
	// unknownPrefix begins, and unknownSuffix ends, the message for a call with an unknown outcome.
	unknownPrefix = "the outcome of this call is unknown: "
	unknownSuffix = ". The call may have taken effect. Check whether it did: an identical call will not be made."
)

// failure returns the result of a call whose tool returned an error. A harmful call may have been made all the same,
// unless the error states what happened. Only an error with a class does.
func (b resultBuilder) failure(over bool, effect tool.Effect, err error) journal.Record {
	failure := tool.AsError(err)
	_, classified := errors.AsType[*tool.Error](err)
	b.Stack = tool.StackOf(err)
	uncertain := over || tool.IsUncertain(err) || failure.Class == tool.Timeout || failure.Class == tool.OutcomeUnknown
	b.MayHaveActed = b.MayHaveActed || uncertain && effect == tool.Idempotent
	switch {
	case over && effect.Repeatable() && !classified:
		return b.failed(Failed, failure.Class, turnEnded)
	case effect.Repeatable():
		return b.failedAs(Failed, failure.Class, failure.Message, failure.RemoteMessage)
	case over && failure.Class != tool.Unavailable:
		return b.failed(Unknown, tool.OutcomeUnknown, unknownPrefix+turnEnded)
	case failure.Class == tool.Timeout || failure.Class == tool.OutcomeUnknown:
		return b.failedAs(Unknown, failure.Class, unknownPrefix+failure.Message+unknownSuffix, failure.RemoteMessage)
	case tool.IsUncertain(err):
		return b.failedAs(Unknown, tool.OutcomeUnknown, unknownPrefix+failure.Message+unknownSuffix, failure.RemoteMessage)
	}
	return b.failedAs(Failed, failure.Class, failure.Message, failure.RemoteMessage)
}

// invoke makes the call within the time limit of the tool. It makes no call if the Turn ended while the intent was
// written, which may take long.
func (c *planned) invoke(ctx context.Context, call tool.Call) (tool.Result, error) {
	if ctx.Err() != nil {
		return tool.Result{}, errNotCalled
	}
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	defer func() { c.took += time.Since(begin).Milliseconds() }()
	return tool.Guarded(ctx, c.tool, call)
}
