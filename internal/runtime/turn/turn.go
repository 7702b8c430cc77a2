// Package turn is the engine: it runs one Turn from its input to its result. Prepare, loop, finalize, each step in the
// journal before its consequence, so that a run that was killed at any instant goes on where it stopped.
package turn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/session"
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
	// TimeOver says why the time is over where Limit is not the cause, for the message of such a stop; empty where it is.
	TimeOver string
	// Preparation returns what the messages are made of; the run fills in Provider and Model. It is called when messages
	// must be made, and not when the journal has them: what they were made of may be gone by then. Of its errors, an
	// *invalid.Error ends the Turn; any other ends the run.
	Preparation func(ctx context.Context) (prepare.Input, error)
	// Chain of models, at least one; none for a Turn that is cancelled or whose time is over, which asks no model.
	Chain []loop.Candidate
	// Tools that the model is offered whatever else there is; each run has the same.
	Tools []tool.Tool
	// Toolbox has the tools of the Agent; nil for none.
	Toolbox Toolbox
	// Selection chooses among them; its Query is the message.
	Selection tool.Selection
	// TopK is how many results tools of the role ContextPack are asked for.
	TopK int
	// Policy of calls, and Context of long conversations.
	Policy  loop.Policy
	Context loop.ContextPolicy
	// Decide returns the decision about a request, or nil if none has been made. It counts only if it names all that the request
	// shows. If Decide is nil, calls are never decided.
	Decide func(ctx context.Context, a loop.Approval) (*loop.Decision, error)
	// Child returns what the Turn of a call of a sub-agent took that has ended, or a *tool.Pending. It is asked about calls without
	// a result when the Turn ends before them; nil is never asked. uid is the UID of the Turn, empty where that is not known.
	Child func(ctx context.Context, call loop.Intent, uid string) (tool.Result, error)
	// Output is the JSON Schema of the answer; empty for none.
	Output json.RawMessage
	// ReflectEvery has the model check its draft in every Turn of a Session whose number is a multiple of it; 0 never.
	ReflectEvery int
	// KeepReasoning journals the text of the model's reasoning.
	KeepReasoning bool
	// Progress is told what the Turn has done by now, after each call and each step that goes on; nil tells nobody. It returns at once.
	Progress func(Progress)
	// Opened is called when the journal was read, before the run does anything, with the number of entries that the journal has, and
	// whether the end of the Turn is among them. An error ends the run. If Opened is nil, any journal is taken.
	Opened func(ctx context.Context, entries int64, ended bool) error
	// Entries is kept at the number of entries that the journal is known to have. It may be nil.
	Entries *atomic.Int64
	// Hold is called with about how many bytes the Turn's conversation has: while the journal is read, when a long reply
	// goes on with calls, and before each request. Its error
	// ends the run, at a safe point; a *TooLargeError ends the Turn, but for one while the journal is read. If Hold is nil, there is no bound.
	Hold func(bytes int64) error
	// Keep is given what releases the memory of a long reply that is in the journal, and nil once Hold has counted it. An answer's is
	// kept beyond the end of the run, as the result has its text. Keep releases what it was given before. If Keep is nil, that memory is
	// released when the reply is in the journal.
	Keep func(release func())
	// BeforeEffect is called before the first call, in this run, of a tool that is not ReadOnly is recorded. An error ends the
	// run, and the call is not made. It may be nil.
	BeforeEffect func(ctx context.Context) error
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
	// Cancel ends when the Turn was cancelled: the Turn ends at once, with a result that says what there is. If Cancel is nil, the Turn
	// is never cancelled. It must be a context of the standard library, which needs no goroutine to be waited for.
	Cancel context.Context //nolint:containedctx // because it is no scope of calls, but the signal that the Turn was cancelled
	// Interrupt is closed to ask the run to stop at the next safe point; nil never asks.
	Interrupt <-chan struct{}
	// Redact returns a text that models and tools wrote without the credentials that the Turn must not have, before it is recorded. If
	// Redact is nil, texts stay as they are.
	Redact func(text string) string
	// HoldAnswer is asked when the answer is in the journal: true stops the run there, as for a Turn that was suspended
	// while the model worked. Otherwise an interrupted run that has its answer ends the Turn. nil is false.
	HoldAnswer func() bool
}

// Toolbox has the tools of an Agent.
type Toolbox interface {
	// Offers returns what the entries of the Agent's tools offer now, in their order. It is called when the model's tools are
	// chosen, and not when the journal has them.
	Offers(ctx context.Context) ([]tool.Offer, error)
	// Effect returns the effect that a tool that was offered to an earlier run has now: Destructive where nobody declares one any
	// more, or where the tool belongs to another ToolServer by now. It connects to no server, and fails only when ctx ends.
	Effect(ctx context.Context, t tool.Tool) (tool.Effect, error)
	// Caller returns what calls a tool that was offered, maybe to an earlier run. That of a tool that requires approval may be a
	// tool.Checker.
	Caller(t tool.Tool) tool.Caller
}

// Progress is what a Turn has done by now.
type Progress struct {
	Counts Counts
	// Calls are the newest that the model has asked for, at most MaxCalls, oldest first.
	Calls []CallRecord
	// Usage over all models, and its Cost; Cost is nil where a model that was used has no price.
	Usage model.Usage
	Cost  *finalize.Cost
	// SubAgents is what the Turns of sub-agents took whose answers the Turn has; nil if there were none.
	SubAgents *SubAgents
}

// MaxCalls is how many calls a result lists.
const MaxCalls = 50

// CallRecord is a call that the model asked for, and what became of it.
type CallRecord struct {
	CallID string `json:"callID"`
	Name   string `json:"name"`
	// Step of the call, from 1; 0 for a tool that was called before the model was asked.
	Step int `json:"step"`
	// Outcome of the call; empty for one that has not ended.
	Outcome    loop.Outcome `json:"outcome,omitempty"`
	DurationMS int64        `json:"durationMilliseconds,omitempty"`
	// Bytes of its whole output, and the name of the artifact that has it where the model was given a part.
	Bytes    int64  `json:"bytes,omitempty"`
	Artifact string `json:"artifact,omitempty"`
	// Turn is the name of the Turn of a sub-agent.
	Turn string `json:"turn,omitempty"`
	// DecidedBy is who decided about it, where it took that.
	DecidedBy string `json:"decidedBy,omitempty"`
}

// Session is a conversation that a Turn belongs to.
type Session struct {
	// UID of the Session, under which the journal keeps its history, and Name.
	UID, Name string
	// Known are the totals that were recorded outside of the journal; zero for none. A journal with fewer Turns has lost some.
	Known session.Totals
	// OnLoss receives how many earlier Turns have lost their history, before the prompt is made, if the journal has fewer Turns than
	// Known. Its error ends the run. If OnLoss is nil, the Turn goes on.
	OnLoss func(ctx context.Context, missing int64) error
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
// error only if the Turn has not ended: loop.ErrInterrupted at a safe point, a *loop.Parked where it waits for people or for the
// Turns of sub-agents, journal.ErrFenced if somebody else runs it, the
// cause of ctx if that ended first, or a failure to read the journal. A run of a later epoch goes on then.
func (e *Engine) Run(ctx context.Context, in Input) (*Result, error) { return e.RunInput(ctx, &in) }

// RunInput is Run for an input that nobody else has, and that its caller need not keep on the stack meanwhile.
func (e *Engine) RunInput(ctx context.Context, in *Input) (*Result, error) {
	r, err := e.open(ctx, in)
	if err != nil {
		return nil, err
	}
	if r.past.result == nil {
		if err := r.finish(); err != nil { //nolint:contextcheck // because the run holds its life
			return nil, err
		}
	}
	return r.remembered()
}

// open reads the journal of a Turn. It is apart from RunInput, whose frame is on the stack of each waiting Turn.
func (e *Engine) open(ctx context.Context, in *Input) (*run, error) {
	r := &run{engine: e, in: in, life: ctx}
	var err error
	if r.log, err = journal.Open(ctx, in.UID, in.Epoch, r.options()); err != nil {
		return nil, err
	}
	if err := r.opened(); err != nil {
		return nil, err
	}
	if err := r.restore(); err != nil {
		return nil, err
	}
	r.resumes = r.past.resumes()
	return r, nil
}

// opened says how many entries the journal has, and returns why the run must not go on from them; nil if it may.
func (r *run) opened() error {
	if r.in.Opened != nil {
		if err := r.in.Opened(r.life, r.log.Len(), r.past.result != nil); err != nil {
			return err
		}
	}
	r.counted()
	return nil
}

// counted says how many entries the journal has by now.
func (r *run) counted() {
	if r.in.Entries != nil {
		r.in.Entries.Store(r.log.Len())
	}
}

// options of the Turn's journal.
func (r *run) options() journal.Options {
	return journal.Options{
		Journal: r.engine.Journal, Namespace: r.in.Namespace, Now: r.engine.Now, Apply: r.apply, Admit: r.admit, Patience: r.engine.Patience, Waiting: r.waiting,
		First: []journal.Record{{Kind: journal.RunStarted, Payload: started{rand.Text(), r.in.Executor, r.in.Namespace, r.in.Name}}},
	}
}

// apply takes an entry in.
func (r *run) apply(e journal.Entry) error {
	r.bytes += int64(len(e.Payload))
	return r.past.apply(e)
}

// admit says whether the run may hold one more entry of its journal. A conversation that is too large is read all the same, for its end.
func (r *run) admit(bytes int64) error {
	err := r.hold(r.bytes + bytes)
	if _, tooLarge := errors.AsType[*TooLargeError](err); tooLarge {
		return nil
	}
	return err
}

func (r *run) hold(bytes int64) error {
	if r.in.Hold == nil {
		return nil
	}
	return r.in.Hold(bytes)
}

// keep keeps the memory of a reply, which is in the journal now, until what it asks for is done next: calls need memory of their own.
func (r *run) keep(release func()) error {
	if r.in.Keep == nil {
		release()
		return nil
	}
	r.in.Keep(release)
	r.kept = true
	if last := r.past.loop.LastStep(); last != nil && len(last.Reply.ToolCalls) > 0 {
		return r.settle()
	}
	return nil
}

// settle counts the newest reply with the conversation, if its memory is kept, and gives that back.
func (r *run) settle() error {
	if !r.kept {
		return nil
	}
	r.kept = false
	err := r.hold(r.bytes)
	r.in.Keep(nil)
	return err
}

// TooLargeError is a conversation that has more bytes than one Turn may hold.
type TooLargeError struct {
	// Message says so, with a remedy.
	Message string
}

// Error returns the message.
func (e *TooLargeError) Error() string { return e.Message }

// started is what the journal says of the beginning of a run.
type started struct {
	// Run is random: what two runs write at the same time is never the same.
	Run       string `json:"run,omitempty"`
	Executor  string `json:"executor,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// parked is what the journal says of a run that ended because its Turn waits.
type parked struct {
	// Approvals is how many calls wait for a decision.
	Approvals int `json:"approvals,omitempty"`
	// Turns are the names of the Turns of sub-agents that have not ended.
	Turns []string `json:"turns,omitempty"`
	// Begun are the calls that have begun these Turns.
	Begun []loop.Begun `json:"begun,omitempty"`
}

// errCancelled is the cause of a context whose Turn was cancelled.
var errCancelled = errors.New("the turn was cancelled")

// errDeadline is the cause of a context whose Turn ran out of time.
var errDeadline = errors.New("the time of the turn is over")

// run is one run of one Turn.
type run struct {
	engine *Engine
	in     *Input
	// life of the run. Its end gives the run up; what has happened is written down all the same.
	life context.Context //nolint:containedctx // because the journal is written for as long as the run lives, whatever a step's own context says
	log  *journal.Log
	past past
	// bytes is how many the payloads of the journal have by now.
	bytes int64
	// kept is true while the memory of the newest reply is kept.
	kept bool
	// resumes is how many runs before this one have done something and did not end with a wait.
	resumes int
	// input is what messages are made of, nil before the first are, and number that of the Turn in its Session.
	input  *prepare.Input
	number int64
	// history is what the Turn refers to in the journal of its Session, nil before that is known, and conversation what it has read
	// there, nil while that is not needed.
	history      *history
	conversation *session.Conversation
	// exposure is what the Turn has of tools, where the journal does not say so yet, and pending is what it is to keep of that.
	exposure *tool.Exposure
	pending  []journal.Record
	// output is the form of the answer; nil for none.
	output *schema.Schema
	// attached are the artifacts to write with the result.
	attached []journal.Artifact
	// affects is true once the run has announced, by BeforeEffect, that it calls a tool that is not ReadOnly.
	affects bool
	// began says whether this run has written anything, and wrote whether anything but that a call is about to be made.
	began, wrote bool
	// gone is true for the end of a Turn whose object is gone: it is no run, and is not parked.
	gone bool
}

// finish brings the Turn to its end and writes that down.
func (r *run) finish() error {
	ctx, stop := r.work()
	defer stop()
	result, err := r.outcome(ctx)
	if err != nil {
		return err
	}
	return r.end(result)
}

// end writes the end of the Turn. The ends of open calls go with it: a Turn that has ended has no open call.
func (r *run) end(result *Result) error {
	recorded, version := result.recorded()
	err := r.record(append(r.past.loop.OpenEnds(r.exposed().Nonce),
		journal.Record{Kind: journal.Finalized, Payload: recorded, Version: version, Artifacts: r.attached})...)
	if err == nil {
		r.past.result.Text = result.Text
	}
	return err
}

// work is a context that ends with the run's life, with the time of the Turn, or when the Turn is cancelled.
func (r *run) work() (ctx context.Context, stop func()) {
	timed, cancelTimed := context.WithTimeoutCause(r.life, r.in.Timeout, errDeadline)
	ctx, cancel := context.WithCancelCause(timed)
	unwatch := func() bool { return true }
	if r.in.Cancel != nil {
		unwatch = context.AfterFunc(r.in.Cancel, func() { cancel(errCancelled) })
	}
	return ctx, func() {
		unwatch()
		cancel(nil)
		cancelTimed()
	}
}

// cancelled reports whether the Turn was cancelled.
func (r *run) cancelled() bool { return r.in.Cancel != nil && r.in.Cancel.Err() != nil }

// record writes to the journal, and then says what the Turn has done by now.
func (r *run) record(records ...journal.Record) error {
	if !slices.ContainsFunc(records, isEnd) {
		if err := r.settle(); err != nil {
			return err
		}
	}
	if err := r.announce(records); err != nil {
		return err
	}
	if err := r.log.Append(r.life, records...); err != nil {
		return err
	}
	r.counted()
	r.began = true
	for _, e := range records {
		r.wrote = r.wrote || e.Kind != journal.ToolIntended // which is written in vain while a sub-agent is waited for
		if goesOn(e) {
			r.tell()
		}
	}
	return nil
}

// announce calls BeforeEffect where the first call of a tool that is not ReadOnly is among the records: whoever finds this
// journal lost must know that there may have been one.
func (r *run) announce(records []journal.Record) error {
	if r.affects || r.in.BeforeEffect == nil || !slices.ContainsFunc(records, hasEffect) {
		return nil
	}
	if err := r.in.BeforeEffect(r.life); err != nil {
		return err
	}
	r.affects = true
	return nil
}

// isEnd reports whether a record ends its Turn.
func isEnd(e journal.Record) bool { return e.Kind == journal.Finalized }

// hasEffect reports whether a record is the intent to call a tool that is not ReadOnly.
func hasEffect(e journal.Record) bool {
	intent, ok := e.Payload.(loop.Intent)
	return e.Kind == journal.ToolIntended && (!ok || intent.Effect != tool.ReadOnly)
}

// goesOn says whether what has happened is news of a Turn that goes on: after an answer its end comes at once, which tells all.
func goesOn(e journal.Record) bool {
	switch payload := e.Payload.(type) {
	case loop.Step:
		return len(payload.Reply.ToolCalls) > 0
	case loop.Finish, loop.Rejection:
		return true
	}
	return false
}

func (r *run) waiting(err error, again time.Duration) {
	if r.engine.Waiting != nil {
		r.engine.Waiting(*r.in, err, again)
	}
}
