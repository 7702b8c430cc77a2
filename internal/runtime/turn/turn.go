// Package turn is the engine: it runs one Turn from its input to its result. A run has three parts: prepare, loop
// and finalize. Each step is in the journal before its consequence takes place, so a run that is killed at any
// instant can be continued from its journal.
package turn

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"runtime/debug"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Engine runs Turns.
type Engine struct {
	// Journal is the journal of all Turns and Sessions.
	Journal journal.Journal
	// Now returns the time for journal entries.
	Now func() time.Time
	// ReasonOf converts a Stop into the reason that is written into the record of a Turn. If ReasonOf is nil, the
	// record contains the Stop.
	ReasonOf func(Stop) string
	// Patience is the time for which the journal's store may fail before a run stops. 0 means that the run waits
	// without limit.
	Patience time.Duration
	// Waiting is called each time a write to the journal of a Turn fails; delay is the time until the next attempt.
	// Waiting may be nil.
	Waiting func(in Input, err error, delay time.Duration)
	// Unrecorded is called with a result that the journals cannot record, before Run returns the error: the model has
	// answered, and the answer was paid for. Nothing else follows from this answer. The Turn may not have ended, and a
	// later run continues from the last recorded entry. If Unrecorded is nil, such an answer is dropped.
	Unrecorded func(*Result)
	// Finalizing is called before each step that finalizes a Turn, with the name of the step. If it returns an error or
	// panics, the step has failed, and the Turn continues without it. Finalizing may be nil.
	Finalizing func(step string) error
	// ObserveGone returns the observer of the parts of a Turn whose object is gone, so that a request that was cut off
	// is counted. If ObserveGone is nil, these parts are not observed. agent is empty if an older version began the
	// Turn.
	ObserveGone func(namespace, agent string) Observer
}

// Run runs a Turn to its end and returns its result. It continues a Turn that an earlier run has begun.
//
// ctx is the lifetime of the run. It ends when the process abandons the run; the Turn then continues in a later
// run, here or on another executor. Run returns an error if the Turn has not ended, or if the Session does not have the
// ended Turn yet:
//
//   - loop.ErrInterrupted, if the run stopped at a safe point.
//   - a *loop.Parked, if the Turn waits for approvals, for the Turns of sub-agents or for a budget.
//   - journal.ErrFenced, if another executor runs the Turn.
//   - the cause of ctx, if ctx ended first.
//   - a *PanicError, if the engine panicked.
//   - any other error, for example if the journal cannot be read.
//
// After an error, a run of a later epoch continues the Turn.
//
// The caller must not use in until Run returns.
func (e *Engine) Run(ctx context.Context, in *Input) (result *Result, err error) {
	defer recoverPanic(&result, &err)
	r, err := e.open(ctx, in)
	if err != nil {
		return nil, err
	}
	defer r.reportUnended(&err)
	if r.replayed.result == nil {
		work, stop := r.workContext(ctx)
		defer stop()
		input, result, err := r.beforeLoop(work)
		if input != nil {
			runLoop := loop.Run
			if in.Undo != nil {
				runLoop = loop.RunFixed
			}
			end, failure := runLoop(work, input)
			result, err = r.afterLoop(end, failure)
		}
		if err == nil {
			err = r.end(result)
		}
		if err = cmp.Or(r.failure, err); err != nil {
			return nil, r.reportUnrecorded(err)
		}
	}
	if result, err = r.addToSession(r.replayed.result); err != nil {
		return nil, r.reportUnrecorded(err)
	}
	return result, nil
}

// PanicError means that the engine panicked, which is a bug in Capstan. The value of the panic is not kept, because it
// may contain a part of the prompt.
type PanicError struct {
	// Stack is the stack of the panic. It contains only names and addresses.
	Stack string
}

// Error reports the panic without its stack.
func (e *PanicError) Error() string { return "the run failed because of a bug in Capstan" }

// recoverPanic turns a panic of the engine into an error, and the result into its zero value. It must be deferred.
func recoverPanic[T any](result *T, err *error) {
	if recover() != nil {
		*result, *err = *new(T), &PanicError{Stack: string(debug.Stack())}
	}
}

// open reads the journal of a Turn. It is separate from Run, whose frame is on the stack of each waiting Turn.
func (e *Engine) open(ctx context.Context, in *Input) (*run, error) {
	r := e.newRun(ctx, in)
	var err error
	if r.log, err = journal.Open(ctx, in.UID, in.Epoch, r.options()); err != nil {
		return nil, err
	}
	if err := r.reportOpened(); err != nil {
		return nil, err
	}
	if err := r.restore(); err != nil {
		return nil, err
	}
	r.resumes = r.replayed.resumes()
	r.unreported = r.log.Len() > 0 && r.parkedIn == 0
	return r, nil
}

// newRun returns a run whose journal is not read yet.
func (e *Engine) newRun(ctx context.Context, in *Input) *run {
	r := &run{
		engine: e, in: in, life: ctx, memory: memory{in: in}, spans: spans{observer: in.Observer, chain: in.Chain, preparing: e.Now()},
	}
	if in.Embeddings != nil {
		r.spans.chain = append(slices.Clip(in.Chain), in.Embeddings.Model)
	}
	return r
}

// reportOpened reports the number of journal entries. It returns an error if the run must not continue from this
// journal.
func (r *run) reportOpened() error {
	if r.in.Opened != nil {
		if err := r.in.Opened(r.life, r.log.Len(), r.replayed.result != nil); err != nil {
			return err
		}
	}
	r.updateEntries()
	return nil
}

// updateEntries stores the current number of journal entries in Input.Entries.
func (r *run) updateEntries() {
	if r.in.Entries != nil {
		r.in.Entries.Store(r.log.Len())
	}
}

// options returns the options for the Turn's journal.
func (r *run) options() journal.Options {
	return journal.Options{
		Journal: r.engine.Journal, Namespace: r.in.Namespace, Now: r.engine.Now, Apply: r.apply, Admit: r.memory.admit,
		Patience: r.engine.Patience, Waiting: r.reportWaiting,
		First: r.first,
	}
}

// first returns the record of the beginning of this run. If the previous run was cut off during a request, the record
// charges the request in the budgets.
func (r *run) first() []journal.Record {
	start := journal.Record{Kind: journal.RunStarted, Payload: r.started()}
	if r.replayed.loop.ReservationOpen() {
		start.Ledger = new(budget.Change)
	}
	return []journal.Record{start}
}

// closeReservation records the beginning of this run, alone, if the previous run was cut off during a request that is
// still reserved. If the same write also reserved the next request, a refusal of the new reservation would keep the old
// reservation. A Turn would then keep it while it waits for the reset of a budget, and Turns could block each other.
func (r *run) closeReservation() error {
	if !r.replayed.loop.ReservationOpen() {
		return nil
	}
	return r.record()
}

// apply folds an entry into the state of the run.
func (r *run) apply(e journal.Entry) error {
	r.memory.add(e)
	if e.Seq == 1 {
		r.firstEntry = e.Time
	}
	if err := r.replayed.apply(e); err != nil {
		return err
	}
	r.parkedIn = 0
	if e.Kind == journal.RunParked {
		r.parkedIn = e.Epoch
	}
	if e.Kind == journal.Prepared {
		r.memory.attached = attachedBytes(r.replayed.prompt)
	}
	r.spans.apply(e, &r.replayed, r.log != nil)
	return nil
}

// keepReply keeps the memory of a recorded reply.
func (r *run) keepReply(release func()) error {
	last := r.replayed.loop.LastStep()
	return r.memory.keepReply(release, last != nil && len(last.Reply.ToolCalls) > 0)
}

// started is the payload of the entry for the beginning of a run.
type started struct {
	// Run is random, so two runs never write the same entry at the same time.
	Run       string `json:"run,omitempty"`
	Executor  string `json:"executor,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Requester string `json:"requester,omitempty"`
	TraceID   string `json:"traceID,omitempty"`
	SpanSeed  string `json:"spanSeed,omitempty"`
	// Begun is when the run began, which may be some time before its first entry.
	Begun time.Time `json:"begun,omitzero"`
	// About is empty in journals of older versions.
	turnrecord.About
	// Session is the Session of the Turn, for a Turn that ends before its input is recorded. It is nil if there is
	// none, and in journals of older versions.
	Session *startedSession `json:"session,omitempty"`
	// EndOnly is true if the run only writes the end of the Turn, because the Turn's object is gone or has ended. Such
	// a run does not count.
	EndOnly bool `json:"endOnly,omitempty"`
}

// startedSession names a Session.
type startedSession struct {
	UID  string `json:"uid,omitempty"`
	Name string `json:"name,omitempty"`
}

// started returns the payload of the entry for the beginning of this run.
func (r *run) started() started {
	s := started{
		rand.Text(), r.in.Executor, r.in.Namespace, r.in.Name, r.in.Requester, r.in.TraceID, r.in.SpanSeed, r.spans.preparing,
		r.in.About, nil, r.gone,
	}
	if session := r.in.Session; session != nil {
		s.Session = &startedSession{session.UID, session.Name}
	}
	return s
}

// parked is the payload of the entry for a run that ended because its Turn must wait.
type parked struct {
	// Approvals is the number of calls that require approval.
	Approvals int `json:"approvals,omitempty"`
	// Turns are the names of the sub-agents' Turns that have not ended.
	Turns []string `json:"turns,omitempty"`
	// SubAgentCalls are the calls of these Turns about which more than the name of the Turn is known.
	SubAgentCalls []loop.SubAgentCall `json:"begun,omitempty"`
	// Budget is the name of the budget that refuses the next request.
	Budget string `json:"budget,omitempty"`
}

// errCancelled is the cause of a context that ended because the Turn was cancelled.
var errCancelled = errors.New("the turn was cancelled")

// errDeadline is the cause of a context that ended because the Turn reached its time limit.
var errDeadline = errors.New("the time of the turn is over")

// run is one run of one Turn.
type run struct {
	engine *Engine
	in     *Input
	// life is the lifetime of the run. When it ends, the run is abandoned, but its work until then is still
	// recorded.
	//nolint:containedctx // because the journal is written even if the context of a step has ended
	life     context.Context
	log      *journal.Log
	replayed replayed
	memory   memory
	// spans reports the spans of the Turn.
	spans spans
	// resumes is the number of earlier runs that did not end with a wait.
	resumes int
	// input is the input for the messages, or nil while the run does not need it. number is the number of the Turn in
	// its Session, as expected when the input was made. place is its place in the history of the Session, or 0 while
	// the run has not added the Turn.
	input         *prepare.Input
	number, place int64
	// query is the newest text whose vector was requested, or nil. embeddedBefore is true if an earlier run has
	// requested vectors.
	query          *query
	embeddedBefore bool
	// history is the Turn's reference to the journal of its Session, or nil before it is known. conversation is the
	// history that was read from there, or nil while it is not needed.
	history      *history
	conversation *session.Conversation
	// marks has the marks that this run has read from the journal of the Turn to undo. It is nil before the first read,
	// and in a Turn that does not undo another Turn.
	marks *UndoReader
	// exposure has the tools of the Turn until the journal has them. pending are records that the next write to the
	// journal includes.
	exposure *tool.Exposure
	pending  []journal.Record
	// output is the schema of the answer, or nil if there is none.
	output *schema.Schema
	// contents are the contents of the attachments until the journal has them.
	contents []journal.Artifact
	// attached are the artifacts that are written together with the result.
	attached []journal.Artifact
	// announced is true once the run has called BeforeEffect.
	announced bool
	// steps is the number of steps before the loop began in this run.
	steps int
	// began is true once this run has written an entry. wrote is true once it has written an entry other than an
	// intent or a park.
	began, wrote bool
	// unreported is true if the journal had entries when this run began, and the last one was not a park. So the run
	// before may have been cut off before it reported its progress.
	unreported bool
	// parkedIn is the epoch of the run that parked the Turn, if the last entry of the journal is this park, or 0.
	parkedIn int64
	// gone is true if the Turn's object is gone or has ended, and this run only ends its journal. Such a run does not
	// count as a run and records no park.
	gone bool
	// objectEnd is the end of the Turn according to its object. It is nil if this run decides how the Turn ends.
	objectEnd *ObjectEnd
	// failure is the error because of which the journal lacks the answer of the Turn: see append. It is nil if the
	// journal works.
	failure error
	// unrecorded are the matches of redaction rules that a failed write contained.
	unrecorded map[string]int64
	// inInput are the matches of redaction rules in the input for the messages, until the journal has this input.
	inInput map[string]int64
	// firstEntry is the time of the first entry of the journal, or zero while it has none.
	firstEntry time.Time
	// finalizing is the time at which this run began to make the result, or zero if it has not begun.
	finalizing time.Time
}

// end records the end of the Turn. It also ends all open calls, because a Turn that has ended has no open call.
func (r *run) end(result *Result) error {
	steps := r.engine.steps()
	rec := r.bareRecord(result)
	steps.Do("record", func() error { rec = r.turnRecord(result); return nil })
	var tasks []task.Task
	steps.Do("tasks", func() error { tasks = r.followUps(result); return nil })
	result.Record.Failures = append(result.Record.Failures, steps.Failures...)
	return r.endWith(result, rec, tasks)
}

// endWith writes the records in before to the journal, and then the end of the Turn with its tasks and its record,
// which may be nil.
func (r *run) endWith(result *Result, rec *turnrecord.Record, tasks []task.Task, before ...journal.Record) error {
	recorded, version := result.recorded()
	err := r.record(append(append(before, r.replayed.loop.ResultsOfOpenCalls(r.exposed().Nonce)...),
		journal.Record{
			Kind: journal.Finalized, Payload: finalized{recorded, r.finalizing}, Version: version, Artifacts: r.attached,
			Ledger: r.replayed.loop.CloseReservations(), TurnRecord: rec, Tasks: tasks,
		})...)
	if err == nil {
		r.replayed.result.Text = result.Text
	}
	return err
}

// workContext returns a context that ends with the run's lifetime, at the Turn's deadline, or when the Turn is
// cancelled.
func (r *run) workContext(life context.Context) (ctx context.Context, stop func()) {
	timed, cancelTimed := context.WithTimeoutCause(life, r.in.Timeout, errDeadline)
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

// record writes to the journal, and then reports the progress of the Turn.
func (r *run) record(records ...journal.Record) error {
	if !slices.ContainsFunc(records, isEnd) {
		if err := r.memory.countReply(); err != nil {
			return err
		}
	}
	if err := r.announce(records); err != nil {
		return err
	}
	all, redacted := r.withRedactions(records)
	if err := r.append(records, all); err != nil {
		r.unrecorded = redacted
		return err
	}
	r.updateEntries()
	r.began = true
	for _, e := range records {
		// An intent alone does not count: while a sub-agent's Turn is pending, each run writes one without effect.
		r.wrote = r.wrote || e.Kind != journal.ToolIntended && e.Kind != journal.RunParked
		if isProgress(e) {
			r.reportProgress()
		}
		if w, ok := e.Payload.(loop.Warning); ok && r.in.Warned != nil {
			r.in.Warned(w)
		}
	}
	return nil
}

// announce calls BeforeEffect if the records contain the first call of a tool that is not ReadOnly. If this journal is
// lost later, Capstan must know that such a call may have been made.
func (r *run) announce(records []journal.Record) error {
	if r.announced || r.in.BeforeEffect == nil || !slices.ContainsFunc(records, hasEffect) {
		return nil
	}
	if err := r.in.BeforeEffect(r.life); err != nil {
		return err
	}
	r.announced = true
	return nil
}

// isEnd reports whether a record ends its Turn.
func isEnd(e journal.Record) bool { return e.Kind == journal.Finalized }

// hasEffect reports whether a record is the intent to call a tool that is not ReadOnly.
func hasEffect(e journal.Record) bool {
	intent, ok := e.Payload.(loop.Intent)
	return e.Kind == journal.ToolIntended && (!ok || intent.Effect != tool.ReadOnly)
}

// isProgress reports whether a record is progress of a Turn that continues. After an answer, the Turn ends immediately
// and its result contains everything.
func isProgress(e journal.Record) bool {
	switch payload := e.Payload.(type) {
	case loop.Step:
		return len(payload.Reply.ToolCalls) > 0
	case loop.CallResult, loop.Rejection:
		return true
	}
	return false
}

// reportWaiting reports that a write to the journal has failed and is repeated after a delay.
func (r *run) reportWaiting(err error, delay time.Duration) {
	if r.engine.Waiting != nil {
		r.engine.Waiting(*r.in, err, delay)
	}
}
