// Package loop runs the bounded loop of a Turn. It asks a model, calls the tools that the model asks for, and
// repeats this until the model answers or a limit is reached. Each step is in the journal before the loop acts on
// it, so an interrupted run continues where it stopped: no reply is paid for twice, and no harmful call is made
// twice.
package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// ErrInterrupted is returned when a run stopped at a safe point, because Input.Interrupt was closed or because there is
// no space to store a reply. Everything the run did is in the journal.
var ErrInterrupted = errors.New("interrupted at a safe point")

// Candidate is one model of a chain.
type Candidate struct {
	// ProviderName and Model identify the candidate. ProviderName is the name of the ModelProvider, or NAMESPACE/NAME
	// if the reference to the ModelProvider has a namespace. Candidates of a chain with the same pair share their
	// attempts.
	ProviderName, Model string
	// Endpoint is the host and the port of the endpoint. Provider data of a reply is sent back only to this endpoint.
	Endpoint string
	// Protocol is the protocol of the endpoint, as the type of its ModelProvider. It is empty if it is not known.
	Protocol string
	// Unusable is true if it is known that no request can be sent, for example because the ModelProvider is missing.
	Unusable bool
	// Parameters are the parameters of the requests to this candidate.
	Parameters model.Parameters
	// Retry bounds the requests to this candidate.
	Retry Retry
	// Provider sends the requests.
	Provider model.Provider
	// Embeds is true for a model that is only asked for vectors. Its replies have no tokens.
	Embeds bool
	// Pricing is the price of the model. Nil means that the model has no price.
	Pricing *model.Pricing
	// ContextWindow is the number of tokens that the model accepts, prompt and reply together. MaxOutputTokens is
	// the number of tokens that a reply may have. Each is 0 if unknown.
	ContextWindow, MaxOutputTokens int64
	// DefaultOutput is the output limit of a request if neither its parameters nor MaxOutputTokens limit it. It is 0 if
	// such a request has no limit, or an unknown one.
	DefaultOutput int64
	// StructuredOutput is true if the endpoint itself makes the model keep to a JSON Schema. SchemaExcludesTools is
	// true if the model cannot call tools in a request with such a schema. A Turn with tools then has the schema in its
	// prompt instead.
	StructuredOutput, SchemaExcludesTools bool
}

// Retry bounds the requests to one candidate for one step.
type Retry struct {
	// MaxAttempts is the number of requests over all runs, at least 1. A run that continues a Turn may always send
	// one request, even if the attempts are used up; at most 8 requests are added in this way.
	MaxAttempts int
	// InitialBackoff is the wait before the second attempt. MaxBackoff is the longest wait between two attempts.
	InitialBackoff, MaxBackoff time.Duration
}

// Config says how a Turn uses its models and tools. A later run of the Turn may have another Config, for example
// because the Agent has changed.
type Config struct {
	// Chain is the list of models, at least one.
	Chain []Candidate
	// Limits are the limits of the Turn. They apply to all its runs together.
	Limits Limits
	// Budgets returns the budgets that apply to the Turn now, at most budget.MaxOfTurn. It is called before each
	// request, and should return soon. An error ends the run, and a later run asks again. If Budgets is nil, there are
	// none.
	Budgets func() ([]budget.Rule, error)
	// IsCounted is true if the journal of the Turn was lost, and a lost run may have counted the Turn in its budgets.
	// Otherwise a budget that has kept this count would count the Turn again, and might refuse it.
	IsCounted bool
	// Policy says which tool calls are allowed and how they are made.
	Policy Policy
	// Decide returns the decision about a request for approval, or nil if none has been made. A decision counts
	// only if it names everything that the request shows. If Decide is nil, calls are never decided. Decide returns
	// ErrNotListed if it cannot know whether a decision has been made before the run is parked.
	Decide func(ctx context.Context, a Approval) (*Decision, error)
	// Context says when older messages are summarized.
	Context ContextPolicy
	// KeepReasoning writes the text of the model's reasoning to the journal.
	KeepReasoning bool
	// Interrupt is closed to stop the run at the next safe point. If Interrupt is nil, the run is never
	// interrupted.
	Interrupt <-chan struct{}
	// Redact removes the credentials that the Turn must not have from a text of a model or a tool. The loop calls
	// Redact once, before the text is recorded, so the journal, the state and all later messages contain the same text.
	// If Redact is nil, texts stay unchanged.
	Redact func(text string) string
	// ReserveCall reserves memory for a call that is made while other calls of the Turn are running, and returns the
	// function that releases it. It must not wait. If it returns nil, the call is made after another call has ended. If
	// ReserveCall is nil, there is no limit.
	ReserveCall func() (release func())
}

// Input is the input of a run: the configuration of its Turn, and what the run provides.
type Input struct {
	Config
	// TurnUID is the UID of the Turn. The IDs of its requests and the idempotency keys of its calls start with
	// TurnUID, so they never occur again.
	TurnUID string
	// Start is the index in Chain of the model to ask first.
	Start int
	// Prepare prepares the messages for a candidate of the chain, freezes them and writes them to the journal. It
	// may return the messages that an earlier run froze.
	Prepare func(ctx context.Context, c Candidate) (*prepare.Prompt, error)
	// Content returns the content of an attachment of a message. Its errors are *model.Error. It may be nil if no
	// message has attachments.
	Content func(ctx context.Context, a *model.Attachment) ([]byte, error)
	// Tools returns the tools that may be called. It must return the same tools each time: the loop drops the list
	// while it waits for a model, to save memory, and calls Tools again after the wait. If Tools is nil, there are
	// no tools.
	Tools func() []tool.Tool
	// Offered reports whether the prompt mentions the tool with this name. If Offered is nil, the prompt mentions
	// all tools.
	Offered func(name string) bool
	// Nonce marks the fences of this Turn's tool outputs, and makes the idempotency keys of its calls unique. It is
	// random and stays the same for the whole life of the Turn's journal.
	Nonce string
	// ArtifactPrefix is the start of the names of this Turn's artifacts. It makes them unique in the Session: a name in
	// the history must not find an artifact of this Turn.
	ArtifactPrefix string
	// Key returns the idempotency key of a call that has not begun, or an empty string if the call needs a new key. If
	// Key is nil, all such calls need new keys.
	Key func(callID string) string
	// Now returns the current time. The loop uses it for requests for approval and their expiry.
	Now func() time.Time
	// Output is the JSON Schema that the answer must fit. If Output is nil, the answer may be any text.
	Output *schema.Schema
	// Reflect makes the model check its draft before the draft becomes the answer.
	Reflect bool
	// Policies returns the rules that an answer must keep to. It is called only when there is an answer. If Policies is
	// nil, there are none.
	Policies func() []outputpolicy.Policy
	// Citations returns the sources of an answer, for Policies. If it is nil, there are none.
	Citations func() outputpolicy.Citations
	// State is the state that the journal records. Record updates it.
	State *State
	// Record writes to the Turn's journal and returns when the entries would survive a crash, however long that
	// takes. An error of Record ends the run.
	Record func(...journal.Record) error
	// Keep receives the function that releases the memory of a reply after the reply was written to the journal.
	// Keep calls that function before the next request or tool call. An error of Keep ends the run. If Keep is nil,
	// the memory is released immediately.
	Keep func(release func()) error
	// CountReply counts the newest reply as part of the conversation, and releases the memory that Keep keeps. It is
	// called before the run waits at the gate of a provider, and must not wait. An error of CountReply ends the run.
	CountReply func() error
	// Hold reserves memory for everything that Record has written, and for more bytes that it is about to write. It is
	// called before calls are made, and after each result, and must not wait. An error of Hold ends the run once the
	// running calls have their results. If Hold is nil, there is no limit.
	Hold func(more int64) error
	// NextSeq returns the sequence number that the next journal entry will have.
	NextSeq func() int64
	// ForRequest returns the context of a request with this ID, and ForCall the context of a call. The contexts contain
	// the trace, so that adapters can pass it on. Each may be nil.
	ForRequest func(ctx context.Context, id string) context.Context
	ForCall    func(ctx context.Context, step int, callID string) context.Context
	// Abandoned reports whether this run was given up while the Turn continues elsewhere. Calls without a result then
	// stay open for the next run.
	Abandoned func() bool
}

// runner is one run of the loop.
type runner struct {
	*Input
	// tools caches the result of Tools. It is nil while the loop waits for a model.
	tools []tool.Tool
	// own is the call that Capstan makes on its own, or nil in a loop.
	own *OwnCall
	// fixed is true if the calls are FixedCalls, each of which requires the success of the calls before it.
	fixed bool
}

// Reason says why a loop ended.
type Reason string

const (
	// Answered means that the last reply is the answer.
	Answered Reason = "Answered"
	// OutOfSteps means that the steps were used up. The last reply is the best answer from the facts known until
	// then.
	OutOfSteps Reason = "OutOfSteps"
	// ToolEnded means that a tool with endsTurn succeeded. Its result is the answer.
	ToolEnded Reason = "ToolEnded"
	// OutputInvalid means that the last reply, or the result of a tool that should end the Turn, does not fit the
	// schema, although the loop sent it back for correction.
	OutputInvalid Reason = "OutputInvalid"
	// ModelRefused means that the model refused to answer: the last reply says so in its own words.
	ModelRefused Reason = "ModelRefused"
	// PolicyViolated means that the answer violates an output policy. It must not be delivered.
	PolicyViolated Reason = "PolicyViolated"
	// OverBudget means that the next request would exceed the budget, or that earlier requests have exceeded it.
	OverBudget Reason = "OverBudget"
	// CallsMade means that the fixed calls of the Turn have ended, in whatever way.
	CallsMade Reason = "CallsMade"
)

// End says how a loop ended.
type End struct {
	Reason Reason
	// Message explains the end to people.
	Message string
}

// Policy says which calls are allowed and how they are made.
type Policy struct {
	// ReadOnly refuses calls of tools whose effect is not ReadOnly. NoWeb refuses calls of tools with the role
	// WebSearch.
	ReadOnly, NoWeb bool
	// Sequential makes calls one after another, even if they are read-only.
	Sequential bool
	// Unvalidated passes arguments on without checking them against the tool's schema.
	Unvalidated bool
}

// ContextPolicy says what happens when a conversation comes close to the context window.
type ContextPolicy struct {
	// Compact makes the model summarize older messages.
	Compact bool
	// WarnPercent and CompactPercent are the percentages of the room for the prompt at which the loop warns and
	// compacts, from 1 to 100. 0 turns the warning or the compaction off.
	WarnPercent, CompactPercent int
}

// Parked is returned when the run must wait for an approval, a sub-agent or a budget. Such waits are long, so the run
// ends and holds no resources. A later run continues the Turn.
type Parked struct {
	// Approvals are the calls that require approval, at most MaxOpenApprovals.
	Approvals []Approval
	// Turns are the names of the sub-agents' Turns that the run waits for.
	Turns []string
	// SubAgentCalls are the calls of these Turns for which the UID of the Turn is known, or for which it is certain
	// that the Turn has not been created.
	SubAgentCalls []SubAgentCall
	// Budget is the budget that refuses the next request, or nil.
	Budget *BudgetWait
}

// SubAgentCall is a journal entry: the call of a sub-agent and the Turn that the call created. TurnUID is the key of
// that Turn's journal, which still shows the usage of the Turn after its object was deleted.
type SubAgentCall struct {
	Step    int    `json:"step"`
	CallID  string `json:"callID"`
	TurnUID string `json:"turnUID"`
	// NotCreated is the number of the newest attempt if it is certain that no attempt has created the Turn. It is 0
	// otherwise. A later attempt may have created the Turn, so the number is valid only until that attempt begins.
	NotCreated int `json:"notCreated,omitempty"`
}

// Error says which budget the run waits for, or how many calls and Turns.
func (p *Parked) Error() string {
	if p.Budget != nil {
		return "parked: " + p.Budget.Message
	}
	return fmt.Sprintf("parked: %d calls require approval, %d turns of sub-agents have not ended", len(p.Approvals), len(p.Turns))
}

// Error means that no model of the chain gave a usable answer.
type Error struct {
	// Kind is the kind of the last failure.
	Kind model.ErrorKind
	// Message describes the last failure of each candidate, for people.
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Run asks models and calls tools until the loop ends. Its error is ErrInterrupted, a *Parked, the cause of a context
// that ended, an error of a function of the input, such as Record or Prepare, or an *Error.
//
// The caller must not change the input until Run returns. A run spends nearly all its time waiting for a model or a
// tool, and thousands of waiting runs each hold a whole stack. So the frames below Run are small: large values are
// passed by reference, and preparation is in separate functions.
func Run(ctx context.Context, in *Input) (*End, error) {
	run := &runner{Input: in}
	at := run.Start
	for {
		if last := run.State.LastStep(); last != nil {
			if end, err := run.handleReply(ctx, &run.Chain[at], last); err != nil || end != nil {
				return end, err
			}
		}
		var end *End
		var err error
		if at, end, err = run.step(ctx, at, len(run.State.Steps)+1); err != nil || end != nil {
			return end, err
		}
	}
}

// handleReply acts on a reply. If the reply asks for calls, handleReply makes them. Otherwise it checks the answer
// against the schema and lets the model reflect on it. Then it checks the answer against the output policies. It
// returns a nil End if the model must be asked again.
func (run *runner) handleReply(ctx context.Context, c *Candidate, last *Step) (*End, error) {
	if r := run.State.rejections[last.Step]; r != nil && r.IsByPolicies() {
		return nil, nil //nolint:nilnil // because the model is asked again
	}
	end := run.endAfter(last)
	switch {
	case end == nil:
		end, err := run.finishCalls(ctx, last)
		if err != nil || end == nil || end.Reason != ToolEnded {
			return end, err
		}
		return run.checkPolicies(ctx, c, last, end)
	case last.OverBudget:
		return run.cutByBudget(last), nil
	case last.Reply.FinishReason == model.FinishLength, end.Reason == ModelRefused: // the answer is cut off, or missing
		return end, nil
	}
	end, err := run.checkAnswer(ctx, last, end)
	if err != nil || end == nil || end.Reason == OutputInvalid {
		return end, err
	}
	if err := run.reflect(ctx, c, last); err != nil {
		return nil, err
	}
	return run.checkPolicies(ctx, c, last, end)
}

// step asks the models of the chain for one reply, first the model with this index. It returns the index of the model
// that answered, which is also asked first in the next step. Before a request, older messages are compacted if the
// prompt is close to the context window. If the endpoint says that the prompt is too long, they are compacted once
// more.
func (run *runner) step(ctx context.Context, at, number int) (int, *End, error) {
	err := run.failureBefore(number, &run.Chain[at])
	for {
		c := &run.Chain[at]
		var q *modelRequest
		if q, err = run.requestAfter(ctx, c, number, err); err != nil {
			if at, err = run.fallBack(at, number, err); err != nil {
				return at, nil, err
			}
			continue
		}
		var end *End
		if end, err = run.ask(ctx, c, q); err == nil {
			return at, end, nil
		}
	}
}

// failureBefore returns the failure with which an earlier run stopped asking a candidate for a step, or nil.
func (run *runner) failureBefore(number int, c *Candidate) error {
	if failure := run.State.gaveUp(number, ForStep, c, run.placeOf(c)); failure != nil {
		return failure
	}
	return nil
}

// requestAfter returns the request that follows a failure of a candidate, or its first request for a step if failure is
// nil. It returns the failure itself if no other request can help: only a prompt that was too long may be shortened.
func (run *runner) requestAfter(ctx context.Context, c *Candidate, number int, failure error) (*modelRequest, error) {
	e, _ := errors.AsType[*model.Error](failure)
	switch {
	case failure != nil && (e == nil || e.Kind != model.ContextLength):
		return nil, failure
	case c.Unusable: // its provider only reports the reason, so it needs no prompt
		return &modelRequest{step: number}, nil
	}
	prepared, err := run.Prepare(ctx, *c)
	if err != nil {
		return nil, err
	}
	q, shorter, err := run.fittingRequest(ctx, c, prepared, number)
	if err == nil && failure != nil && !shorter {
		err = failure
	}
	return q, err
}

// fallBack returns the index of the candidate to ask after the failure of another one. It returns an error if there is
// none: the chain ends here, the other candidates would fail too, or the run must stop.
func (run *runner) fallBack(at, number int, err error) (int, error) {
	failure, ok := errors.AsType[*model.Error](err)
	if !ok {
		return at, err
	}
	next := run.nextCandidate(at, failure.Kind)
	if next == len(run.Chain) {
		return at, run.chainError(&run.Chain[at], number, failure)
	}
	return next, nil
}

// nextCandidate returns the index of the candidate to ask after a failure, or the length of the chain if there is none.
func (run *runner) nextCandidate(at int, failure model.ErrorKind) int {
	next := at + 1
	switch failure.Next() {
	case model.NoModel:
		return len(run.Chain)
	case model.AnyModel:
		return next
	case model.LargerModel:
	}
	window := run.Chain[at].ContextWindow
	for ; next < len(run.Chain); next++ { // a window that is not known may be larger
		if c := &run.Chain[next]; !c.Unusable && (window == 0 || c.ContextWindow == 0 || c.ContextWindow > window) {
			break
		}
	}
	return next
}

// placeOf returns the place of a candidate in the chain, from 1.
func (run *runner) placeOf(c *Candidate) int {
	for at := range run.Chain {
		if &run.Chain[at] == c {
			return at + 1
		}
	}
	return 0
}

// chainError returns the failure of a chain whose last candidate has failed. It names each candidate that was asked for
// the step, also by earlier runs.
func (run *runner) chainError(c *Candidate, number int, last *model.Error) *Error {
	kind, parts := last.Kind, []string{}
	for _, other := range run.State.asked(number) {
		if other.Provider == c.ProviderName && other.Model == c.Model {
			continue
		}
		failed := run.State.lastFailure(&other)
		if kind == model.ContextLength { // a model that failed for another reason may have a larger window
			kind = failed.Kind
		}
		parts = append(parts, fmt.Sprintf("%s/%s: %s", other.Provider, other.Model, failed.Message))
	}
	if len(parts) == 0 {
		return &Error{Kind: kind, Message: last.Message}
	}
	parts = append(parts, fmt.Sprintf("%s/%s: %s", c.ProviderName, c.Model, last.Message))
	return &Error{
		Kind: kind, Message: fmt.Sprintf("none of the %d models that were tried answered; %s", len(parts), strings.Join(parts, "; ")),
	}
}
