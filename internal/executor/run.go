package executor

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// run is one run of a Turn, within one epoch.
type run struct {
	executor *Executor
	// turn is the Turn as it was when the run began, or as the run's goroutine last wrote it. After the run, it is the
	// Turn as the last write of any kind left it. It may be the cache's own object and must not be changed. Only the
	// run's goroutine uses it.
	turn *v1alpha1.Turn
	// version is the resource version of the Turn with which the run began.
	version string
	// agent is the Turn's Agent as the last attempt read it. Runs with the same version of an Agent share one copy.
	agent *v1alpha1.Agent
	// namespace is the Turn's namespace. All goroutines may read it.
	namespace string
	// timeOver is the time at which the Turn's time limit ends, as the current attempt has determined it. Only the
	// run's goroutine uses it.
	timeOver time.Time
	// epoch is the epoch of the run, and begun is the time at which the run began.
	epoch int64
	begun time.Time
	// binding is the Turn's binding as this run last read or wrote it. Only the run's goroutine uses it.
	binding v1alpha1.ExecutorBinding
	// store is the store that holds the journal. It is nil until the run has found that it may continue from the
	// journal. entries is the known number of entries in the journal.
	store   atomic.Pointer[store.Identity]
	entries atomic.Int64
	// first is true if no earlier run can have begun anything. tried is true once the engine was asked to run the
	// Turn.
	first, tried bool
	// failure is the error of the last attempt after which the run tries again. It is nil if the last attempt only
	// waits for memory. Only the run's goroutine uses it.
	failure error
	// whole is true if the current attempt is the first one of the Turn, so the attempt writes the whole journal.
	whole bool
	// warned is true once this run has emitted the Event about the context window. Only the run's goroutine uses it.
	warned bool
	// progress writes the run's progress while it runs.
	progress progress
	// memory is the memory of the conversation. Only the run's goroutine uses it.
	memory conversation
	// placed is true while the run has one of the executor's places. Only the run's goroutine uses it.
	placed bool
	// leave leaves the gate for Turns that only have to end. It is nil if the run has not entered it. Only the run's
	// goroutine uses it.
	leave func()
	// releaseReply releases the memory of the newest reply. It is nil if no reply is kept. Only the run's goroutine
	// uses it.
	releaseReply func()
	// abandon ends the run immediately, with a cause. The Turn continues elsewhere or is gone.
	abandon context.CancelCauseFunc
	// cancellation is the signal that the Turn was cancelled. The run then ends the Turn.
	cancellation
	// interrupt is closed to stop the run at its next safe point.
	interrupt     chan struct{}
	interruptOnce sync.Once
	// suspended is true while the Turn's desired state is Suspended.
	suspended atomic.Bool

	// noSpace is the message that says why the run must wait for journal space. It is nil if the run need not wait.
	noSpace atomic.Pointer[string]

	// gone is true if the Turn has left the watch. The executor's lock guards it.
	gone bool
	// latest is the newest state of the Turn that the watch has shown during the run; nil if it has shown none. The
	// executor's lock guards it.
	latest *v1alpha1.Turn
	// next is the Turn with a new binding to this executor, which arrived while this run was ending. It is nil if there
	// is none. The executor's lock guards it.
	next *v1alpha1.Turn
}

// cancellation is the signal that a Turn was cancelled.
type cancellation struct {
	// cancelled ends when cancel is called.
	cancelled context.Context //nolint:containedctx // because it is a signal, and not the context of a call
	cancel    context.CancelFunc
}

// newCancellation returns a signal that has the values of ctx and does not end with ctx.
func newCancellation(ctx context.Context) cancellation {
	var c cancellation
	c.cancelled, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// observe informs the run of the Turn's current state. mine reports whether the Turn is bound to this executor. The
// caller must hold the executor's lock.
func (r *run) observe(t *v1alpha1.Turn, mine bool) {
	r.gone, r.next, r.latest = false, nil, t
	switch {
	case t.Epoch() < r.epoch && !isNewer(t, r.version): // an event of an earlier epoch
	case mine && t.Epoch() == r.epoch:
		r.handleDesiredState(desiredStateOf(t))
	default:
		// The last write of this run may also cause this event. In this case the run has ended or is about to end. A
		// person who edits the status may lower or remove the epoch. Then the journal refuses runs until the epoch is
		// higher than that of its newest entry.
		r.abandon(errSuperseded)
		if mine {
			r.next = t
		}
	}
}

// desiredStateOf returns the desired state of a Turn: Cancelled for a Turn that was deleted and that only a finalizer
// keeps.
func desiredStateOf(t *v1alpha1.Turn) v1alpha1.DesiredState {
	if t.IsCancelled() {
		return v1alpha1.DesiredStateCancelled
	}
	return t.Spec.DesiredState
}

// handleDesiredState acts on the Turn's desired state.
func (r *run) handleDesiredState(s v1alpha1.DesiredState) {
	r.suspended.Store(s == v1alpha1.DesiredStateSuspended)
	switch s {
	case v1alpha1.DesiredStateCancelled:
		r.cancel()
	case v1alpha1.DesiredStateSuspended:
		r.stopSoon()
	case v1alpha1.DesiredStateActive:
		// A run that was asked to stop still stops; the controller binds the Turn again.
	}
}

func (r *run) stopSoon() { r.interruptOnce.Do(func() { close(r.interrupt) }) }

func (r *run) key() client.ObjectKey { return client.ObjectKeyFromObject(r.turn) }

// log returns the logger for lines about the Turn.
func (r *run) log() logr.Logger { return r.executor.logOf(r.turn) }

// logOf returns the logger for lines about a Turn. The lines name the Turn's requester. If the Agent is in another
// namespace, the lines name the Agent, too, so that the credentials of that namespace are removed from them.
func (e *Executor) logOf(t *v1alpha1.Turn) logr.Logger {
	log := e.Log.WithValues("turn", client.ObjectKeyFromObject(t), "requester", t.Requester())
	if t.IsOfForeignAgent() {
		log = log.WithValues("agent", t.AgentKey())
	}
	return log
}

// run runs the Turn and writes the outcome into its status.
func (r *run) run(ctx context.Context) {
	r.progress.begin(ctx, r.turn, r.writeProgress)
	result, err := r.execute(ctx)
	r.leavePlace() // before the status is written, which lets the controller bind the next Turn
	r.turn = r.progress.stop()
	r.writeOutcome(ctx, result, err)
	// Release the memory only here: the result holds the text of the answer until it is written.
	r.releaseMemory()
	r.leaveEndings()
}

// writeOutcome writes the outcome of the run, if the Turn still belongs to this run. It is a separate function so that
// its stack frame does not exist while the Turn waits for a model.
func (r *run) writeOutcome(ctx context.Context, result *turn.Result, err error) {
	log := r.log().WithValues("epoch", r.epoch)
	// The outcome is written even if the run was abandoned, as long as the Turn still belongs to this run.
	write := context.WithoutCancel(ctx)
	switch r.outcomeOf(result, err) {
	case ended:
		r.finish(write, result)
		log.V(1).Info("Ran a turn", "stop", result.Stop, "requests", result.Counts.ModelRequests)
	case cutOff:
		cut, _ := errors.AsType[*cutOffError](err)
		r.endCutOff(write, cut)
		log.Info("Ended a turn without a result", "stop", cut.Stop, "cause", cut.Message)
	case superseded:
		log.Info("Left a turn that is no longer bound here")
		r.charge(write)
	case suspended:
		waits, _ := errors.AsType[*loop.Parked](err)
		r.await(write, func(t *v1alpha1.Turn, known turnstatus.Run, now time.Time) { turnstatus.Suspend(t, known, waits, now) })
	case parked:
		waits, _ := errors.AsType[*loop.Parked](err)
		r.park(write, waits)
		log.V(1).Info("Parked a turn", "approvals", len(waits.Approvals), "turns", waits.Turns)
	case outOfSpace:
		r.release(write, v1alpha1.TurnReasonWaitingForJournalSpace, *r.noSpace.Load())
		log.Info("Handed a turn back", "cause", *r.noSpace.Load())
	case notReady:
		missing, _ := errors.AsType[*notReadyError](err)
		release := turnstatus.ReleaseUnprepared
		if missing.mayBePrepared {
			release = turnstatus.Release
		}
		r.await(write, func(t *v1alpha1.Turn, known turnstatus.Run, now time.Time) {
			release(t, known, missing.reason, missing.message, now)
		})
		log.Info("Handed a turn back", "cause", missing.message)
	case handedBack, tryAgain:
		r.handBack(write)
		log.Info("Handed a turn back", "cause", err.Error())
	}
}

// outcomeOf classifies the end of an attempt.
func (r *run) outcomeOf(result *turn.Result, err error) outcome {
	return outcomeOf(result, err, r.suspended.Load(), r.noSpace.Load() != nil)
}

// handBack unbinds the Turn so that another executor can run it.
func (r *run) handBack(ctx context.Context) {
	r.release(ctx, v1alpha1.TurnReasonPending, handedBackBy(r.executor.Name))
}

// handedBackBy returns the message of a Turn that an executor has handed back.
func handedBackBy(executor string) string {
	return "handed back by executor " + executor + "; waiting for an executor"
}

// The first and the longest wait between attempts.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 10 * time.Second
)

// execute runs the engine until the Turn has ended or must stop. Attempts are repeated in these cases:
//
//   - The journal cannot be read, or it has an entry that this run does not know, because an append succeeded although
//     it returned an error. The next attempt continues from the journal.
//   - The API server does not answer, or a ConfigMap cannot be read.
//   - There is no memory for the conversation. The next attempt begins when there is.
//
// Attempts are also repeated after the Turn's deadline. The engine then ends the Turn with everything that the journal
// has, so no paid work is lost even if the store is unavailable for a long time.
func (r *run) execute(ctx context.Context) (*turn.Result, error) {
	var again waits
	for {
		in, err := r.beginAttempt(ctx)
		if err == nil {
			var result *turn.Result
			result, err = r.executor.Engine.Run(r.withSpaceCheck(ctx), in)
			if err = r.endAttempt(ctx, err); err == nil {
				return result, nil
			}
		}
		if err := r.awaitRetry(ctx, &again, err); err != nil {
			return nil, err
		}
	}
}

// newRetryBackOff returns the lengths of the waits between attempts.
func newRetryBackOff() *backoff.ExponentialBackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = retryFirst, retryMost
	return wait
}

// waits is the state of the waits between attempts.
type waits struct {
	// wait computes the length of each wait. It is nil before the first wait.
	wait *backoff.ExponentialBackOff
	// cancelSeen is true once the cancellation of the Turn has ended a wait.
	cancelSeen bool
}

// awaitRetry waits before the next attempt. It returns an error if there must be no further attempt. It is a
// separate function because the frame of execute is on the stack of each waiting Turn.
func (r *run) awaitRetry(ctx context.Context, again *waits, err error) error {
	r.keepReply(nil) // the next attempt reads the reply from the journal
	r.leaveEndings()
	r.leaveUnreserved()
	r.failure = nil
	if short, isShort := errors.AsType[*memoryShortageError](err); isShort {
		if err = r.awaitMemory(ctx, short); err == nil {
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case r.outcomeOf(nil, err) != tryAgain:
		return err
	}
	r.log().Error(err, "Failed to run a turn, trying again")
	r.failure = err
	if again.wait == nil {
		again.wait = newRetryBackOff()
	}
	cancelled := r.cancelled.Done()
	if again.cancelSeen {
		cancelled = nil // the engine ends the Turn without the missing data; if that fails, the waits continue
	}
	timer := time.NewTimer(again.wait.NextBackOff())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-cancelled:
		again.cancelSeen = true
	case <-ctx.Done():
	case <-r.interrupt:
		return loop.ErrInterrupted
	}
	return nil
}

// beginAttempt returns the input for the engine. If the Turn must be handed back because something is missing,
// beginAttempt first waits for a while.
func (r *run) beginAttempt(ctx context.Context) (*turn.Input, error) {
	in, err := r.input(ctx)
	if _, again := errors.AsType[*retryError](err); again {
		return nil, err
	}
	if err != nil {
		r.delayHandBack(ctx)
		return nil, &handBackError{err}
	}
	mustEnd := func() bool { return in.Timeout <= 0 || r.cancelled.Err() != nil }
	if !mustEnd() {
		r.leaveUnreserved() // a clock was set back, so the Turn has time again
		began := r.executor.Now()
		err := r.takePlace(ctx, in.Timeout)
		in.Timeout -= r.executor.Now().Sub(began)
		switch {
		case errors.Is(err, errFull) && !mustEnd():
			return nil, &handBackError{err}
		case err != nil && !errors.Is(err, errFull):
			return nil, err
		}
	}
	mayBegin := r.awaitSpace
	if mustEnd() {
		mayBegin = r.enterEndings // a Turn that must end may begin, because its end needs little space
	}
	if err := mayBegin(ctx); err != nil {
		return nil, err
	}
	r.timeOver = time.Now().Add(in.Timeout) //nolint:forbidigo // because a duration is measured, not a time of day
	r.whole = r.first && !r.tried
	r.tried, r.memory.read = true, false
	r.executor.Forecast.Begin(in.UID, r.namespace, r.whole)
	return in, nil
}

// enterEndings waits until the gate Endings admits a Turn that only has to end. The gate is needed because the limit on
// concurrent Turns does not apply to these Turns, and thousands of Turns may be cancelled at the same time.
// enterEndings returns loop.ErrInterrupted if the run must stop during the wait.
func (r *run) enterEndings(ctx context.Context) error {
	gate := r.executor.Endings
	if r.leave != nil || gate == nil {
		return nil
	}
	waiting, stop := r.untilInterrupt(ctx)
	defer stop()
	if err := gate.Enter(waiting, r.namespace); err != nil {
		return err
	}
	r.leave = func() { gate.Leave(r.namespace) }
	return nil
}

// leaveEndings leaves the gate for Turns that only have to end, if the run has entered it.
func (r *run) leaveEndings() {
	if r.leave != nil {
		r.leave()
		r.leave = nil
	}
}

// untilInterrupt returns a context that also ends when the run must stop; its cause is then loop.ErrInterrupted. stop
// must be called.
func (r *run) untilInterrupt(ctx context.Context) (waiting context.Context, stop func()) {
	waiting, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-r.interrupt:
			cancel(loop.ErrInterrupted)
		case <-waiting.Done():
		}
	}()
	return waiting, func() { cancel(nil) }
}

// endAttempt returns the error with which an attempt ends: err, which is the engine's error, or another error if the
// Turn must end without a result. If the Turn must be handed back because something is missing, endAttempt first waits
// for a while.
func (r *run) endAttempt(ctx context.Context, err error) error {
	r.executor.Forecast.End(string(r.turn.UID), r.whole && err == nil)
	if cut, lost := errors.AsType[*cutOffError](err); lost {
		return r.account(ctx, cut)
	}
	if errors.Is(err, journal.ErrDamaged) {
		return r.endInterrupted(ctx, "the turn cannot continue from its journal: "+err.Error())
	}
	if bug, panicked := errors.AsType[*turn.PanicError](err); panicked {
		r.log().Error(err, "Failed to run a turn", "stack", bug.Stack)
		return r.endInterrupted(ctx, err.Error()+": see the log of its executor")
	}
	if r.isFutile(err) {
		r.delayHandBack(ctx)
	}
	return err
}

// isFutile reports whether a new run would fail in the same way if it began immediately: the Turn needs something that
// is missing, or waits for something that has not happened.
func (r *run) isFutile(err error) bool {
	if _, missing := errors.AsType[*notReadyError](err); missing {
		return true
	}
	parked, ok := errors.AsType[*loop.Parked](err)
	return ok && r.parkedAgain(parked) || errors.Is(err, journal.ErrNewer)
}

// handBackError means that the run cannot begin.
type handBackError struct{ error }

// Unwrap returns the cause.
func (e *handBackError) Unwrap() error { return e.error }

// handBackDelay returns how long a run waits before it hands back a Turn that cannot begin.
func (r *run) handBackDelay() time.Duration {
	return min(100*time.Millisecond<<min(r.epoch, 10), 10*time.Second)
}

// delayHandBack waits before a Turn is handed back because an object that it needs is missing. Otherwise a controller
// whose cache still has the object could bind the Turn again immediately. The wait grows with each epoch. A Turn that
// was cancelled before does not wait less: the controller binds it again so that it ends. During the wait, the run
// neither holds memory nor stays in a gate, because other Turns could use both.
func (r *run) delayHandBack(ctx context.Context) {
	r.releaseMemory()
	r.leaveEndings()
	cancelled := r.cancelled.Done()
	if r.cancelled.Err() != nil {
		cancelled = nil
	}
	timer := time.NewTimer(r.handBackDelay())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-cancelled:
	case <-r.interrupt:
	}
}
