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

// packsShare is the part of the time left that all context packs together may take, as a divisor: the rest is the model's.
const packsShare = 4

// facts calls the tools of the role ContextPack, one after another and each once in the life of the Turn, and returns the Turn's
// facts with what they gave. One that fails adds nothing: the journal says why, and the Turn goes on.
func (r *run) facts(ctx context.Context, of prepare.Turn) ([]turncontext.Fact, error) {
	var packed []packedFact
	var until time.Time // when the time of all of them is over; zero for no such time
	if deadline, ok := ctx.Deadline(); ok {
		now := time.Now() //nolint:forbidigo // because a deadline of a context is measured on the same clock
		until = now.Add(deadline.Sub(now) / packsShare)
	}
	for i, t := range r.exposed().Packs {
		callID := fmt.Sprintf("context-pack-%d", i+1)
		if r.past.pack(callID) == nil {
			if err := r.callPack(ctx, within(r.bound(t), until), callID, of.Message); err != nil {
				return nil, err
			}
		}
		if f := r.past.pack(callID); f != nil && f.Outcome == loop.Succeeded {
			packed = append(packed, unpacked(f.Content, t.Name)...)
		}
	}
	return withFacts(of.Facts, packed), nil
}

// pack is the end of a call of a context pack; nil if it has none.
func (p *past) pack(callID string) *loop.Finish {
	i := slices.IndexFunc(p.loop.Finishes, func(f loop.Finish) bool { return f.Step == 0 && f.CallID == callID })
	if i < 0 {
		return nil
	}
	return &p.loop.Finishes[i]
}

// within is a tool whose time is over when that of all context packs is.
func within(t tool.Tool, until time.Time) tool.Tool {
	if t.Timeout == 0 {
		t.Timeout = tool.DefaultTimeout
	}
	if !until.IsZero() {
		t.Timeout = min(t.Timeout, max(0, time.Until(until)))
	}
	return t
}

// callPack calls a context pack as the loop calls any other tool: what is about to be done is in the journal before, and what
// became of it after. Only what stops the run is an error.
func (r *run) callPack(ctx context.Context, t tool.Tool, callID, message string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-r.in.Interrupt:
		return loop.ErrInterrupted
	default:
	}
	finish := loop.Finish{CallID: callID, Name: t.Name}
	attempts := 0
	for _, i := range r.past.loop.Intents {
		if i.Step == 0 && i.CallID == callID {
			attempts = i.Attempt
		}
	}
	if attempts > 0 && t.Effect != tool.ReadOnly { // an older version has called it
		return r.packed(finish, loop.Unknown, tool.OutcomeUnknown, "the outcome of this call is unknown: the run was cut off while the call was under way, and it is not made again")
	}
	if why := r.packRefused(t, attempts > 0); why != "" {
		return r.packed(finish, loop.Refused, tool.Denied, why)
	}
	arguments, err := canonical.JSON(packArguments{message, topKFor(t, r.in.TopK)}) // which leaves < and & as they are
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
	return r.makePackCall(ctx, t, intent, finish)
}

// packArguments are what a context pack is asked for.
type packArguments struct {
	Message string `json:"message"`
	// TopK is how many results there should be.
	TopK int `json:"topK,omitempty"`
}

// topKFor is how many results a tool is asked for: 0, which asks for no number, where its schema takes none.
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

// packRefused says why a context pack is not called; empty if it is. Nobody can be asked before the Turn has begun, so a pack must
// change nothing.
func (r *run) packRefused(t tool.Tool, again bool) string {
	switch {
	case t.Timeout <= 0:
		return fmt.Sprintf("the context packs before it have used up their time, which is 1/%d of the turn's", packsShare)
	case t.RequiresApproval:
		return "a context pack is called before anybody could approve it: take it out of the agent's requireApproval, or give the tool another role"
	case t.Effect != tool.ReadOnly:
		return "a context pack is called without anybody having asked for the call, and this one is not declared to be read-only: " +
			"declare effect: ReadOnly in the ToolServer's spec.tools if it is, or give the tool another role"
	case !again && r.past.tally.counts.ToolCalls >= r.in.Limits.MaxToolCalls:
		return fmt.Sprintf("the turn has made all of the %d calls of tools that it may make", r.in.Limits.MaxToolCalls)
	}
	return ""
}

// makePackCall makes a call that is intended. A run that was given up leaves its end open, and the next one judges it.
func (r *run) makePackCall(ctx context.Context, t tool.Tool, intent loop.Intent, finish loop.Finish) error {
	call := tool.Call{IdempotencyKey: intent.IdempotencyKey, CallID: intent.CallID, Repeatable: intent.Effect.Repeatable(), Arguments: intent.Arguments}
	if deadline, ok := ctx.Deadline(); ok {
		call.Left.Time = time.Until(deadline)
	}
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	result, err := guardedCall(ctx, t, call)
	finish.DurationMS = time.Since(begin).Milliseconds()
	if err == nil {
		result.Content = r.redacted(result.Content)
		finish.Bytes = int64(len(result.Content))
		return r.packed(finish, loop.Succeeded, "", packedContent(result.Content))
	}
	if ctx.Err() != nil && r.life.Err() != nil {
		return context.Cause(ctx)
	}
	e := tool.AsError(err)
	finish.Stack = tool.StackOf(err)
	return errors.Join(r.packed(finish, loop.Failed, e.Class, r.redacted(e.Error())), context.Cause(ctx))
}

// redacted is a text from outside as the Turn may have it.
func (r *run) redacted(text string) string {
	if r.in.Redact == nil {
		return text
	}
	return r.in.Redact(text)
}

// packed writes down what became of a call.
func (r *run) packed(f loop.Finish, o loop.Outcome, class tool.Class, content string) error {
	f.Outcome, f.Class, f.Content = o, class, content
	if class != "" {
		f.Content = fmt.Sprintf("error (%s): %s", class, clean(content, maxFactText))
	}
	records := append(slices.Clip(r.pending), journal.Record{Kind: journal.ToolFinished, Payload: f})
	r.pending = nil
	return r.record(records...)
}

// guardedCall makes a call within its time, in a goroutine that its adapter may end.
func guardedCall(ctx context.Context, t tool.Tool, c tool.Call) (result tool.Result, err error) {
	err = tool.ErrNoResult
	var under sync.WaitGroup
	under.Go(func() { result, err = tool.Guarded(ctx, &t, c) })
	under.Wait()
	return result, err
}
