// Package loop is the bounded loop of a Turn: a model is asked, the tools it asks for are called, until it answers or a limit
// is reached. Each step is in the journal before anything follows from it, so a run that was cut off goes on where it
// stopped: no reply is bought twice, and no call that does harm is made twice.
package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
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
	// Tools that may be called.
	Tools []tool.Tool
	// Limits of the Turn, over all its runs.
	Limits Limits
	// Interrupt is closed to ask the run to stop at the next safe point; nil never asks.
	Interrupt <-chan struct{}
	// State is what the journal holds: Record adds to it.
	State *State
	// Record writes to the Turn's journal and returns when that would survive a crash, however long it takes. Its errors
	// end the run.
	Record func(...journal.Record) error
	// NextSeq is the place that the next entry of the journal will have.
	NextSeq func() int64
	// Abandoned says whether the run was given up while its Turn goes on elsewhere. What has not ended then stays open.
	Abandoned func() bool
}

// Reason is why a loop has ended.
type Reason string

const (
	// Answered means that the last reply is the answer.
	Answered Reason = "Answered"
	// OutOfSteps means that the last reply is the best answer from what was known when the steps were used up.
	OutOfSteps Reason = "OutOfSteps"
	// OverBudget means that the next request would have gone beyond the budget, or that those before have.
	OverBudget Reason = "OverBudget"
)

// End of a loop.
type End struct {
	Reason Reason
	// Message says so to people.
	Message string
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

// Run asks and calls until there is an end. It returns ErrInterrupted, the cause of a context that ended, an error of the
// journal or of Prepare as it is, or an *Error.
func Run(ctx context.Context, in Input) (*End, error) {
	at := in.Start
	for {
		last := in.State.LastStep()
		if last != nil {
			if end := in.ended(last); end != nil {
				return end, nil
			}
			if end, err := in.finishCalls(ctx, last); err != nil || end != nil {
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

// ended says whether a reply is the last one.
func (in Input) ended(s *Step) *End {
	switch {
	case s.Last:
		return &End{Reason: OutOfSteps, Message: fmt.Sprintf(
			"the turn was out of steps after %d, and answered from what was known by then: raise limits.maxSteps, or ask for less", s.Step-1)}
	case len(s.Reply.ToolCalls) == 0:
		return &End{Reason: Answered, Message: "the model answered"}
	}
	return nil
}

// step asks the models of the chain for one reply, from a place in the chain, and returns the place of the one that
// answered: it is asked next, too.
func (in Input) step(ctx context.Context, at, number int) (int, *End, error) {
	var failures []*model.Error
	var names []string
	for ; at < len(in.Chain); at++ {
		c := in.Chain[at]
		prepared, err := in.Prepare(ctx, c)
		if err != nil {
			return at, nil, err
		}
		ask, err := in.asking(prepared, number)
		if err != nil {
			return at, nil, err
		}
		end, err := in.ask(ctx, c, ask, number)
		if err == nil {
			return at, end, nil
		}
		failure, ok := errors.AsType[*model.Error](err)
		if !ok {
			return at, nil, err
		}
		failures, names = append(failures, failure), append(names, c.ProviderName+"/"+c.Model)
		if !failure.Kind.FallsBack() {
			break
		}
	}
	return at, nil, chainError(failures, names)
}

// outOfSteps is what a model is told with the last request.
const outOfSteps = "You have no steps left and cannot call tools any more. Give the best answer you can from what is known, and say what is missing."

// asking is the request for a step. That beyond the last step offers no tools, so that it is answered.
func (in Input) asking(p *prepare.Prepared, number int) (model.Request, error) {
	r := model.Request{Messages: append(slices.Clip(p.Messages), in.State.Messages()...)}
	if number > in.Limits.MaxSteps {
		r.Messages = append(r.Messages, model.Message{Role: model.RoleSystem, Name: "step_limit", Content: outOfSteps})
		return r, nil
	}
	for _, t := range p.Tools {
		schema, err := t.JSONSchema()
		if err != nil {
			return r, fmt.Errorf("failed to make the schema of tool %q: %w", t.Name, err)
		}
		r.Tools = append(r.Tools, model.Tool{Name: t.Name, Description: t.Description, Parameters: schema})
	}
	return r, nil
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
