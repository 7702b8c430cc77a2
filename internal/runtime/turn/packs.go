package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// facts calls the tools of the role ContextPack, one after another and each once in the life of the Turn, and returns the Turn's
// facts with what they gave. One that fails adds nothing: the journal says why, and the Turn goes on.
func (r *run) facts(ctx context.Context, of prepare.Turn) ([]turncontext.Fact, error) {
	var packed []packedFact
	for i, t := range r.exposed().Packs {
		callID := fmt.Sprintf("context-pack-%d", i+1)
		if r.past.pack(callID) == nil {
			if err := r.callPack(ctx, r.bound(t), callID, of.Message); err != nil {
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
	if attempts > 0 && !t.Effect.Repeatable() {
		return r.packed(finish, loop.Unknown, tool.OutcomeUnknown, "the outcome of this call is unknown: the run was cut off while the call was under way, and it is not made again")
	}
	if why := r.packRefused(t, attempts > 0); why != "" {
		return r.packed(finish, loop.Refused, tool.Denied, why)
	}
	arguments, err := canonical.JSON(packArguments{message, r.in.TopK}) // which leaves < and & as they are
	if err != nil {
		return err
	}
	intent := loop.Intent{
		CallID: callID, Name: t.Name, Arguments: arguments, Effect: effectOf(t), Attempt: attempts + 1,
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

// packRefused says why a context pack is not called; empty if it is. Nobody can be asked before the Turn has begun.
func (r *run) packRefused(t tool.Tool, again bool) string {
	switch {
	case t.RequiresApproval:
		return "a context pack is called before anybody could approve it: take it out of the agent's requireApproval, or give the tool another role"
	case r.in.Policy.ReadOnly && t.Effect != tool.ReadOnly:
		return "the tool is not known to be read-only, and the agent's toolPolicy.effects allows no other"
	case !again && r.past.tally.counts.ToolCalls >= r.in.Limits.MaxToolCalls:
		return fmt.Sprintf("the turn has made all of the %d calls of tools that it may make", r.in.Limits.MaxToolCalls)
	}
	return ""
}

func effectOf(t tool.Tool) tool.Effect {
	if t.Effect == "" {
		return tool.Destructive
	}
	return t.Effect
}

// makePackCall makes a call that is intended. A run that was given up leaves its end open, and the next one judges it.
func (r *run) makePackCall(ctx context.Context, t tool.Tool, intent loop.Intent, finish loop.Finish) error {
	call := tool.Call{IdempotencyKey: intent.IdempotencyKey, CallID: intent.CallID, Arguments: intent.Arguments}
	if deadline, ok := ctx.Deadline(); ok {
		call.Left.Time = time.Until(deadline)
	}
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	result, err := guardedCall(ctx, t, call)
	finish.DurationMS = time.Since(begin).Milliseconds()
	if err == nil {
		finish.Bytes = int64(len(result.Content))
		return r.packed(finish, loop.Succeeded, "", packedContent(result.Content))
	}
	if ctx.Err() != nil && r.life.Err() != nil {
		return context.Cause(ctx)
	}
	e := tool.AsError(err)
	stack, _ := errors.AsType[panicked](err)
	finish.Stack = string(stack)
	outcome := loop.Failed
	if !t.Effect.Repeatable() && (ctx.Err() != nil || e.Class == tool.Timeout || e.Class == tool.OutcomeUnknown || stack != "") {
		outcome = loop.Unknown
	}
	return errors.Join(r.packed(finish, outcome, e.Class, e.Message), context.Cause(ctx))
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

// panicked is the stack of an adapter that panicked; what it panicked with may hold a secret and is not kept.
type panicked string

// Error says that there was a panic.
func (panicked) Error() string { return "panic in an adapter" }

// guardedCall makes a call within its time, and makes a panic of its adapter an error of that call.
func guardedCall(ctx context.Context, t tool.Tool, c tool.Call) (result tool.Result, err error) {
	timeout := t.Timeout
	if timeout == 0 {
		timeout = tool.DefaultTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if recover() != nil {
			err = &tool.Error{Class: tool.Failed, Message: "the tool failed within Capstan, which is a bug: the turn's journal has the stack", Err: panicked(debug.Stack())}
		}
	}()
	result, err = t.Caller.Call(bounded, c)
	if err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) {
		err = &tool.Error{Class: tool.Timeout, Message: fmt.Sprintf("the tool gave no result within %s", timeout), Err: err}
	}
	return result, err
}
