package executor

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"
)

// errFull means that the executor already runs as many Turns as its capacity allows. For a moment, the controller may
// not know that. Otherwise, something other than the controller has bound a Turn.
var errFull = errors.New("the executor already runs as many turns as it may")

// takePlace takes one of the Capacity places for runs, unless the run has one. The controller binds no more Turns,
// except for those that only have to end, which need no place. But whoever may edit the status of Turns can bind any
// number of them, and they would use the memory and the connections of other Turns.
//
// If all places are taken, takePlace waits for as long as a run waits before it hands its Turn back, but no longer than
// the Turn's timeout, and not after its cancellation: the run of a Turn that was just deleted may still be ending. Then
// it returns errFull, and the Turn waits for a slot like all others. It returns loop.ErrInterrupted if the run must
// stop during the wait.
func (r *run) takePlace(ctx context.Context, timeout time.Duration) error {
	if r.placed {
		return nil
	}
	places := r.executor.runPlaces()
	if r.placed = places.TryAcquire(1); r.placed {
		return nil
	}
	waiting, stop := r.untilInterrupt(ctx)
	defer stop()
	bounded, cancel := context.WithTimeoutCause(waiting, min(r.handBackDelay(), timeout), errFull)
	defer cancel()
	bounded, end := context.WithCancelCause(bounded)
	defer end(nil)
	unwatch := context.AfterFunc(r.cancelled, func() { end(errFull) }) //nolint:contextcheck // because both contexts end the wait
	defer unwatch()
	if err := places.Acquire(bounded, 1); err != nil {
		return context.Cause(bounded)
	}
	r.placed = true
	return nil
}

// leavePlace gives the place of the run to another run, if the run has one.
func (r *run) leavePlace() {
	if r.placed {
		r.placed = false
		r.executor.runPlaces().Release(1)
	}
}

// runPlaces returns the places for runs.
func (e *Executor) runPlaces() *semaphore.Weighted {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.places == nil {
		e.places = semaphore.NewWeighted(int64(e.Capacity))
	}
	return e.places
}
