package loop

import (
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// question is a request, and what it is for.
type question struct {
	request model.Request
	step    int
	purpose Purpose
	// tokens is about how many its prompt has.
	tokens int64
}

// outOfSteps is what a model is told with the last request.
const outOfSteps = "You have no steps left and cannot call tools any more. Give the best answer you can from what is known, and say what is missing."

// question for a step. That beyond the last step offers no tools, so that it is answered.
func (in *Input) question(c *Candidate, p *prepare.Prepared, number int) (*question, error) {
	r := model.Request{Messages: conversation(p.Messages, in.State, in.outputNotes(c)...), Output: in.nativeOutput(c)}
	if in.lastStep(number) {
		r.Messages = append(r.Messages, model.Message{Role: model.RoleSystem, Name: MessageStepLimit, Content: outOfSteps})
	}
	if number <= in.Limits.MaxSteps {
		var err error
		if r.Tools, err = in.offered(p); err != nil {
			return nil, err
		}
	}
	return &question{request: r, step: number, tokens: estimate(in.State, r)}, nil
}

// offered are the tools that the prompt speaks of, with their schemas. One that is gone by now is offered all the same: a call
// of it says so.
func (in *Input) offered(p *prepare.Prepared) ([]model.Tool, error) {
	if len(p.Tools) == 0 {
		return nil, nil
	}
	all := make([]model.Tool, 0, len(p.Tools)) // no more: it is held while the model works
	for _, t := range p.Tools {
		schema, err := t.JSONSchema()
		if i := in.toolNamed(t.Name); i >= 0 {
			schema, err = in.callable()[i].ShownSchema()
		}
		if err != nil {
			return nil, fmt.Errorf("failed to make the schema of tool %q: %w", t.Name, err)
		}
		all = append(all, model.Tool{Name: t.Name, Description: t.Description, Parameters: schema})
	}
	return all, nil
}

// lastStep says whether a step is the one that must answer because the steps are used up. One that follows only because an
// answer was rejected is not: the model had the steps it wanted.
func (in *Input) lastStep(number int) bool {
	if number <= in.Limits.MaxSteps {
		return false
	}
	for _, step := range in.State.Steps[max(0, min(in.Limits.MaxSteps, len(in.State.Steps))-1):] {
		if in.State.rejections[step.Step] == nil {
			return true
		}
	}
	return false
}
