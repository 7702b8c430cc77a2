package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// contextToolsShare is a divisor: all context packs together may use 1/contextToolsShare of the remaining time. The
// rest is for the model.
const contextToolsShare = 4

// facts calls the context packs that have no result yet, one after another. It returns the Turn's facts together with
// the facts of the context packs. A failed context pack adds no facts: the journal has the reason, and the Turn
// continues.
func (r *run) facts(ctx context.Context, turn prepare.Turn) ([]turncontext.Fact, error) {
	var found []foundFact
	var until time.Time // the deadline for all context packs; zero if there is none
	if deadline, ok := ctx.Deadline(); ok {
		now := time.Now() //nolint:forbidigo // because a deadline of a context is measured on the same clock
		until = now.Add(deadline.Sub(now) / contextToolsShare)
	}
	for i, t := range r.exposed().ContextTools {
		callID := fmt.Sprintf("context-pack-%d", i+1)
		if r.replayed.contextToolResult(callID) == nil {
			if err := r.callContextTool(ctx, withinTime(r.withCaller(t), until), callID, turn.Message); err != nil {
				return nil, err
			}
		}
		if f := r.replayed.contextToolResult(callID); f != nil && f.Outcome == loop.Succeeded {
			found = append(found, factsOf(f.Content, t.Name)...)
		}
	}
	return withFacts(turn.Facts, found), nil
}

// contextToolResult returns the result of a call of a context pack, or nil if the call has not ended.
func (p *replayed) contextToolResult(callID string) *loop.CallResult {
	i := slices.IndexFunc(p.loop.CallResults, func(f loop.CallResult) bool { return f.Step == 0 && f.CallID == callID })
	if i < 0 {
		return nil
	}
	return &p.loop.CallResults[i]
}

// withinTime limits the time-out of a tool by the deadline for all context packs.
func withinTime(t tool.Tool, until time.Time) tool.Tool {
	if t.Timeout == 0 {
		t.Timeout = tool.DefaultTimeout
	}
	if !until.IsZero() {
		t.Timeout = min(t.Timeout, max(0, time.Until(until)))
	}
	return t
}

// callContextTool calls a context pack. It returns only errors that stop the run.
func (r *run) callContextTool(ctx context.Context, t tool.Tool, callID, message string) error {
	arguments, err := canonical.JSON(contextToolArguments{message, topKFor(t, r.in.TopK)}) // canonical JSON does not escape < and &
	if err != nil {
		return err
	}
	in := r.loopInput()
	in.Record = func(records ...journal.Record) error {
		if err := r.record(append(slices.Clip(r.pending), records...)...); err != nil {
			return err
		}
		r.pending = nil
		return nil
	}
	return loop.MakeOwnCall(ctx, in, &loop.OwnCall{
		ID: callID, Tool: t, Arguments: arguments, Refusal: contextToolRefusal(t), Convert: factListOf,
	})
}

// contextToolArguments are the arguments of a context pack.
type contextToolArguments struct {
	Message string `json:"message"`
	// TopK is the number of results to return.
	TopK int `json:"topK,omitempty"`
}

// topKFor returns the number of results to ask a tool for. It returns 0, which omits the argument, if the schema of
// the tool does not accept it.
func topKFor(t tool.Tool, topK int) int {
	var s struct {
		Additional json.RawMessage            `json:"additionalProperties"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	source, err := t.JSONSchema()
	if err != nil || json.Unmarshal(source, &s) != nil || string(s.Additional) != "false" {
		return topK
	}
	if _, ok := s.Properties["topK"]; !ok {
		return 0
	}
	return topK
}

// contextToolRefusal returns the reason why a context pack must not be called, or an empty string if it may be called.
// Before the Turn has begun, a call cannot be approved, so a context pack must not change anything.
func contextToolRefusal(t tool.Tool) string {
	switch {
	case t.Timeout <= 0:
		return fmt.Sprintf("the earlier context packs have used all of the time for context packs, which is 1/%d of the turn's time",
			contextToolsShare)
	case t.RequiresApproval:
		return "a context pack cannot require approval, because it is called before the turn begins: remove it " +
			"from the agent's requireApproval, or give the tool another role"
	case t.Effect != tool.ReadOnly:
		return "a context pack must be declared read-only, because it is called without a request of the model: " +
			"declare effect: ReadOnly in the ToolServer's spec.tools if the tool is read-only, or give the tool another role"
	}
	return ""
}
