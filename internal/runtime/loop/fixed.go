package loop

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// FixedCalls is a part of a journal entry: the calls of a Turn that asks no model.
type FixedCalls struct {
	Calls []model.ToolCall `json:"calls,omitempty"`
}

// applyFixed folds fixed calls into the state. They are the calls of the first and only step.
func (s *State) applyFixed(e journal.Entry) error {
	var f FixedCalls
	if err := json.Unmarshal(e.Payload, &f); err != nil {
		return err
	}
	if len(f.Calls) > 0 {
		s.Steps = append(s.Steps, Step{Step: 1, Reply: model.Reply{ToolCalls: f.Calls, FinishReason: model.FinishToolCalls}})
	}
	return nil
}

// RunFixed makes the FixedCalls in the state, one after another in their order. They pass the same gates as calls that
// a model requests. If a call does not succeed, the calls after it are refused. RunFixed returns the errors of Run that
// are not about models.
func RunFixed(ctx context.Context, in *Input) (*End, error) {
	own := *in
	own.Policy.Sequential, own.Policy.Unvalidated = true, false
	run := &runner{Input: &own, fixed: true}
	step := run.State.LastStep()
	if step == nil {
		return &End{Reason: CallsMade, Message: "there was no call to make"}, nil
	}
	for open := run.open(step); len(open) > 0; open = run.open(step) {
		if results := run.resultsAfterFailure(step, open); len(results) > 0 {
			if err := run.Record(results...); err != nil {
				return nil, err
			}
			continue
		}
		if err := run.safePoint(ctx); err != nil {
			return nil, err
		}
		if err := run.proceed(ctx, step.Step, open); err != nil {
			return nil, err
		}
	}
	return &End{Reason: CallsMade, Message: "all calls have ended"}, nil
}

// resultsAfterFailure returns the results of the calls that have not begun if an earlier call did not succeed.
func (run *runner) resultsAfterFailure(step *Step, open []openCall) []journal.Record {
	var failed *CallResult
	position := 0
	for i, c := range step.Reply.ToolCalls {
		if f := run.State.result(step.Step, c.ID); f != nil && f.Outcome != Succeeded && f.Outcome != Reused {
			failed, position = f, i+1
			break
		}
	}
	if failed == nil {
		return nil
	}
	var results []journal.Record
	for _, c := range open {
		if c.position > position && run.State.intent(step.Step, c.call.ID) == nil {
			results = append(results, run.newResult(step.Step, c, nil).failed(Refused, tool.Denied,
				fmt.Sprintf("the tool was not called, because the call %q before it did not succeed", failed.CallID)))
		}
	}
	return results
}
