package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// run is one run of one Turn, of one epoch.
type run struct {
	executor *Executor
	// turn as it was when the run began, or as its last write left it; owned by the run's goroutine.
	turn *v1alpha1.Turn
	// epoch the run belongs to.
	epoch int64
	// cancel ends the run at once, for a cause.
	cancel context.CancelCauseFunc
	// interrupt is closed to stop the run at the next safe point.
	interrupt     chan struct{}
	interruptOnce sync.Once
	// suspended is true while the Turn is to be suspended.
	suspended atomic.Bool
	// unfinished is set when the run has not ended its Turn; owned by the run's goroutine.
	unfinished bool
	// forget is set, under the executor's lock, when the journal is to be deleted after the run.
	forget bool
}

// follow does what the Turn's desiredState asks for.
func (r *run) follow(s v1alpha1.DesiredState) {
	r.suspended.Store(s == v1alpha1.DesiredStateSuspended)
	switch s {
	case v1alpha1.DesiredStateCancelled:
		r.cancel(turn.ErrCancelled)
	case v1alpha1.DesiredStateSuspended:
		r.stopSoon()
	case v1alpha1.DesiredStateActive:
		// A run that was asked to stop stops all the same; the controller binds the Turn again.
	}
}

func (r *run) stopSoon() { r.interruptOnce.Do(func() { close(r.interrupt) }) }

// run runs the Turn and writes what became of it.
func (r *run) run(ctx context.Context) {
	e := r.executor
	log := e.Log.WithValues("turn", client.ObjectKeyFromObject(r.turn), "epoch", r.epoch)
	result, err := r.execute(ctx)
	// What became of the Turn is written even if the run was cancelled.
	write := context.WithoutCancel(ctx)
	r.unfinished = result == nil
	notReady, isNotReady := errors.AsType[*notReadyError](err)
	switch {
	case result != nil:
		r.finish(write, result)
		log.V(1).Info("Ran a turn", "stop", result.Stop, "requests", result.Counts.ModelRequests)
	case errors.Is(err, errDeleted):
		log.Info("Stopped the run of a deleted turn")
	case errors.Is(err, errSuperseded):
		log.Info("Left a turn to its new executor")
	case errors.Is(err, loop.ErrInterrupted) && r.suspended.Load():
		r.release(write, v1alpha1.TurnReasonSuspended, "the turn was suspended; set desiredState to Active to go on")
	case isNotReady:
		r.releaseUnprepared(write, notReady)
		log.Info("Handed a turn back", "cause", notReady.message)
	default:
		// This holds for a fenced run, too: if the Turn is bound elsewhere, nothing is written; if it is still bound
		// here, it needs an epoch newer than the journal's.
		r.release(write, v1alpha1.TurnReasonPending, "handed back by executor "+e.Name+"; waits for an executor")
		log.Info("Handed a turn back", "cause", err.Error())
	}
}

// The bounds of the waits between attempts to go on, after the journal failed or a ConfigMap could not be read.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 10 * time.Second
)

// execute runs the engine until the Turn has ended or must stop. A journal that fails, or holds what this run does not
// know of (an append that was done although it seemed to fail), is read again: the Turn goes on from what it holds. A
// ConfigMap that could not be read is read again, too.
func (r *run) execute(ctx context.Context) (*turn.Result, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = retryFirst, retryMost
	for {
		in, err := r.input(ctx)
		if err != nil {
			r.hesitate(ctx)
			return nil, err
		}
		result, err := r.engine(ctx, in)
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return result, err
		}
		if _, ok := errors.AsType[*notReadyError](err); ok {
			r.hesitate(ctx)
			return nil, err
		}
		if in.Timeout <= 0 {
			// The Turn is bounded even where its record cannot be written, or what it is made of not be read.
			return &turn.Result{Stop: turn.StopDeadline, Message: fmt.Sprintf(
				"the turn reached its time limit of %s and could not go on: %s", in.Limit, err)}, nil
		}
		r.executor.Log.Error(err, "Failed to run a turn, trying again", "turn", client.ObjectKeyFromObject(r.turn))
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-r.interrupt:
			timer.Stop()
			return nil, loop.ErrInterrupted
		}
	}
}

// engine runs the engine. A panic in it ends its Turn, and not the process with all other Turns.
func (r *run) engine(ctx context.Context, in turn.Input) (result *turn.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			// What it panicked with may hold a part of the prompt; the stack does not.
			r.executor.Log.Error(errors.New("panic in the engine"), "Failed to run a turn",
				"turn", client.ObjectKeyFromObject(r.turn), "stack", string(debug.Stack()))
			result, err = &turn.Result{Stop: turn.StopModelError, Message: "the run failed within Capstan, which is a bug: see the log of its executor"}, nil
		}
	}()
	return r.executor.Engine.Run(ctx, in)
}

// hesitate waits before a Turn is handed back because what it needs is missing, longer with each epoch: the controller may
// still think that it is there, and bind the Turn at once again.
func (r *run) hesitate(ctx context.Context) {
	timer := time.NewTimer(min(100*time.Millisecond<<min(r.epoch, 10), 10*time.Second))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-r.interrupt:
	}
}

func isFinal(err error) bool {
	return errors.Is(err, loop.ErrInterrupted) || errors.Is(err, journal.ErrFenced)
}
