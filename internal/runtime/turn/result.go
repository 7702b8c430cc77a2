package turn

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Stop is the reason why a Turn ended.
type Stop string

// The reasons why a Turn ends.
const (
	// StopCompleted means that the model answered.
	StopCompleted Stop = "Completed"
	// StopToolEnded means that a tool that ends Turns has succeeded. Its result is the answer.
	StopToolEnded Stop = "ToolEnded"
	// StopPrepared means that the prompt was prepared, and that the Turn requested nothing else.
	StopPrepared Stop = "Prepared"
	// StopUndone means that all calls of the Turn to undo that may have changed something are undone.
	StopUndone Stop = "Undone"
	// StopUndoIncomplete means that some calls of the Turn to undo that may have changed something are not undone. The
	// result has the reasons.
	StopUndoIncomplete Stop = "UndoIncomplete"
	// StopMaxSteps means that the Turn used all its steps, and that the model then answered with what it knew.
	StopMaxSteps Stop = "MaxSteps"
	// StopBudget means that the limits of the Turn, its Session or a Budget do not allow the next request or call, or
	// that the conversation needs more memory than one Turn may have.
	StopBudget Stop = "Budget"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens Stop = "MaxOutputTokens"
	// StopOutputInvalid means that the answer does not fit the schema, even after the model was asked to correct
	// it.
	StopOutputInvalid Stop = "OutputInvalid"
	// StopOutputPolicy means that the answer violates an output policy of the profile. The result has no text.
	StopOutputPolicy Stop = "OutputPolicy"
	// StopContentFilter means that the provider's content filter withheld the answer, or that the model refused to
	// give one.
	StopContentFilter Stop = "ContentFilter"
	// StopContextLength means that the prompt is longer than the model's context window.
	StopContextLength Stop = "ContextLength"
	// StopModelError means that no model of the chain gave a usable answer.
	StopModelError Stop = "ModelError"
	// StopPreparationError means that no prompt could be made.
	StopPreparationError Stop = "PreparationError"
	// StopDeadline means that the Turn reached its time limit.
	StopDeadline Stop = "Deadline"
	// StopInterrupted means that the Turn cannot continue because of a fault in Capstan or in its journal.
	StopInterrupted Stop = "Interrupted"
	// StopCancelled means that the Turn was cancelled.
	StopCancelled Stop = "Cancelled"
)

// Result is the result of a Turn. All fields except Session survive a round trip through JSON.
type Result struct {
	// Stop is the reason why the Turn ended. Message explains it to people.
	Stop    Stop   `json:"stop"`
	Message string `json:"message"`
	// Preparation is the report of the newest prompt, or nil if there was none. Provider and Model name the model for
	// which this prompt was made, and MessageCount is the number of its messages.
	Preparation  *prepare.Report `json:"preparation,omitempty"`
	Provider     string          `json:"provider,omitempty"`
	Model        string          `json:"model,omitempty"`
	MessageCount int             `json:"messageCount,omitempty"`
	// Text is the whole answer. If the answer was cut off, Text is the part that was received.
	Text string `json:"text,omitempty"`
	// SourcesBytes is the length of the list of sources at the end of Text, in bytes, if the Turn appends it.
	SourcesBytes int `json:"sourcesBytes,omitempty"`
	// Withheld is true if Text was removed, because it violates an output policy or could not be checked.
	Withheld bool `json:"withheld,omitempty"`
	// Violations are the output policies that the newest answer violates, or that could not be checked.
	Violations []PolicyViolation `json:"violations,omitempty"`
	// Data is the structured answer. It is empty if there is none, or if it is too long for a status.
	Data json.RawMessage `json:"data,omitempty"`
	// Redactions are the matches of redaction rules, at most MaxRedactions, in the order of the rules.
	Redactions []Redaction `json:"redactions,omitempty"`
	// Counts are the totals over all runs.
	Counts Counts `json:"counts"`
	// Calls are the newest calls, including calls of context packs, at most MaxCalls, oldest first.
	Calls []CallRecord `json:"calls,omitempty"`
	// ToolsLeftOut is the number of tools that were not offered to the model because there are too many.
	ToolsLeftOut int `json:"toolsLeftOut,omitempty"`
	// ToolServersMissing are the ToolServers whose tools were unknown when the Turn began, at most tool.MaxMissing.
	ToolServersMissing []string `json:"toolServersMissing,omitempty"`
	// SubAgents is the usage of the sub-agents' Turns, or nil if there were none.
	SubAgents *SubAgents `json:"subAgents,omitempty"`
	// Descendants is the number of Turns that count against limits.maxDescendants.
	Descendants int `json:"descendants,omitempty"`
	// MissingTurns is the number of earlier Turns of the Session whose messages this Turn did not receive, because the
	// history lost them.
	MissingTurns int64 `json:"missingTurns,omitempty"`
	// Warned is true if the conversation has come close to the model's context window.
	Warned bool `json:"warned,omitempty"`
	// Record contains the citations, the usage, the cost and the decision record.
	Record finalize.Record `json:"record"`
	// Spent is the usage of each model that was asked, in the order in which they were first asked.
	Spent []Spent `json:"spent,omitempty"`
	// Fallback is set if the model that answered is not the model that was tried first.
	Fallback *Fallback `json:"fallback,omitempty"`
	// Answer is the artifact with the text or the structured answer if either is too long for a status. Otherwise it is
	// nil. If the artifact has the text, the journal entry for the end of the Turn does not.
	Answer *Artifact `json:"answer,omitempty"`
	// Session is the position of the Turn in its Session, or nil if it has none. It is not part of the Turn's own
	// journal.
	Session *SessionPosition `json:"-"`
}

// PolicyViolation is an output policy that the newest answer violates. It contains no part of the answer.
type PolicyViolation struct {
	Policy      string              `json:"policy"`
	OnViolation outputpolicy.Action `json:"onViolation"`
	// Unchecked is true if it is not known whether the answer violates the policy.
	Unchecked bool `json:"unchecked,omitempty"`
	// Rule is the rule of the policy, as its author wrote it.
	Rule string `json:"rule,omitempty"`
}

// SubAgents is the usage of the sub-agents' Turns.
type SubAgents struct {
	Usage model.Usage `json:"usage"`
	// Cost is nil if the cost of one of these Turns is not known.
	Cost *finalize.Cost `json:"cost,omitempty"`
	// KnownCost is the known part of the cost if Cost is nil, summed over all currencies. Journals of older versions do
	// not have it.
	KnownCost decimal.Decimal `json:"knownCost,omitzero"`
}

// Artifact refers to content that the journal keeps outside its entries.
type Artifact struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// SessionPosition is the position of a Turn in its Session.
type SessionPosition struct {
	// UID and Name identify the Session. Number is the number of the Turn in the Session, from 1, or 0 if the Turn
	// asked no model.
	UID, Name string
	Number    int64
	// Last is the name of the newest Turn in the Session. It differs from this Turn if another Turn was added later.
	Last string
	// Totals are the current totals of the Session.
	Totals session.Totals
}

// Counts are the totals over all runs of a Turn.
type Counts struct {
	// Steps is the number of replies of models that are steps. Summaries, checks and the extra reply after the last
	// step do not count.
	Steps int `json:"steps"`
	// ModelRequests is the number of requests that were sent, including those that a restart cut off. ModelRetries
	// is the number of requests among them that repeated an earlier one.
	ModelRequests int `json:"modelRequests"`
	ModelRetries  int `json:"modelRetries"`
	// ToolCalls is the number of calls whose intent is in the journal, whether or not the call was then made.
	// UnknownOutcomes is the number of calls whose outcome is unknown.
	ToolCalls       int `json:"toolCalls,omitempty"`
	UnknownOutcomes int `json:"unknownOutcomes,omitempty"`
	// ToolRepairs is the number of calls whose arguments were repaired. ToolRetries is the number of calls that
	// were repeated after a time-out.
	ToolRepairs int `json:"toolRepairs,omitempty"`
	ToolRetries int `json:"toolRetries,omitempty"`
	// Compactions is the number of summaries that replaced older messages. Reflections is the number of drafts that
	// were checked.
	Compactions int `json:"compactions,omitempty"`
	Reflections int `json:"reflections,omitempty"`
	// Resumes is the number of runs that continued an interrupted run. A run after a wait does not count.
	Resumes int `json:"resumes,omitempty"`
}

// Spent is the usage of one model.
type Spent struct {
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Usage    model.Usage `json:"usage"`
	// Price is the source of the model's prices. It is empty if the model used nothing, and in journals of older
	// versions.
	Price PriceSource `json:"price,omitempty"`
	// PriceDate is the date of the prices as YYYY-MM-DD if they are list prices. Otherwise it is empty.
	PriceDate string `json:"priceDate,omitempty"`
}

// PriceSource is the source of the prices of a model.
type PriceSource string

// The sources of prices.
const (
	// PriceDeclared means that the ModelProvider declares the prices.
	PriceDeclared PriceSource = "ModelProvider"
	// PriceListed means that the prices are from the table of list prices.
	PriceListed PriceSource = "ListPrice"
	// PriceUnknown means that a request has no price, so the cost is unknown.
	PriceUnknown PriceSource = "Unknown"
)

// Fallback names the model that was tried first, even if no request could be sent to it, and the model that answered
// instead, as PROVIDER/MODEL.
type Fallback struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Reason is the kind of From's last failure. It is empty if From did not fail, because the Agent's chain has
	// changed, and in journals of older versions.
	Reason model.ErrorKind `json:"reason,omitempty"`
}

// String describes the fallback in one line.
func (f *Fallback) String() string {
	line := f.To + " answered in place of " + f.From
	if f.Reason != "" {
		line += fmt.Sprintf(" (%s)", f.Reason)
	}
	return line
}

func stopOf(kind model.ErrorKind) Stop {
	switch kind {
	case model.ContextLength:
		return StopContextLength
	case model.ContentFiltered:
		return StopContentFilter
	case model.ReplyTooLong:
		return StopMaxOutputTokens
	case model.OverBudget:
		return StopBudget
	case model.RateLimited, model.Overloaded, model.Timeout, model.Network, model.Malformed, model.Auth, model.QuotaExceeded,
		model.InvalidRequest, model.Unusable, model.Cancelled:
		return StopModelError
	}
	return StopModelError
}

// answered reports whether a Turn with this stop reason has an answer.
func (s Stop) answered() bool { return s == StopCompleted || s == StopMaxSteps || s == StopToolEnded }

// finalize makes the result from the current state of the journal.
func (r *run) finalize(stop Stop, message string) (*Result, error) {
	if r.in.Observer != nil { // only traces need the time
		r.finalizing = r.engine.Now()
	}
	if err := r.collectSubAgents(); err != nil {
		return nil, err
	}
	state := &r.replayed.loop
	counts, calls := r.finalCounts()
	result := &Result{
		Stop: stop, Message: message, Counts: counts, Calls: calls, Spent: spentOf(r.requests),
		SubAgents: subAgents(state), Warned: state.Warning != nil, ToolsLeftOut: r.exposed().LeftOut,
		ToolServersMissing: r.exposed().Missing, Descendants: state.Descendants(),
	}
	if f := r.replayed.input; f != nil {
		result.MissingTurns = f.sessionInfo().missingTurns
	}
	if p := r.replayed.prompt; p != nil {
		result.Preparation, result.MessageCount = r.replayed.preparation(), r.messageCount()
		result.Provider, result.Model = p.Provider, p.Model
	}
	if step := state.LastStep(); step != nil {
		result.Text = state.AnswerText()
		result.Fallback = fallback(state, step)
	}
	if f := r.toolAnswer(stop); f != nil {
		result.Text = f.Text
	}
	r.fill(result)
	return result, nil
}

// fill completes a result that has its text. If a step of the finalization fails, such as the citations, the Turn does
// not fail: see finalize.Steps.
func (r *run) fill(result *Result) {
	steps, record, answered := r.engine.steps(), &result.Record, result.Stop.answered()
	var sources outputpolicy.Citations
	steps.Do("citations", func() error {
		if sources = r.citations(); answered && r.in.ShowCitations {
			record.Citations, record.WebCitations = sources.Local, sources.Web
		}
		return nil
	})
	if !steps.Do("policies", func() error { r.withhold(result, sources); return nil }) && outputpolicy.AnyEnforced(r.policies()) {
		result.Text, result.Withheld = "", result.Withheld || result.Text != "" // the policies were not checked
	}
	steps.Do("undo", func() error { r.reportUndo(result); return nil })
	steps.Do("sources", func() error {
		if r.in.AppendCitations && answered && r.output == nil {
			result.appendSources(sources)
		}
		return nil
	})
	if !steps.Do("artifacts", func() error { r.attached = result.attach(r.output != nil && answered); return nil }) {
		r.attached, result.Answer, result.Data = nil, nil, nil
	}
	steps.Do("redactions", func() error { result.Redactions = r.allRedactions(); return nil })
	in := &finalize.Input{Answered: answered, DecisionKey: r.in.DecisionKey}
	steps.Do("tools", func() error { in.Called = r.called(); return nil })
	steps.Do("requests", func() error { in.Spendings = r.spendings(); return nil })
	if p := result.Preparation; p != nil {
		in.Report = *p
	}
	record.Complete(steps, in)
	record.Failures = steps.Failures
}

// steps returns the runner for the steps of the finalization.
func (e *Engine) steps() *finalize.Steps { return &finalize.Steps{Before: e.Finalizing} }

// appendSources appends the list of sources to the text of an answer.
func (r *Result) appendSources(sources outputpolicy.Citations) {
	list := citation.List(sources.Local, sources.Web)
	if r.Text == "" || list == "" {
		return
	}
	list = "\n\n" + list
	r.Text, r.SourcesBytes = strings.TrimRight(r.Text, "\n")+list, len(list)
}

// WithoutSources returns the text of the answer without the list of sources. Sessions keep this text, because a model
// that sees such lists writes them itself. Judges receive it, too.
func (r *Result) WithoutSources() string { return r.Text[:max(0, len(r.Text)-r.SourcesBytes)] }

// Structured returns the structured answer, even if it is in an artifact because it is long. It is empty if there is
// none.
func (r *Result) Structured() json.RawMessage {
	if r.Answer == nil || r.Answer.Name != answerJSON {
		return r.Data
	}
	data, _ := structuredAnswer(r.Text)
	return data
}

// messageCount returns the number of messages in the newest prompt.
func (r *run) messageCount() int {
	n := len(r.replayed.prompt.Messages)
	if l := r.replayed.leftOut; l != nil {
		n += l.Messages
	}
	return n
}

// toolAnswer returns the result of the call whose text is the answer of the Turn, or nil if the model wrote the answer.
func (r *run) toolAnswer(stop Stop) *loop.CallResult {
	switch stop { //nolint:exhaustive // because only these ends have a tool's text
	case StopToolEnded:
		return r.replayed.loop.Terminal(r.life, r.output)
	case StopOutputInvalid:
		return r.replayed.loop.TerminalResult()
	}
	return nil
}

// maxInline is the maximum size in a status, in bytes of JSON, for a text and for a structured answer.
const maxInline = 32 << 10

// The names of the artifacts for long answers.
const (
	answerText = "answer.txt"
	answerJSON = "answer.json"
)

// attach parses the structured answer from the text, if structured is true. If the text or the structured answer is
// too large for a status, attach returns an artifact that must be written with the result.
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

// The versions of the payload of a Finalized entry.
const (
	// textInside means that the entry has the text of the answer.
	textInside = 1
	// textApart means that only the artifact has the text of the answer.
	textApart = 2
)

// hasTextApart reports whether the artifact Answer has the text of the answer, and not the structured answer.
func (r *Result) hasTextApart() bool { return r.Answer != nil && r.Answer.Name == answerText }

// finalized is the payload of the entry for the end of a Turn.
type finalized struct {
	*Result
	// Begun is the time at which the run began to make the result. It is zero in journals of older versions.
	Begun time.Time `json:"begun,omitzero"`
}

// recorded returns the result for its journal entry, and the version of the payload. If an artifact has the text of
// the answer, the entry does not repeat it.
func (r *Result) recorded() (*Result, int) {
	if !r.hasTextApart() {
		return r, textInside
	}
	short := *r
	short.Text = ""
	return &short, textApart
}

// restore reads the text of a recorded result from its artifact, unless the entry contains the text.
func (r *run) restore() error {
	result := r.replayed.result
	if result == nil || result.Text != "" || !result.hasTextApart() {
		return nil
	}
	if err := r.memory.admit(result.Answer.Bytes); err != nil {
		return err
	}
	e := journal.Entry{Seq: r.log.Len(), Kind: journal.Finalized, Artifact: result.Answer.SHA256}
	if err := journal.LoadPayload(r.life, r.engine.Journal, r.in.UID, &e); err != nil {
		return err
	}
	r.memory.add(e)
	result.Text = string(e.Payload)
	return nil
}

// structuredAnswer returns the compact JSON of an answer.
func structuredAnswer(text string) (json.RawMessage, bool) {
	data, ok := model.JSONAnswer(text)
	if !ok {
		return nil, false
	}
	compact, err := json.Marshal(data)
	return compact, err == nil
}

// called returns the called tools with their roles.
func (r *run) called() []finalize.Called {
	roles := map[string]tool.Role{}
	x := r.exposed()
	for _, t := range slices.Concat(x.ContextTools, x.Tools, r.in.Tools) {
		roles[t.Name] = t.Role
	}
	var all []finalize.Called
	for _, i := range r.replayed.loop.Intents {
		all = append(all, finalize.Called{Name: i.Name, Role: roles[i.Name]})
	}
	return all
}
