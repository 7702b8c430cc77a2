package turn

import (
	"encoding/json"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Stop is why a Turn ended.
type Stop string

// The reasons a Turn ends for.
const (
	// StopCompleted means that the model answered.
	StopCompleted Stop = "Completed"
	// StopToolEnded means that a tool that ends Turns has succeeded; its result is the answer.
	StopToolEnded Stop = "ToolEnded"
	// StopPrepared means that the Turn was to be prepared only, and is.
	StopPrepared Stop = "Prepared"
	// StopMaxSteps means that the Turn was out of steps; its answer is the best from what was known.
	StopMaxSteps Stop = "MaxSteps"
	// StopBudget means that the next request would have gone beyond the budget.
	StopBudget Stop = "Budget"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens Stop = "MaxOutputTokens"
	// StopOutputInvalid means that the answer does not fit the schema, also after it was sent back.
	StopOutputInvalid Stop = "OutputInvalid"
	// StopContentFilter means that the provider's content filter withheld the answer, or that the model refused to give one.
	StopContentFilter Stop = "ContentFilter"
	// StopContextLength means that the prompt is longer than the model's context window.
	StopContextLength Stop = "ContextLength"
	// StopModelError means no model of the chain gave a usable answer.
	StopModelError Stop = "ModelError"
	// StopPreparationError means no prompt could be made.
	StopPreparationError Stop = "PreparationError"
	// StopDeadline means that the time of the Turn was over.
	StopDeadline Stop = "Deadline"
	// StopInterrupted means that the Turn cannot go on, because of a fault within Capstan or of its journal.
	StopInterrupted Stop = "Interrupted"
	// StopCancelled means that the Turn was cancelled.
	StopCancelled Stop = "Cancelled"
)

// Result of a Turn. It marshals to JSON and back without loss.
type Result struct {
	// Stop is why the Turn ended, and Message says so to people.
	Stop    Stop   `json:"stop"`
	Message string `json:"message"`
	// Preparation is the report of the prompt that was used last, Provider and Model what it was made for, and
	// MessageCount its length. Preparation is nil if there was none.
	Preparation  *prepare.Report `json:"preparation,omitempty"`
	Provider     string          `json:"provider,omitempty"`
	Model        string          `json:"model,omitempty"`
	MessageCount int             `json:"messageCount,omitempty"`
	// Text of the answer, whole; of an answer that was cut off, what came.
	Text string `json:"text,omitempty"`
	// Data is the structured answer; empty where none was asked for or none came.
	Data json.RawMessage `json:"data,omitempty"`
	// Counts of what all runs did.
	Counts Counts `json:"counts"`
	// Calls are the newest that the model has asked for, at most MaxCalls, oldest first.
	Calls []CallRecord `json:"calls,omitempty"`
	// ToolsLeftOut is how many tools the model was not offered because there are too many.
	ToolsLeftOut int `json:"toolsLeftOut,omitempty"`
	// ToolServersMissing are the ToolServers of whose tools nothing was known when the Turn began, at most tool.MaxMissing.
	ToolServersMissing []string `json:"toolServersMissing,omitempty"`
	// SubAgents is what the Turns of sub-agents took; nil if there were none.
	SubAgents *SubAgents `json:"subAgents,omitempty"`
	// Descendants is how many Turns count against the limit of those that sub-agents create.
	Descendants int `json:"descendants,omitempty"`
	// MissingTurns is how many earlier Turns of the Session the Turn could not be shown, because their history was lost.
	MissingTurns int64 `json:"missingTurns,omitempty"`
	// Warned is true where the conversation has come near the model's context window.
	Warned bool `json:"warned,omitempty"`
	// Record of citations, usage, cost and decision.
	Record finalize.Record `json:"record"`
	// Spent is the usage of each model that was asked, in the order in which they were first asked.
	Spent []Spent `json:"spent,omitempty"`
	// Fallback is set when not the first model of the chain served.
	Fallback *Fallback `json:"fallback,omitempty"`
	// Answer is the artifact that has Text where that is longer than a status holds; nil for most. The entry of the end then has no Text.
	Answer *Artifact `json:"answer,omitempty"`
	// Session is the place of the Turn in its conversation; nil if it has none. It is not in the Turn's own journal.
	Session *Place `json:"-"`
}

// SubAgents is what the Turns of sub-agents took.
type SubAgents struct {
	Usage model.Usage `json:"usage"`
	// Cost is nil where one of them has none.
	Cost *finalize.Cost `json:"cost,omitempty"`
}

// Artifact names content that the journal keeps apart.
type Artifact struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// Place of a Turn in a conversation.
type Place struct {
	// UID and Name of the Session, and Number of the Turn in it, from 1; 0 where the Turn asked no model.
	UID, Name string
	Number    int64
	// Last is the name of the last Turn in it by now, which is another one where somebody has gone on meanwhile.
	Last string
	// Totals of the conversation by now.
	Totals session.Totals
}

// Counts of what the runs of a Turn did.
type Counts struct {
	// Steps are model replies.
	Steps int `json:"steps"`
	// ModelRequests are requests sent, also those that a restart cut off; ModelRetries are those of them that repeated one.
	ModelRequests int `json:"modelRequests"`
	ModelRetries  int `json:"modelRetries"`
	// ToolCalls that were made or were about to be; UnknownOutcomes are those of which nobody knows.
	ToolCalls       int `json:"toolCalls,omitempty"`
	UnknownOutcomes int `json:"unknownOutcomes,omitempty"`
	// ToolRepairs are calls whose arguments were repaired, ToolRetries those that were made once more after a time-out.
	ToolRepairs int `json:"toolRepairs,omitempty"`
	ToolRetries int `json:"toolRetries,omitempty"`
	// Compactions are summaries that replaced older messages, Reflections drafts that were checked.
	Compactions int `json:"compactions,omitempty"`
	Reflections int `json:"reflections,omitempty"`
	// Resumes is how often a run went on with what an earlier one had journalled, but for those that ended because the Turn waits.
	Resumes int `json:"resumes,omitempty"`
}

// Spent is the usage of one model.
type Spent struct {
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Usage    model.Usage `json:"usage"`
}

// Fallback says which model served in place of which.
type Fallback struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func stopOf(kind model.ErrorKind) Stop {
	switch kind {
	case model.ContextLength:
		return StopContextLength
	case model.ContentFiltered:
		return StopContentFilter
	case model.ReplyTooLong:
		return StopMaxOutputTokens
	case model.RateLimited, model.Overloaded, model.Timeout, model.Network, model.Malformed, model.Auth, model.InvalidRequest, model.Cancelled:
		return StopModelError
	}
	return StopModelError
}

// answered says whether a Turn that ended so has an answer.
func (s Stop) answered() bool { return s == StopCompleted || s == StopMaxSteps || s == StopToolEnded }

// finalize makes the result from what the journal holds by now.
func (r *run) finalize(stop Stop, message string) (*Result, error) {
	if err := r.collect(); err != nil {
		return nil, err
	}
	state := &r.past.loop
	counts, calls := r.ended()
	result := &Result{
		Stop: stop, Message: message, Counts: counts, Calls: calls, Spent: spent(state),
		SubAgents: subAgents(state), Warned: state.Warning != nil, ToolsLeftOut: r.exposed().LeftOut,
		ToolServersMissing: r.exposed().Missing, Descendants: state.Descendants(),
	}
	if f := r.past.input; f != nil {
		result.MissingTurns = f.toldOf().missingTurns
	}
	record := finalize.Input{
		Answered: stop.answered(), ShowCitations: r.in.ShowCitations, DecisionKey: r.in.DecisionKey,
		Called: r.called(), Spendings: r.spendings(),
	}
	if p := r.past.prepared; p != nil {
		record.Report, record.Sources = p.Report, p.Sources
		result.Preparation, result.Provider, result.Model, result.MessageCount = &p.Report, p.Provider, p.Model, r.messageCount()
	}
	if step := state.LastStep(); step != nil {
		result.Text = state.AnswerText()
		result.Fallback = fallback(state, step)
	}
	if f := r.toolAnswer(stop); f != nil {
		result.Text = f.Text
	}
	r.attached = result.attach(r.output != nil && stop.answered())
	result.Record = finalize.Make(record)
	return result, nil
}

// messageCount is how many messages the newest prompt has.
func (r *run) messageCount() int {
	n := len(r.past.prepared.Messages)
	if l := r.past.leftOut; l != nil {
		n += l.Messages
	}
	return n
}

// toolAnswer is the end of the call whose result is the text of a Turn that ends so; nil where the model has written it.
func (r *run) toolAnswer(stop Stop) *loop.Finish {
	switch stop { //nolint:exhaustive // because no other end has a tool's text
	case StopToolEnded:
		return r.past.loop.Terminal(r.output)
	case StopOutputInvalid:
		return r.past.loop.TerminalResult()
	}
	return nil
}

// maxInline is the longest text, and the largest structured answer, that a status holds whole, in bytes of JSON.
const maxInline = 32 << 10

// The names of the artifacts that an answer may be.
const (
	answerText = "answer.txt"
	answerJSON = "answer.json"
)

// attach makes the structured answer of the text, where there is one, and an artifact of either that is too large for a status, which is
// returned to be written with the result.
func (r *Result) attach(structured bool) []journal.Artifact {
	content, name := []byte(r.Text), answerText
	quoted, err := json.Marshal(r.Text)
	large := err != nil || len(quoted)-2 > maxInline
	if structured {
		if data, ok := structuredAnswer(r.Text); ok && len(data) <= maxInline {
			r.Data = data
		} else if ok {
			content, name, large = data, answerJSON, true
		}
	}
	if !large {
		return nil
	}
	a := journal.NewArtifact(content)
	r.Answer = &Artifact{Name: name, SHA256: a.SHA256, Bytes: a.Bytes}
	return []journal.Artifact{a}
}

// recorded is the result as its entry has it, and the version that its payload fits: without a text that the artifact of the answer has.
func (r *Result) recorded() (*Result, int) {
	if r.Answer == nil || r.Answer.Name != answerText {
		return r, 1
	}
	short := *r
	short.Text = ""
	return &short, 2
}

// restore puts the text of a result that an earlier run has written back. Payloads of version 1 have it themselves.
func (r *run) restore() error {
	result := r.past.result
	if result == nil || result.Text != "" || result.Answer == nil || result.Answer.Name != answerText {
		return nil
	}
	if err := r.admit(result.Answer.Bytes); err != nil {
		return err
	}
	e := journal.Entry{Seq: r.log.Len(), Kind: journal.Finalized, Artifact: result.Answer.SHA256}
	if err := journal.Fill(r.life, r.engine.Journal, r.in.UID, &e); err != nil {
		return err
	}
	r.bytes += int64(len(e.Payload))
	result.Text = string(e.Payload)
	return nil
}

// structuredAnswer is the JSON of an answer, as a result has it.
func structuredAnswer(text string) (json.RawMessage, bool) {
	data, ok := loop.Answer(text)
	if !ok {
		return nil, false
	}
	compact, err := json.Marshal(data)
	return compact, err == nil
}

// called are the tools that were called, with their roles.
func (r *run) called() []finalize.Called {
	roles := map[string]tool.Role{}
	x := r.exposed()
	for _, t := range slices.Concat(x.Packs, x.Tools, r.in.Tools) {
		roles[t.Name] = t.Role
	}
	var all []finalize.Called
	for _, i := range r.past.loop.Intents {
		all = append(all, finalize.Called{Name: i.Name, Role: roles[i.Name]})
	}
	return all
}
