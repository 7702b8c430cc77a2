package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// facts calls the context packs one after another, each once in the life of the Turn. It returns the Turn's facts
// together with theirs. A failed context pack adds no facts: the journal has the reason, and the Turn continues.
func (r *run) facts(ctx context.Context, of prepare.Turn) ([]turncontext.Fact, error) {
	var packed []foundFact
	var until time.Time // the end of the time for all context packs; zero if there is no limit
	if deadline, ok := ctx.Deadline(); ok {
		now := time.Now() //nolint:forbidigo // because a deadline of a context is measured on the same clock
		until = now.Add(deadline.Sub(now) / contextToolsShare)
	}
	for i, t := range r.exposed().ContextTools {
		callID := fmt.Sprintf("context-pack-%d", i+1)
		if r.replayed.contextToolEnd(callID) == nil {
			if err := r.callContextTool(ctx, withinTime(r.bound(t), until), callID, of.Message); err != nil {
				return nil, err
			}
		}
		if f := r.replayed.contextToolEnd(callID); f != nil && f.Outcome == loop.Succeeded {
			packed = append(packed, factsOf(f.Content, t.Name)...)
		}
	}
	return withFacts(of.Facts, packed), nil
}

// contextToolEnd returns the end of a call of a context pack, or nil if the call has not ended.
func (p *replayed) contextToolEnd(callID string) *loop.CallResult {
	i := slices.IndexFunc(p.loop.Finishes, func(f loop.CallResult) bool { return f.Step == 0 && f.CallID == callID })
	if i < 0 {
		return nil
	}
	return &p.loop.Finishes[i]
}

// withinTime limits the time-out of a tool by the end of the time for all context packs.
func withinTime(t tool.Tool, until time.Time) tool.Tool {
	if t.Timeout == 0 {
		t.Timeout = tool.DefaultTimeout
	}
	if !until.IsZero() {
		t.Timeout = min(t.Timeout, max(0, time.Until(until)))
	}
	return t
}

// callContextTool calls a context pack as the loop calls any other tool: it records the intent before and the
// outcome after the call. It returns only errors that stop the run.
func (r *run) callContextTool(ctx context.Context, t tool.Tool, callID, message string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-r.in.Interrupt:
		return loop.ErrInterrupted
	default:
	}
	finish := loop.CallResult{CallID: callID, Name: t.Name}
	attempts := 0
	for _, i := range r.replayed.loop.Intents {
		if i.Step == 0 && i.CallID == callID {
			attempts = i.Attempt
		}
	}
	if attempts > 0 && t.Effect != tool.ReadOnly { // an older version has called it
		return r.recordContextTool(finish, loop.Unknown, tool.OutcomeUnknown,
			"the outcome of this call is unknown: the run was interrupted during the call, and the call is not repeated")
	}
	if why := r.contextToolRefusal(t, attempts > 0); why != "" {
		return r.recordContextTool(finish, loop.Refused, tool.Denied, why)
	}
	arguments, err := canonical.JSON(contextToolArguments{message, topKFor(t, r.in.TopK)}) // canonical JSON does not escape < and &
	if err != nil {
		return err
	}
	intent := loop.Intent{
		CallID: callID, Name: t.Name, Arguments: arguments, Effect: t.Effect, Attempt: attempts + 1,
		IdempotencyKey: r.in.UID + "/0/" + callID,
	}
	if err := r.record(append(slices.Clip(r.pending), journal.Record{Kind: journal.ToolIntended, Payload: intent})...); err != nil {
		return err
	}
	r.pending = nil
	return r.makeContextToolCall(ctx, t, intent, finish)
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

// contextToolRefusal returns the reason for which a context pack must not be called, or an empty string if it may
// be called. Before the Turn has begun, a call cannot be approved, so a context pack must not change anything.
func (r *run) contextToolRefusal(t tool.Tool, again bool) string {
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
	case !again && r.replayed.tally.counts.ToolCalls >= r.in.Limits.MaxToolCalls:
		return fmt.Sprintf("the turn has used all of its %d tool calls", r.in.Limits.MaxToolCalls)
	}
	return ""
}

// makeContextToolCall makes a call whose intent is recorded. If the run is abandoned, the call stays open and the
// next run decides about it.
func (r *run) makeContextToolCall(ctx context.Context, t tool.Tool, intent loop.Intent, finish loop.CallResult) error {
	call := tool.Call{
		IdempotencyKey: intent.IdempotencyKey, CallID: intent.CallID, Repeatable: intent.Effect.Repeatable(),
		Arguments: intent.Arguments,
	}
	if deadline, ok := ctx.Deadline(); ok {
		call.Left.Time = time.Until(deadline)
	}
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	result, err := guardedCall(ctx, t, call)
	finish.DurationMS = time.Since(begin).Milliseconds()
	if err == nil {
		result.Content = r.redacted(result.Content)
		finish.Bytes = int64(len(result.Content))
		return r.recordContextTool(finish, loop.Succeeded, "", factListOf(result.Content))
	}
	if ctx.Err() != nil && r.life.Err() != nil {
		return context.Cause(ctx)
	}
	e := tool.AsError(err)
	finish.Stack = tool.StackOf(err)
	return errors.Join(r.recordContextTool(finish, loop.Failed, e.Class, r.redacted(e.Error())), context.Cause(ctx))
}

// redacted returns a text from outside without the credentials that the Turn must not have.
func (r *run) redacted(text string) string {
	if r.in.Redact == nil {
		return text
	}
	return r.in.Redact(text)
}

// recordContextTool records the outcome of a call.
func (r *run) recordContextTool(f loop.CallResult, o loop.Outcome, class tool.Class, content string) error {
	f.Outcome, f.Class, f.Content = o, class, content
	if class != "" {
		f.Content = fmt.Sprintf("error (%s): %s", class, clean(content, maxFactText))
	}
	records := append(slices.Clip(r.pending), journal.Record{Kind: journal.ToolFinished, Payload: f})
	r.pending = nil
	if err := r.record(records...); err != nil {
		return err
	}
	return r.memory.hold(0)
}

// guardedCall makes a call within its time-out, in a goroutine of its own because an adapter may end the goroutine.
func guardedCall(ctx context.Context, t tool.Tool, c tool.Call) (result tool.Result, err error) {
	err = tool.ErrNoResult
	var under sync.WaitGroup
	under.Go(func() { result, err = tool.Guarded(ctx, &t, c) })
	under.Wait()
	return result, err
}
