// Package turn is the engine: it runs one Turn from its input to its result. Prepare, loop, finalize, each step in the
// journal before its consequence, so that a run that was killed at any instant goes on where it stopped.
package turn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Input of a run.
type Input struct {
	// UID of the Turn, the key of its journal.
	UID string
	// Epoch of the binding this run belongs to, from 1.
	Epoch int64
	// Executor that runs it, and Namespace and Name of the Turn, for people who read the journal.
	Executor, Namespace, Name string
	// Timeout is the time the Turn has left; a run that reaches it stops with StopDeadline. It may be over already.
	Timeout time.Duration
	// Limit is the Turn's whole wall time, for the message of such a stop.
	Limit time.Duration
	// Preparation returns what the messages are made of; the run fills in Provider and Model. It is called when messages
	// must be made, and not when the journal has them: what they were made of may be gone by then. Of its errors, an
	// *invalid.Error ends the Turn; any other ends the run.
	Preparation func(ctx context.Context) (prepare.Input, error)
	// Chain of models, at least one.
	Chain []loop.Candidate
	// Tools that the model is offered.
	Tools []tool.Tool
	// Limits over all runs of the Turn.
	Limits loop.Limits
	// Session that the Turn belongs to; nil if there is none.
	Session *Session
	// PrepareOnly stops the run when the messages are ready.
	PrepareOnly bool
	// ShowCitations lists the sources of facts in the result.
	ShowCitations bool
	// DecisionKey of the decision record.
	DecisionKey string
	// Cancel is closed when the Turn was cancelled: it ends at once, with a result that says what there is. nil never is.
	Cancel <-chan struct{}
	// Interrupt is closed to ask the run to stop at the next safe point; nil never asks.
	Interrupt <-chan struct{}
	// HoldAnswer is asked when the answer is in the journal: true stops the run there, as for a Turn that was suspended
	// while the model worked. Otherwise an interrupted run that has its answer ends the Turn. nil is false.
	HoldAnswer func() bool
}

// Session is a conversation that a Turn belongs to.
type Session struct {
	// UID of the Session, under which the journal keeps its history, and Name.
	UID, Name string
}

// Engine runs Turns.
type Engine struct {
	// Journal of all Turns and Sessions.
	Journal journal.Journal
	// Now is the time that journal entries bear.
	Now func() time.Time
	// Patience is how long the store of the journal may fail before a run gives up; 0 is for as long as the run lives.
	Patience time.Duration
	// Waiting is told, each time, that the journal of a Turn could not be written and when it is tried again; nil tells
	// nobody.
	Waiting func(in Input, err error, again time.Duration)
}

// Run runs a Turn to its end, or goes on with one that an earlier run left, and returns its result.
//
// ctx is the life of the run: it ends when the run is given up while its Turn goes on, here or elsewhere. Run returns an
// error only if the Turn has not ended: loop.ErrInterrupted at a safe point, journal.ErrFenced if somebody else runs it, the
// cause of ctx if that ended first, or a failure to read the journal. A run of a later epoch goes on then.
func (e *Engine) Run(ctx context.Context, in Input) (*Result, error) {
	r := &run{engine: e, in: in, life: ctx}
	var err error
	r.log, err = journal.Open(ctx, in.UID, in.Epoch, r.options())
	if err != nil {
		return nil, err
	}
	r.resumes = r.past.runs
	if r.past.result == nil {
		if err := r.finish(); err != nil { //nolint:contextcheck // because the run holds its life
			return nil, err
		}
	}
	return r.remembered()
}

// options of the Turn's journal.
func (r *run) options() journal.Options {
	return journal.Options{
		Journal: r.engine.Journal, Now: r.engine.Now, Apply: r.past.apply, Patience: r.engine.Patience, Waiting: r.waiting,
		First: []journal.Record{{Kind: journal.RunStarted, Payload: started{rand.Text(), r.in.Executor, r.in.Namespace, r.in.Name}}},
	}
}

// started is what the journal says of the beginning of a run.
type started struct {
	// Run is random: what two runs write at the same time is never the same.
	Run       string `json:"run,omitempty"`
	Executor  string `json:"executor,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// errCancelled is the cause of a context whose Turn was cancelled.
var errCancelled = errors.New("the turn was cancelled")

// errDeadline is the cause of a context whose Turn ran out of time.
var errDeadline = errors.New("the time of the turn is over")

// run is one run of one Turn.
type run struct {
	engine *Engine
	in     Input
	// life of the run. Its end gives the run up; what has happened is written down all the same.
	life context.Context //nolint:containedctx // because the journal is written for as long as the run lives, whatever a step's own context says
	log  *journal.Log
	past past
	// resumes is how many runs before this one have done something.
	resumes int
	// input is what messages are made of, nil before the first are.
	input *prepare.Input
}

// finish brings the Turn to its end and writes that down.
func (r *run) finish() error {
	ctx, stop := r.work()
	defer stop()
	result, err := r.outcome(ctx)
	if err != nil {
		return err
	}
	return r.record(journal.Record{Kind: journal.Finalized, Payload: result, Artifacts: result.attachments()})
}

// work is a context that ends with the run's life, with the time of the Turn, or when the Turn is cancelled.
func (r *run) work() (ctx context.Context, stop func()) {
	timed, cancelTimed := context.WithTimeoutCause(r.life, r.in.Timeout, errDeadline)
	ctx, cancel := context.WithCancelCause(timed)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-r.in.Cancel:
			cancel(errCancelled)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		cancelTimed()
		<-watched
	}
}

func (r *run) record(records ...journal.Record) error { return r.log.Append(r.life, records...) }

func (r *run) waiting(err error, again time.Duration) {
	if r.engine.Waiting != nil {
		r.engine.Waiting(r.in, err, again)
	}
}

// outcome tells the story: prepare, loop, finalize.
func (r *run) outcome(ctx context.Context) (*Result, error) {
	select {
	case <-r.in.Cancel:
		return r.finalize(StopCancelled, "the turn was cancelled")
	default:
	}
	start := r.startOfChain()
	if r.in.PrepareOnly {
		if _, err := r.prepare(ctx, r.in.Chain[start]); err != nil {
			return r.stopped(err)
		}
		return r.finalize(StopPrepared, "the prompt was prepared; no model was asked")
	}
	end, err := r.loop(ctx, start)
	if err != nil {
		return r.stopped(err)
	}
	last := r.past.loop.LastStep()
	switch {
	case end.Reason == loop.OverBudget:
		return r.finalize(StopBudget, end.Message)
	case last.Reply.FinishReason == model.FinishLength:
		return r.finalize(StopMaxOutputTokens, cutOff(last))
	case end.Reason == loop.OutOfSteps:
		return r.finalize(StopMaxSteps, end.Message)
	}
	return r.finalize(StopCompleted, end.Message)
}

// loop asks and calls until there is an end. What an earlier run has done is not done again.
func (r *run) loop(ctx context.Context, start int) (*loop.End, error) {
	before := len(r.past.loop.Steps)
	end, err := loop.Run(ctx, loop.Input{
		TurnUID: r.in.UID, Chain: r.in.Chain, Start: start, Prepare: r.prepare, Tools: r.tools(), Limits: r.in.Limits,
		Interrupt: r.in.Interrupt, State: &r.past.loop, Record: r.record, NextSeq: r.log.Next,
		Abandoned: func() bool { return r.life.Err() != nil },
	})
	if err == nil && len(r.past.loop.Steps) > before && r.in.HoldAnswer != nil && r.in.HoldAnswer() {
		return nil, loop.ErrInterrupted
	}
	return end, err
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
		return r.finalize(StopPreparationError, failure.Error())
	}
	if failure, ok := errors.AsType[*loop.Error](err); ok {
		return r.finalize(stopOf(failure.Kind), failure.Message)
	}
	if errors.Is(err, errDeadline) {
		return r.finalize(StopDeadline, r.overdue())
	}
	if errors.Is(err, errCancelled) {
		return r.finalize(StopCancelled, "the turn was cancelled while it ran")
	}
	return nil, err
}

// overdue says that the time is over and, where requests have failed before, why it did not suffice.
func (r *run) overdue() string {
	message := fmt.Sprintf("the turn reached its time limit of %s", r.in.Limit)
	attempts := r.past.loop.Attempts
	for _, a := range slices.Backward(attempts) {
		if a.Kind != model.Cancelled {
			return message + "; the last attempt before failed: " + a.Message
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
