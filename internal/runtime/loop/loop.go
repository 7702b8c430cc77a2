// Package loop is the bounded loop of a Turn: a model is asked, the tools it asks for are called, until it answers or a limit
// is reached. Each step is in the journal before anything follows from it, so a run that was cut off goes on where it
// stopped: no reply is bought twice, and no call that does harm is made twice.
package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// ErrInterrupted is returned when a run stopped at a safe point because it was asked to. The journal holds what there is.
var ErrInterrupted = errors.New("interrupted at a safe point")

// Candidate is one model of a chain.
type Candidate struct {
	// ProviderName and Model name the candidate. Candidates of one pair in a chain share their attempts.
	ProviderName, Model string
	// Parameters of its requests.
	Parameters model.Parameters
	// Retry bounds its requests.
	Retry Retry
	// Provider sends them.
	Provider model.Provider
	// Pricing of the model; nil if it has none.
	Pricing *model.Pricing
	// ContextWindow is how many tokens the model takes, prompt and reply together; 0 if nobody knows. MaxOutputTokens is how
	// many of them a reply may have; 0 if nobody knows.
	ContextWindow, MaxOutputTokens int64
	// StructuredOutput is true for a model that keeps to a JSON Schema by itself.
	StructuredOutput bool
}

// Retry bounds the requests to one candidate for one step.
type Retry struct {
	// MaxAttempts in all, at least 1. A run that goes on from another sends one in any case, up to 8 beyond them.
	MaxAttempts int
	// InitialBackoff before the second attempt, and MaxBackoff between any two.
	InitialBackoff, MaxBackoff time.Duration
}

// Input of a run.
type Input struct {
	// TurnUID names requests and calls for ever.
	TurnUID string
	// Chain of models, at least one.
	Chain []Candidate
	// Start is the place in the chain to begin at.
	Start int
	// Prepare freezes the messages for a candidate of the chain and journals them. It may return what an earlier run froze.
	Prepare func(ctx context.Context, c Candidate) (*prepare.Prepared, error)
	// Tools returns the tools that may be called, the same each time; nil for none. It is called anew after each wait for a model: a Turn
	// that waits does not hold them.
	Tools func() []tool.Tool
	// Offered says whether the prompt speaks of a tool, by its name; nil for all.
	Offered func(name string) bool
	// Limits of the Turn, over all its runs.
	Limits Limits
	// Policy of calls.
	Policy Policy
	// Nonce marks the fences of this Turn's tool outputs: random, and the same for the whole life of the Turn.
	Nonce string
	// Now is the time of day, for what waits for people.
	Now func() time.Time
	// Decide returns the decision about a request, or nil if none has been made. It counts only if it names all that the request
	// shows. If Decide is nil, calls are never decided.
	Decide func(ctx context.Context, a Approval) (*Decision, error)
	// Output is the JSON Schema that the answer must keep to; nil for none.
	Output *schema.Schema
	// Context says when older messages are summarised.
	Context ContextPolicy
	// Reflect asks the model to check its draft before it is the answer.
	Reflect bool
	// KeepReasoning journals the text of the model's reasoning.
	KeepReasoning bool
	// Interrupt is closed to ask the run to stop at the next safe point; nil never asks.
	Interrupt <-chan struct{}
	// Redact returns a text that models and tools wrote without the credentials that the Turn must not have. It is applied once, before
	// the text is recorded: the journal, the state and all later messages have the same text. If Redact is nil, texts stay as they are.
	Redact func(text string) string
	// State is what the journal holds: Record adds to it.
	State *State
	// Record writes to the Turn's journal and returns when that would survive a crash, however long it takes. Its errors
	// end the run.
	Record func(...journal.Record) error
	// Keep is given what releases the memory of a reply that is in the journal now, and calls it before anything else is asked for or
	// called. Its error ends the run. If Keep is nil, that memory is released at once.
	Keep func(release func()) error
	// NextSeq is the place that the next entry of the journal will have.
	NextSeq func() int64
	// Abandoned says whether the run was given up while its Turn goes on elsewhere. What has not ended then stays open.
	Abandoned func() bool

	// tools are those of Tools while they are needed.
	tools []tool.Tool
}

// Reason is why a loop has ended.
type Reason string

const (
	// Answered means that the last reply is the answer.
	Answered Reason = "Answered"
	// OutOfSteps means that the last reply is the best answer from what was known when the steps were used up.
	OutOfSteps Reason = "OutOfSteps"
	// ToolEnded means that a tool that ends Turns has succeeded: its result is the answer.
	ToolEnded Reason = "ToolEnded"
	// OutputInvalid means that the last reply does not fit the schema, or that the result of a tool that was to end the Turn does
	// not, also after it was sent back.
	OutputInvalid Reason = "OutputInvalid"
	// ModelRefused means that the model refused to answer: the last reply says so in its own words.
	ModelRefused Reason = "ModelRefused"
	// OverBudget means that the next request would have gone beyond the budget, or that those before have.
	OverBudget Reason = "OverBudget"
)

// End of a loop.
type End struct {
	Reason Reason
	// Message says so to people.
	Message string
}

// Policy says which calls are allowed, and how they are made.
type Policy struct {
	// ReadOnly refuses calls of tools that are not known to be read-only, NoWeb those of tools of the role WebSearch.
	ReadOnly, NoWeb bool
	// Sequential makes one call after another, also where they are read-only.
	Sequential bool
	// Unvalidated leaves arguments to the tools.
	Unvalidated bool
}

// ContextPolicy says when a conversation is near the context window, in percent of it.
type ContextPolicy struct {
	// Compact has older messages summarised by the model.
	Compact bool
	// WarnPercent and CompactPercent are from 1 to 100.
	WarnPercent, CompactPercent int
}

// Parked is returned when the run has come to something that it waits for and that takes long: nothing is held for it. A
// later run goes on.
type Parked struct {
	// Approvals are the calls that require approval, at most MaxOpenApprovals.
	Approvals []Approval
	// Turns are the names of the Turns of sub-agents that are waited for.
	Turns []string
	// Begun are the calls that have begun these Turns, as far as their UIDs are known.
	Begun []Begun
}

// Begun is a call of a sub-agent that has begun a Turn, as the journal keeps it. The UID is the key of that Turn's journal, which
// says what the Turn took when its object is gone.
type Begun struct {
	Step    int    `json:"step"`
	CallID  string `json:"callID"`
	TurnUID string `json:"turnUID"`
}

// Error says what is waited for.
func (p *Parked) Error() string {
	return fmt.Sprintf("parked: %d calls await approval, %d turns of sub-agents have not ended", len(p.Approvals), len(p.Turns))
}

// Error is a chain of which no model gave a usable answer.
type Error struct {
	// Kind of the last failure.
	Kind model.ErrorKind
	// Message for people: each candidate's last failure.
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Run asks and calls until there is an end. It returns ErrInterrupted, a *Parked, the cause of a context that ended, an error of
// the journal or of Prepare as it is, or an *Error.
func Run(ctx context.Context, in Input) (*End, error) { return RunInput(ctx, &in) }

// RunInput is Run for an input that nobody else has, and that its caller need not keep on the stack meanwhile. What is large is
// handed on by reference from here on, and what only prepares or follows a request is in functions of its own: a run spends nearly
// all its time waiting for a model or a tool, and thousands of them each hold all frames down to that.
func RunInput(ctx context.Context, in *Input) (*End, error) {
	at := in.Start
	for {
		if last := in.State.LastStep(); last != nil {
			if end, err := in.follow(ctx, &in.Chain[at], last); err != nil || end != nil {
				return end, err
			}
		}
		var end *End
		var err error
		if at, end, err = in.step(ctx, at, len(in.State.Steps)+1); err != nil || end != nil {
			return end, err
		}
	}
}

// follow does what follows from a reply: it makes the calls that the reply asks for; or checks the answer, first against the schema
// and then against the request. There is no end if the model is to be asked again.
func (in *Input) follow(ctx context.Context, c *Candidate, last *Step) (*End, error) {
	end := in.ended(last)
	switch {
	case end == nil:
		return in.finishCalls(ctx, last)
	case last.Reply.FinishReason == model.FinishLength, end.Reason == ModelRefused: // a part of an answer, or none
		return end, nil
	}
	end, err := in.judge(last, end)
	if err != nil || end == nil || end.Reason == OutputInvalid {
		return end, err
	}
	return end, in.reflect(ctx, c, last)
}

// step asks the models of the chain for one reply, from a place in the chain, and returns the place of the one that
// answered: it is asked next, too.
func (in *Input) step(ctx context.Context, at, number int) (int, *End, error) {
	var before *failures
	for {
		end, err := in.stepWith(ctx, &in.Chain[at], number)
		if err == nil {
			return at, end, nil
		}
		if before, err = in.fallBack(before, at, err); err != nil {
			return at, nil, err
		}
		at++
	}
}

// failures are the last failures of the candidates that were tried for a step, and their names.
type failures struct {
	errors []*model.Error
	names  []string
}

// fallBack adds the failure of a candidate to those before; nil if there were none. It returns an error if the next candidate is not
// to be asked: there is none, or it would fail as well, or the run must stop.
func (in *Input) fallBack(before *failures, at int, err error) (*failures, error) {
	failure, ok := errors.AsType[*model.Error](err)
	if !ok {
		return nil, err
	}
	if before == nil {
		before = &failures{}
	}
	c := &in.Chain[at]
	before.errors, before.names = append(before.errors, failure), append(before.names, c.ProviderName+"/"+c.Model)
	if at+1 == len(in.Chain) || !failure.Kind.FallsBack() {
		return nil, chainError(before.errors, before.names)
	}
	return before, nil
}

// stepWith asks one candidate for one reply. Older messages are replaced before where the context is critical, and once more
// where the endpoint says that the prompt is too long.
func (in *Input) stepWith(ctx context.Context, c *Candidate, number int) (*End, error) {
	prepared, q, err := in.ready(ctx, c, number)
	if err != nil {
		return nil, err
	}
	for {
		end, failure := in.ask(ctx, c, q)
		if failure == nil {
			return end, nil
		}
		if q, err = in.shortened(ctx, c, prepared, number, failure); err != nil {
			return nil, err
		}
	}
}

// shortened returns a shorter question where a request has failed because its prompt is too long. It returns the failure if there is
// none, or if something else has failed.
func (in *Input) shortened(ctx context.Context, c *Candidate, p *prepare.Prepared, number int, failure error) (*question, error) {
	if e, ok := errors.AsType[*model.Error](failure); !ok || e.Kind != model.ContextLength {
		return nil, failure
	}
	q, shorter, err := in.fitting(ctx, c, p, number)
	if err == nil && !shorter {
		err = failure
	}
	return q, err
}

// ready is the prompt for a candidate, and the question for a step.
func (in *Input) ready(ctx context.Context, c *Candidate, number int) (*prepare.Prepared, *question, error) {
	prepared, err := in.Prepare(ctx, *c)
	if err != nil {
		return nil, nil, err
	}
	q, _, err := in.fitting(ctx, c, prepared, number)
	return prepared, q, err
}

func chainError(failures []*model.Error, names []string) *Error {
	last := failures[len(failures)-1]
	if len(failures) == 1 {
		return &Error{Kind: last.Kind, Message: last.Message}
	}
	parts := []string{fmt.Sprintf("none of the %d models that were tried answered", len(failures))}
	for i, f := range failures {
		parts = append(parts, names[i]+": "+f.Message)
	}
	return &Error{Kind: last.Kind, Message: strings.Join(parts, "; ")}
}
