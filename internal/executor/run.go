package executor

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
)

// run is one run of one Turn, of one epoch.
type run struct {
	executor *Executor
	// turn as it was when the run began, and from its end as its last write left it. It may be the cache's own object and must not be
	// changed. The run's goroutine alone uses it.
	turn *v1alpha1.Turn
	// agent is the Turn's as the last attempt has read it: runs share it for as long as one of them holds it.
	agent *v1alpha1.Agent
	// namespace of the Turn, for all goroutines.
	namespace string
	// epoch the run belongs to, and when the run began.
	epoch int64
	begun time.Time
	// binding is that of the Turn, as this run last read or wrote it. The run's goroutine alone uses it.
	binding v1alpha1.ExecutorBinding
	// store is where the journal is, nil before the run has found that it may go on from it; entries is how many entries the
	// journal is known to have.
	store   atomic.Pointer[store.Identity]
	entries atomic.Int64
	// first is true where no run before can have begun anything, and tried once the engine was asked to run the Turn.
	first, tried bool
	// progress writes what the run does, while it goes on.
	progress progress
	// memory is what the run holds of the budget, nil for nothing. The run's goroutine alone uses it.
	memory *bytebudget.Reservation
	// reply releases the memory of the newest reply, nil where none is kept. The run's goroutine alone uses it.
	reply func()
	// abandon ends the life of the run at once, for a cause; its Turn goes on elsewhere or is gone.
	abandon context.CancelCauseFunc
	// cancellation of the Turn: the run ends it.
	cancellation
	// interrupt is closed to stop the run at the next safe point.
	interrupt     chan struct{}
	interruptOnce sync.Once
	// suspended is true while the Turn is to be suspended.
	suspended atomic.Bool

	// noSpace is why the run is to wait for space for its journal; nil if it need not.
	noSpace atomic.Pointer[string]

	// gone is set when the Turn has left the watch. The executor's lock guards it.
	gone bool
	// next is the Turn as it was bound to this executor anew while the run winds up; nil if it was not. The executor's lock
	// guards it.
	next *v1alpha1.Turn
}

// cancellation is the signal that a Turn was cancelled.
type cancellation struct {
	// cancelled ends when cancel is called.
	cancelled context.Context //nolint:containedctx // because it is no scope of calls, but a signal for which no goroutine must wait
	cancel    context.CancelFunc
}

// newCancellation returns a signal that has the values of ctx, and does not end with it.
func newCancellation(ctx context.Context) cancellation {
	var c cancellation
	c.cancelled, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// observe brings the run in line with what its Turn says now; mine says whether the Turn is bound to this executor and is to go on.
// A Turn that is being deleted, and that a finalizer still holds, ends as a cancelled one. The caller holds the executor's lock.
func (r *run) observe(t *v1alpha1.Turn, mine bool) {
	r.gone, r.next = false, nil
	switch {
	case t.Epoch() < r.epoch: // from before
	case t.DeletionTimestamp != nil && t.BoundTo() == r.executor.Name && t.Epoch() == r.epoch:
		r.follow(v1alpha1.DesiredStateCancelled)
	case mine && t.Epoch() == r.epoch:
		r.follow(t.Spec.DesiredState)
	default:
		// Its own last write may come back this way; the run has ended by then or is about to.
		r.abandon(errSuperseded)
		if mine {
			r.next = t
		}
	}
}

// follow does what the Turn's desiredState asks for.
func (r *run) follow(s v1alpha1.DesiredState) {
	r.suspended.Store(s == v1alpha1.DesiredStateSuspended)
	switch s {
	case v1alpha1.DesiredStateCancelled:
		r.cancel()
	case v1alpha1.DesiredStateSuspended:
		r.stopSoon()
	case v1alpha1.DesiredStateActive:
		// A run that was asked to stop stops all the same; the controller binds the Turn again.
	}
}

func (r *run) stopSoon() { r.interruptOnce.Do(func() { close(r.interrupt) }) }

func (r *run) key() client.ObjectKey { return client.ObjectKeyFromObject(r.turn) }

// run runs the Turn and writes what became of it.
func (r *run) run(ctx context.Context) {
	r.progress.begin(ctx, r.turn, r.writeProgress)
	result, err := r.execute(ctx)
	r.turn = r.progress.stop()
	r.conclude(ctx, result, err)
	// Not before: the result has the text of the answer until it is written.
	r.keep(nil)
	r.memory.Release()
}

// conclude writes what became of the Turn, as far as it is still this run's. It is apart from run, so that nothing of it is held
// while the Turn waits for a model.
func (r *run) conclude(ctx context.Context, result *turn.Result, err error) {
	log := r.executor.Log.WithValues("turn", r.key(), "epoch", r.epoch)
	// What became of the Turn is written even if the run was abandoned, as far as the Turn is still its own.
	write := context.WithoutCancel(ctx)
	notReady, isNotReady := errors.AsType[*notReadyError](err)
	parked, isParked := errors.AsType[*loop.Parked](err)
	cut, isCutOff := errors.AsType[*cutOffError](err)
	switch {
	case result != nil:
		r.finish(write, result)
		log.V(1).Info("Ran a turn", "stop", result.Stop, "requests", result.Counts.ModelRequests)
	case isCutOff:
		r.lose(write, cut)
		log.Info("Ended a turn without a result", "stop", cut.stop, "cause", cut.message)
	case errors.Is(err, errSuperseded):
		log.Info("Left a turn that is no longer bound here")
		r.charge(write)
	case errors.Is(err, loop.ErrInterrupted) && r.noSpace.Load() != nil && !r.suspended.Load():
		r.release(write, v1alpha1.TurnReasonWaitingForJournalSpace, *r.noSpace.Load())
		log.Info("Handed a turn back", "cause", *r.noSpace.Load())
	case isParked && r.suspended.Load():
		r.suspend(write, parked)
	case errors.Is(err, loop.ErrInterrupted) && r.suspended.Load():
		r.suspend(write, nil)
	case isParked:
		r.park(write, parked)
		log.V(1).Info("Parked a turn", "approvals", len(parked.Approvals), "turns", parked.Turns)
	case isNotReady:
		r.releaseUnprepared(write, notReady)
		log.Info("Handed a turn back", "cause", notReady.message)
	default:
		// This holds for a fenced run, too: if the Turn is bound elsewhere, nothing is written; if it is still bound
		// here, it needs an epoch newer than the journal's.
		r.handBack(write)
		log.Info("Handed a turn back", "cause", err.Error())
	}
}

// handBack gives the Turn back as one that another executor may have.
func (r *run) handBack(ctx context.Context) {
	r.release(ctx, v1alpha1.TurnReasonPending, "handed back by executor "+r.executor.Name+"; waits for an executor")
}

// The bounds of the waits between attempts to go on, after the journal or a ConfigMap could not be read.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 10 * time.Second
)

// execute runs the engine until the Turn has ended or must stop. A journal that cannot be read, or holds what this run does
// not know of (an append that was done although it seemed to fail), is read again: the Turn goes on from what it holds. A
// ConfigMap that could not be read is read again, too. That goes on beyond the Turn's deadline, where the engine ends it
// with all that the journal holds: what was paid for is not lost because the store is away for long.
func (r *run) execute(ctx context.Context) (*turn.Result, error) {
	var again waits
	for {
		result, err := r.attempt(ctx)
		if err == nil {
			return result, nil
		}
		if err := r.awaitRetry(ctx, &again, err); err != nil {
			return nil, err
		}
	}
}

// waits is the state of the waits between attempts.
type waits struct {
	// wait has the lengths of the waits; nil before the first.
	wait *backoff.ExponentialBackOff
	// told is true once the cancellation of the Turn has ended a wait.
	told bool
}

// awaitRetry waits before the next attempt. It returns why there is none. It is apart from execute, whose frame is on the stack of each
// waiting Turn.
func (r *run) awaitRetry(ctx context.Context, again *waits, err error) error {
	r.keep(nil) // the next attempt reads the reply from the journal
	if short, isShort := errors.AsType[*shortError](err); isShort {
		if err = r.awaitMemory(ctx, short); err == nil {
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isFinal(err):
		return err
	}
	r.executor.Log.Error(err, "Failed to run a turn, trying again", "turn", r.key())
	if again.wait == nil {
		again.wait = backoff.NewExponentialBackOff()
		again.wait.InitialInterval, again.wait.MaxInterval = retryFirst, retryMost
	}
	cancelled := r.cancelled.Done()
	if again.told {
		cancelled = nil // the engine ends it without what could not be read; the waits go on if that fails
	}
	timer := time.NewTimer(again.wait.NextBackOff())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-cancelled:
		again.told = true
	case <-ctx.Done():
	case <-r.interrupt:
		return loop.ErrInterrupted
	}
	return nil
}

// attempt runs the engine once. It waits for a while where the Turn is then to be handed back.
func (r *run) attempt(ctx context.Context) (*turn.Result, error) {
	in, err := r.input(ctx)
	if _, again := errors.AsType[*unreadError](err); again {
		return nil, err
	}
	if err != nil {
		r.hesitate(ctx)
		return nil, &giveBackError{err}
	}
	if err := r.awaitSpace(ctx); err != nil {
		return nil, err
	}
	result, err := r.engine(ctx, in)
	if cut, lost := errors.AsType[*cutOffError](err); lost {
		return nil, r.account(ctx, cut)
	}
	if errors.Is(err, journal.ErrDamaged) {
		return nil, r.interrupted(ctx, "the turn cannot go on, because its record makes no sense: "+err.Error())
	}
	if errors.Is(err, errPanicked) {
		return nil, r.interrupted(ctx, "the run failed within Capstan, which is a bug: see the log of its executor")
	}
	if r.isFutile(err) {
		r.hesitate(ctx)
	}
	return result, err
}

// isFutile says whether a run has come to nothing, and the next would as well if it began at once: what the Turn needs is
// missing, or what it waits for has not come.
func (r *run) isFutile(err error) bool {
	if _, notReady := errors.AsType[*notReadyError](err); notReady {
		return true
	}
	parked, ok := errors.AsType[*loop.Parked](err)
	return ok && r.parkedAgain(parked) || errors.Is(err, journal.ErrNewer)
}

// giveBackError is a run that cannot begin.
type giveBackError struct{ error }

// Unwrap returns the cause.
func (e *giveBackError) Unwrap() error { return e.error }

// errPanicked is the end of a run in a panic of the engine.
var errPanicked = errors.New("the engine panicked")

// engine runs the engine. A panic in it ends its Turn, and not the process with all other Turns.
func (r *run) engine(ctx context.Context, in *turn.Input) (result *turn.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			// What it panicked with may hold a part of the prompt; the stack does not.
			r.executor.Log.Error(errors.New("panic in the engine"), "Failed to run a turn", "turn", r.key(), "stack", string(debug.Stack()))
			result, err = nil, errPanicked
		}
	}()
	whole := r.first && !r.tried
	r.tried = true
	r.executor.Forecast.Begin(in.UID, r.namespace)
	result, err = r.executor.Engine.RunInput(ctx, in)
	r.executor.Forecast.End(in.UID, whole && err == nil)
	return result, err
}

// hesitate waits before a Turn is handed back because what it needs is missing, longer with each epoch: the controller may
// still think that it is there, and bind the Turn at once again.
func (r *run) hesitate(ctx context.Context) {
	timer := time.NewTimer(min(100*time.Millisecond<<min(r.epoch, 10), 10*time.Second))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-r.cancelled.Done():
	case <-r.interrupt:
	}
}

// isFinal reports whether the Turn is not to be tried again by this run: it ends or stops here, is somebody else's, waits for
// something, or is a newer version's.
func isFinal(err error) bool {
	_, giveBack := errors.AsType[*giveBackError](err)
	_, notReady := errors.AsType[*notReadyError](err)
	_, parked := errors.AsType[*loop.Parked](err)
	_, cutOff := errors.AsType[*cutOffError](err)
	return giveBack || notReady || parked || cutOff || errors.Is(err, errSuperseded) || errors.Is(err, loop.ErrInterrupted) || errors.Is(err, journal.ErrFenced) || errors.Is(err, journal.ErrNewer)
}
