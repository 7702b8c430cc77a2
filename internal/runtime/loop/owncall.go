package loop

import (
	"context"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// OwnCall is a call that Capstan makes without a model's request, before the first step. An example is the call of a
// context pack's tool.
type OwnCall struct {
	// ID identifies the call within the Turn.
	ID string
	// Tool is called at most once in a run, even if it times out.
	Tool tool.Tool
	// Arguments are the arguments of the call. If an earlier run has begun the call, the recorded arguments are used
	// instead.
	Arguments json.RawMessage
	// Refusal says why the call must not be made. It is empty if the call may be made.
	Refusal string
	// Convert converts an output to the content that the journal keeps.
	Convert func(output tool.Result) string
}

// ownGates are the gates of an OwnCall. There is no model that could request another call instead, and no person can
// approve a call before the Turn has begun.
var ownGates = []gate{ownCallAllowed, withinBudget, validArguments}

// ownCallAllowed is the gate that refuses the call if the caller has set Refusal.
func ownCallAllowed(v view) verdict {
	if v.own.Refusal != "" {
		return refuse(tool.Denied, "%s", v.own.Refusal)
	}
	return verdict{}
}

// MakeOwnCall makes a call in the same way as calls that models request: it records the intent before and the result
// after the call. It does not make a call that has a result, or that must not be repeated. The failure of a call is not
// an error of MakeOwnCall. MakeOwnCall returns the errors of Run that are not about models.
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
