// Package turn is the engine: it runs one Turn from its input to its result. Prepare, loop, finalize, each step in the
// journal before its consequence, so that a run that was killed at any instant goes on where it stopped.
package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// Candidate is one model of a Turn's chain, with its price.
type Candidate struct {
	loop.Candidate
	// Pricing of the model; nil if it has none.
	Pricing *finalize.Pricing
}

// Input of a run.
type Input struct {
	// UID of the Turn, the key of its journal.
	UID string
	// Epoch of the binding this run belongs to, from 1.
	Epoch int64
	// Timeout is the time the Turn has left; a run that reaches it stops with StopDeadline.
	Timeout time.Duration
	// Limit is the Turn's whole wall time, for the message of such a stop.
	Limit time.Duration
	// Preparation returns what the messages are made of; the run fills in Provider and Model. It is called when messages
	// must be made, and not when the journal has them: what they were made of may be gone by then. Of its errors, an
	// *invalid.Error ends the Turn; any other ends the run.
	Preparation func(ctx context.Context) (prepare.Input, error)
	// Chain of models, at least one.
	Chain []Candidate
	// PrepareOnly stops the run when the messages are ready.
	PrepareOnly bool
	// ShowCitations lists the sources of facts in the result.
	ShowCitations bool
	// DecisionKey of the decision record.
	DecisionKey string
	// Interrupt is closed to ask the run to stop at the next safe point; nil never asks.
	Interrupt <-chan struct{}
	// HoldAnswer is asked when the answer is in the journal: true stops the run there, as for a Turn that was suspended
	// while the model worked. Otherwise an interrupted run that has its answer ends the Turn. nil is false.
	HoldAnswer func() bool
}

// Engine runs Turns.
type Engine struct {
	// Journal of all Turns.
	Journal journal.Journal
	// Now is the time that journal entries bear.
	Now func() time.Time
}

// Run runs a Turn to its end, or goes on with one that an earlier run left, and returns its result.
//
// It returns an error only if the Turn has not ended: loop.ErrInterrupted at a safe point, journal.ErrFenced if somebody
// else runs it, the cause of ctx if that ended first, or a failure of the journal. A run of a later epoch goes on then.
func (e *Engine) Run(ctx context.Context, in Input) (*Result, error) {
	log, err := journal.Open(ctx, e.Journal, in.UID, in.Epoch, e.Now)
	if err != nil {
		return nil, err
	}
	past, err := replay(log)
	if err != nil || past.result != nil {
		return past.result, err
	}
	run := &run{in: in, log: log, past: past}
	timed, cancel := context.WithTimeoutCause(ctx, in.Timeout, errDeadline)
	defer cancel()
	result, err := run.outcome(timed)
	if err != nil {
		return nil, err
	}
	result.Resumed = past.seen
	if err := log.Keep(ctx, journal.Record{Kind: journal.Finalized, Payload: result}); err != nil {
		return nil, err
	}
	return result, nil
}

// ErrCancelled is the cause to cancel a run's context with when its Turn was cancelled: the run ends at once, with a
// result that says what there is.
var ErrCancelled = errors.New("the turn was cancelled")

// errDeadline is the cause of a context whose Turn ran out of time.
var errDeadline = errors.New("the time of the turn is over")

// run is one run of one Turn.
type run struct {
	in   Input
	log  *journal.Log
	past past
	// input is what messages are made of, nil before the first are.
	input *prepare.Input
	// prepared is the newest preparation, nil before the first.
	prepared *prepare.Prepared
}

// outcome tells the story: prepare, loop, finalize.
func (r *run) outcome(ctx context.Context) (*Result, error) {
	if errors.Is(context.Cause(ctx), ErrCancelled) {
		return r.finalize(StopCancelled, "the turn was cancelled", r.past.step)
	}
	start := r.startOfChain()
	if r.in.PrepareOnly {
		if _, err := r.prepare(ctx, r.in.Chain[start].Candidate); err != nil {
			return r.stopped(err)
		}
		return r.finalize(StopPrepared, "the prompt was prepared; no model was asked", nil)
	}
	step, err := r.answer(ctx, start)
	if err != nil {
		return r.stopped(err)
	}
	if step.Reply.FinishReason == model.FinishLength {
		return r.finalize(StopMaxOutputTokens, cutOff(step), step)
	}
	return r.finalize(StopCompleted, "the model answered", step)
}

// answer returns the reply an earlier run bought, or buys one.
func (r *run) answer(ctx context.Context, start int) (*loop.Step, error) {
	if r.past.step != nil {
		r.prepared = r.past.prepared
		return r.past.step, nil
	}
	chain := make([]loop.Candidate, 0, len(r.in.Chain))
	for _, c := range r.in.Chain {
		chain = append(chain, c.Candidate)
	}
	step, err := loop.Run(ctx, loop.Input{
		Chain: chain, Start: start, Prepare: r.prepare, Interrupt: r.in.Interrupt, Log: r.log,
	})
	if err != nil {
		return nil, err
	}
	if r.in.HoldAnswer != nil && r.in.HoldAnswer() {
		return nil, loop.ErrInterrupted
	}
	return step, nil
}

// startOfChain is the candidate an earlier run had got to, else the first.
func (r *run) startOfChain() int {
	if p := r.past.prepared; p != nil {
		for i, c := range r.in.Chain {
			if c.ProviderName == p.Provider && c.Model == p.Model {
				return i
			}
		}
	}
	return 0
}

// stopped turns the error of a run into a result, if it is the end of the Turn.
func (r *run) stopped(err error) (*Result, error) {
	if failure, ok := errors.AsType[*preparationError](err); ok {
		return r.finalize(StopPreparationError, failure.Error(), nil)
	}
	if failure, ok := errors.AsType[*loop.Error](err); ok {
		return r.finalize(stopOf(failure.Kind), failure.Message, nil)
	}
	if errors.Is(err, errDeadline) {
		return r.finalize(StopDeadline, r.overdue(), nil)
	}
	if errors.Is(err, ErrCancelled) {
		return r.finalize(StopCancelled, "the turn was cancelled while it ran", nil)
	}
	return nil, err
}

// overdue says that the time is over and, where requests have failed before, why it did not suffice.
func (r *run) overdue() string {
	message := fmt.Sprintf("the turn reached its time limit of %s", r.in.Limit)
	attempts, err := journal.All[loop.Attempt](r.log, journal.ModelFailed)
	if err == nil {
		for _, a := range slices.Backward(attempts) {
			if a.Kind != model.Cancelled {
				return message + "; the last attempt before failed: " + a.Message
			}
		}
	}
	if len(attempts) > 0 {
		message += fmt.Sprintf(" while model %q of provider %q worked", attempts[len(attempts)-1].Model, attempts[len(attempts)-1].Provider)
	}
	return message + ": raise limits.timeoutSeconds or ask for less"
}

func cutOff(step *loop.Step) string {
	return fmt.Sprintf("the model's answer was cut off after %d output tokens: raise the agent's parameters.maxOutputTokens, or ask for a shorter answer",
		step.Reply.Usage.OutputTokens)
}
