package loop

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// modelRequest is a request and its purpose.
type modelRequest struct {
	request model.Request
	step    int
	purpose Purpose
	// tokens is the estimated size of the prompt.
	tokens int64
}

// stepLimitNote is the instruction in the last request.
const stepLimitNote = "You have no steps left and cannot call any more tools. Give the best answer you can from " +
	"the information you have, and say what is missing."

// emptyNote returns the message that a repeated request has at its end if the model has replied with nothing. Without
// it, many models reply with nothing again, above all after the results of tools: platform.claude.com, handling stop
// reasons. It is a message of the user, because several endpoints merge system messages into the first message. Only
// the repeated request has it, so later requests begin with the same bytes as earlier ones.
func emptyNote(hasTools bool) model.Message {
	text := "Your last reply was empty. Give your answer now, from the information you have."
	if hasTools {
		text = "Your last reply was empty. Give your answer now, or call a tool if you need more information."
	}
	return model.Message{Role: model.RoleUser, Name: MessageEmptyReply, Content: text}
}

// stepRequest returns the request for a step. After the last step, the model must answer without calls.
func (run *runner) stepRequest(ctx context.Context, c *Candidate, p *prepare.Prompt, number int) (*modelRequest, error) {
	r := model.Request{Messages: run.messagesFor(ctx, c, p), Output: run.nativeOutput(c, p)}
	if run.lastStep(number) {
		r.Messages = append(r.Messages, model.Message{Role: model.RoleSystem, Name: MessageStepLimit, Content: stepLimitNote})
	}
	r.NoCalls = number > run.Limits.MaxSteps
	var err error
	if r.Tools, err = run.modelTools(p); err != nil {
		return nil, err
	}
	return &modelRequest{request: r, step: number, tokens: estimate(run.State, r)}, nil
}

// modelTools returns the tools in the prompt, with their schemas. It still offers a tool that no longer exists; the
// result of a call then says so.
func (run *runner) modelTools(p *prepare.Prompt) ([]model.Tool, error) {
	if len(p.Tools) == 0 {
		return nil, nil
	}
	all := make([]model.Tool, 0, len(p.Tools)) // no spare capacity: the slice is kept while the model works
	for _, t := range p.Tools {
		var schema json.RawMessage
		var err error
		if i := run.toolNamed(t.Name); i >= 0 {
			schema, err = run.callable()[i].ShownSchema()
		} else {
			schema, err = t.JSONSchema()
		}
		if err != nil {
			return nil, fmt.Errorf("failed to make the schema of tool %q: %w", t.Name, err)
		}
		all = append(all, model.Tool{Name: t.Name, Description: t.Description, Parameters: schema})
	}
	return all, nil
}

// lastStep reports whether this step must answer because the steps are used up. A step that follows only because an
// answer was rejected does not count as the last step: the model already had enough steps to answer.
func (run *runner) lastStep(number int) bool {
	if number <= run.Limits.MaxSteps {
		return false
	}
	for _, step := range run.State.Steps[max(0, min(run.Limits.MaxSteps, len(run.State.Steps))-1):] {
		if run.State.rejections[step.Step] == nil {
			return true
		}
	}
	return false
}
