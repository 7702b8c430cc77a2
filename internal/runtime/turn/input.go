package turn

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Input is the input of a run.
type Input struct {
	// Config is the configuration of the loop. Chain has at least one model, unless the Turn was cancelled or its
	// time is over: such a Turn asks no model.
	loop.Config
	// UID is the UID of the Turn and the key of its journal.
	UID string
	// Epoch is the epoch of the binding that this run belongs to. The first epoch is 1.
	Epoch int64
	// Executor is the executor of this run, for people who read the journal. Namespace and Name are the namespace and
	// the name of the Turn.
	Executor, Namespace, Name string
	// Requester is the name of the user who asked for the Turn. It is empty if it is not known.
	Requester string
	// About is the part of the Turn's record that is known before the Turn begins. It is kept in the journal, so that
	// the record can be written even if the Turn's object is gone.
	About turnrecord.About
	// Timeout is the time that the Turn has left; it may be used up already. A run that reaches it ends the Turn
	// with StopDeadline.
	Timeout time.Duration
	// Limit is the whole wall-clock time that the Turn may use. Only the message of StopDeadline uses it.
	Limit time.Duration
	// TimeOver replaces the message of StopDeadline if the Turn's time ends for a reason other than Limit. It is empty
	// if Limit is the reason.
	TimeOver string
	// Preparation returns the input for the messages; the run fills in Provider and Model. It is called only if the
	// journal does not have this input yet. A later run reads the input from the journal, because its sources may be
	// gone by then. An *invalid.Error ends the Turn; any other error ends the run.
	Preparation func(ctx context.Context) (prepare.Input, error)
	// Judges returns the judges of the profile that Preparation has read, which evaluate the answer. It is called after
	// Preparation, and its result is recorded. If Judges is nil, the answer is not evaluated.
	Judges func() []judge.Judge
	// MayEvaluate reports whether the task to evaluate the answer may be stored with the end of the Turn. It must not
	// block. If MayEvaluate is nil, the task is always stored. No task is stored if there are no judges.
	MayEvaluate func() bool
	// Recall returns the learned memories that match a message, at most as many as fit into the prompt. vector is the
	// vector of the message; if it is empty, Recall compares only words. Recall is called after Preparation, and again
	// if the message gets a vector. The result is recorded. If Recall fails, or takes longer than RecallTimeout, the
	// Turn continues without learned memories. If Recall is nil, the Turn has no learned memories.
	Recall func(ctx context.Context, message string, vector ranking.Vector) (Recalled, error)
	// NotRecalled is called if Recall has failed. It may be nil.
	NotRecalled func(error)
	// Embeddings is the model that turns texts into vectors, for Recall and for the selection of tools. If it is nil,
	// both compare only words.
	Embeddings *Embeddings
	// NotEmbedded is called if a request for vectors has failed. It may be nil.
	NotEmbedded func(*model.Error)
	// MayLearn reports whether the task to learn memories from the Turn may be stored with its end. It must not block.
	// If MayLearn is nil, nothing is learned.
	MayLearn func() bool
	// Attach returns the attachments of the Turn's message with their contents. It is called at most once in a run,
	// after Preparation, and its contents are recorded. An *invalid.Error ends the Turn; any other error ends the run.
	// If Attach is nil, the Turn has no attachments. AttachBytes is the maximum total size of the contents.
	Attach      func(ctx context.Context) ([]attachment.Content, error)
	AttachBytes int64
	// Tools are always offered to the model, in addition to the selected ones. They must be the same in each run of
	// the Turn.
	Tools []tool.Tool
	// Toolbox has the tools of the Agent. It is nil if the Agent has no tools.
	Toolbox Toolbox
	// Selection configures how the run selects among the tools of Toolbox. If its Query is empty, the message of
	// the Turn is the query.
	Selection tool.Selection
	// TopK is the number of results that a context pack is asked for.
	TopK int
	// Child returns the usage of the ended Turn that a call of a sub-agent has created, or a *tool.Pending error while
	// that Turn has not ended. When the Turn of this run ends, Child is called for each call of a sub-agent that has no
	// result. uid is the UID of the sub-agent's Turn, or empty if it is not known. If Child is nil, the Turn ends
	// without this check.
	Child func(ctx context.Context, call loop.Intent, uid string) (tool.Result, error)
	// Output is the JSON Schema of the answer. It is empty if the answer is plain text.
	Output json.RawMessage
	// Number is the number of a Turn without a Session, for a replay of a Turn that had one. 0 means 1.
	Number int64
	// ReflectEvery makes the model check its draft in each Turn whose number in the Session is a multiple of it. 0
	// means never.
	ReflectEvery int
	// Progress receives the progress of the Turn after each call, after each step that asks for calls or has a rejected
	// answer, and when a run ends before the Turn has ended, if this run or the one before it may have made progress
	// that was not reported. It must not block. If Progress is nil, progress is not reported.
	Progress func(Progress)
	// Warned is called once the journal has the warning that the conversation has come close to the context window of
	// its model. It is called at most once in the life of a Turn, and must not block. Warned may be nil.
	Warned func(loop.Warning)
	// Opened is called after the journal was read and before the run does anything else. entries is the number of
	// entries in the journal, and ended reports whether the Turn has ended. An error ends the run. If Opened is
	// nil, any journal is accepted.
	Opened func(ctx context.Context, entries int64, ended bool) error
	// Entries is set to the number of entries that the journal is known to have. It may be nil.
	Entries *atomic.Int64
	// Hold reserves memory for the Turn's conversation; bytes is its approximate size, with the history of its Session.
	// It is called while the journal is read, before the prompt is made and after it is recorded, after a long reply
	// that asks for calls, before calls and after each result, and before each request. It must not block. An error
	// ends the run at a safe point. A *TooLargeError ends the Turn, but it is ignored while the journal is read. If
	// Hold is nil, there is no limit.
	Hold func(bytes int64) error
	// ReserveRead waits until it has the memory to read a stored output of this size, and returns the function that
	// releases that memory. An error ends the call that reads the output. If ReserveRead is nil, there is no limit.
	ReserveRead func(ctx context.Context, bytes int64) (release func(), err error)
	// Keep takes over the memory of a long reply when the reply is in the journal. It stores release, which frees that
	// memory, and calls the release function that it has stored before. Keep is called with nil once Hold has counted
	// the reply. The memory of an answer is kept beyond the end of the run, because the result contains its text. If
	// Keep is nil, the memory is released as soon as the reply is in the journal.
	Keep func(release func())
	// BeforeEffect is called before this run records its first call of a tool that is not ReadOnly. An error ends
	// the run, and the call is not made. BeforeEffect may be nil.
	BeforeEffect func(ctx context.Context) error
	// Session is the Session of the Turn, or nil if the Turn has none.
	Session *Session
	// Undo is set for a Turn that undoes calls of another Turn. It is nil for any other Turn.
	Undo *Undo
	// HasEnded reports whether a Turn of the same namespace has ended or does not exist any more. It is called for
	// Turns that have begun to undo the same calls. If HasEnded is nil, the journals of these Turns decide.
	HasEnded func(ctx context.Context, name, uid string) (bool, error)
	// PrepareOnly stops the run when the messages are ready.
	PrepareOnly bool
	// ShowCitations lists the sources of facts in the result.
	ShowCitations bool
	// AppendCitations also adds the sources to the end of the text. It has no effect on a structured answer.
	AppendCitations bool
	// DecisionKey is copied to the decision record.
	DecisionKey string
	// Cancel ends when the Turn is cancelled. The Turn then ends immediately, with a result of its work up to this
	// point. If Cancel is nil, the Turn is never cancelled. It must be a context of the standard library: waiting for
	// any other context needs a goroutine.
	Cancel context.Context //nolint:containedctx // because it is the signal that the Turn was cancelled, and not the context of a call
	// Redactions returns, for each rule, how many texts Redact and the sources of the input have removed since the last
	// call of Redactions. The run records these numbers. If Redactions is nil, nothing is counted.
	Redactions func() map[string]int64
	// Observer receives the spans of the Turn. If Observer is nil, nothing is reported.
	Observer Observer
	// TraceID is the ID of the trace that the Turn belongs to, for people who read the journal. It may be empty.
	TraceID string
	// SpanSeed is the text that the IDs of the spans follow from, if that is not the UID of the Turn. The first run
	// records it, so that later runs find the same IDs. It may be empty.
	SpanSeed string
	// HoldAnswer is called once the model's answer is in the journal. If it returns true, the run stops there, for
	// example because the Turn was suspended while the model worked. If it returns false or HoldAnswer is nil, the
	// run ends the Turn even if it was interrupted.
	HoldAnswer func() bool
}

// Toolbox provides the tools of an Agent.
type Toolbox interface {
	// Offers returns the tools that the Agent's tool entries offer now, in the order of these entries. It is not
	// called if the journal already has the tools of the Turn.
	Offers(ctx context.Context) ([]tool.Offer, error)
	// Effect returns the current effect of a tool that was offered to an earlier run. The effect is Destructive if
	// it is no longer declared, or if the tool now belongs to another ToolServer. Effect does not connect to a
	// server. It returns an error if the declaration could not be read for the moment, or if ctx ends.
	Effect(ctx context.Context, t tool.Tool) (tool.Effect, error)
	// Caller returns the Caller of a tool that was offered to this or an earlier run. If the tool requires
	// approval, its Caller may implement tool.Checker.
	Caller(t tool.Tool) tool.Caller
}

// Progress is the progress of a Turn up to now.
type Progress struct {
	Counts Counts
	// Calls are the newest calls, including calls of context packs, at most MaxCalls, oldest first.
	Calls []CallRecord
	// Usage and Cost are the totals over all models. Cost is nil if a used model has no price, or if the prices are in
	// several currencies.
	Usage model.Usage
	Cost  *finalize.Cost
	// KnownCost is the known part of the cost if Cost is nil, summed over all currencies.
	KnownCost decimal.Decimal
	// SubAgents is the usage of those sub-agents whose answers the Turn has received. It is nil if there were none.
	SubAgents *SubAgents
}

// MaxCalls is the maximum number of calls in a result.
const MaxCalls = 50

// CallRecord describes a call of a tool and its outcome.
type CallRecord struct {
	CallID string `json:"callID"`
	Name   string `json:"name"`
	// Step is the step of the call, from 1. It is 0 for a call that was made before the model was asked.
	Step int `json:"step"`
	// Outcome is empty while the call has not ended.
	Outcome    loop.Outcome `json:"outcome,omitempty"`
	DurationMS int64        `json:"durationMilliseconds,omitempty"`
	// Bytes is the size of the whole output. Artifact is the name of the artifact that has the whole output, if the
	// model received only a part.
	Bytes    int64  `json:"bytes,omitempty"`
	Artifact string `json:"artifact,omitempty"`
	// Turn is the name of the sub-agent's Turn.
	Turn string `json:"turn,omitempty"`
	// DecidedBy is the person who decided about the call, if it required approval.
	DecidedBy string `json:"decidedBy,omitempty"`
}

// Session is the Session that a Turn belongs to.
type Session struct {
	// UID and Name identify the Session. The UID is the key of the journal with its history.
	UID, Name string
	// Known are the totals that were recorded outside of the journal, or zero if there are none. A journal with
	// fewer Turns has lost some.
	Known session.Totals
	// OnLoss is called before the prompt is made if the journal has fewer Turns than Known. missing is the number
	// of earlier Turns whose history is lost. An error ends the run. If OnLoss is nil, the Turn continues.
	OnLoss func(ctx context.Context, missing int64) error
}
