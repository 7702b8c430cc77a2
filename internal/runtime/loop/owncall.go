package loop

import (
	"context"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// OwnCall is a call that Capstan makes on its own before the first request to a model, such as that of a context pack.
type OwnCall struct {
	// ID of the call within the Turn.
	ID string
	// Tool is called at most once in a run, even if it times out.
	Tool tool.Tool
	// Arguments of the call. If an earlier run has begun the call, its arguments count.
	Arguments json.RawMessage
	// Refusal says why the call must not be made. It is empty if the call may be made.
	Refusal string
	// Convert returns the content that the journal keeps of a result.
	Convert func(content string) string
}

// ownGates are the gates of a call that no model has asked for. No model can be told to ask for another call, and no
// person can approve one before the Turn has begun.
var ownGates = []gate{ownCallAllowed, withinBudget, validArguments}

// ownCallAllowed is the gate for the reason that the caller knows.
func ownCallAllowed(v view) verdict {
	if v.own.Refusal != "" {
		return refuse(tool.Denied, "%s", v.own.Refusal)
	}
	return verdict{}
}

// MakeOwnCall makes a call as those that models ask for: it records the intent before and the result after the call.
// It makes no call that has ended, or that must not be repeated. A call that fails is no error. MakeOwnCall returns the
// errors of Run that are not about models.
func MakeOwnCall(ctx context.Context, in *Input, c *OwnCall) error {
	c.Tool.RetryOnTimeout, c.Tool.EndsTurn = false, false
	own := *in
	own.Tools = func() []tool.Tool { return []tool.Tool{c.Tool} }
	run := &runner{Input: &own, own: c}
	step := &Step{Reply: model.Reply{
		ToolCalls: []model.ToolCall{{ID: c.ID, Name: c.Tool.Name, Arguments: string(c.Arguments)}},
	}}
	for open := run.open(step); len(open) > 0; open = run.open(step) {
		if err := run.safePoint(ctx); err != nil {
			return err
		}
		if err := run.proceed(ctx, step.Step, open); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
