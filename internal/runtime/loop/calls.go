package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// maxToolChars bounds what the model is told of an output, in bytes; an artifact has it whole.
const maxToolChars = 12_000

// maxOutput bounds what is kept of an output, in bytes; the rest of a longer one is lost.
const maxOutput = 32 << 20

// finishCalls makes the calls that a reply asks for and that have not ended yet, one after another, so that each has an
// answer. A failed call is data for the model; only what stops the run is an error. Once the budget is spent no call is begun:
// no request could tell the model of it.
func (in Input) finishCalls(ctx context.Context, step *Step) (*End, error) {
	for _, c := range step.Reply.ToolCalls {
		if in.State.finish(step.Step, c.ID) != nil {
			continue
		}
		if err := in.safePoint(ctx); err != nil {
			return nil, err
		}
		if in.State.intent(step.Step, c.ID) == nil {
			if why := in.budgetSpent(); why != "" {
				return &End{Reason: OverBudget, Message: why}, nil
			}
		}
		if err := in.finishCall(ctx, step.Step, c); err != nil {
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // because all calls have an answer, and the loop goes on
}

// finishCall makes one call, or says why not. The intent is in the journal before the call is made, and its end before
// anything follows from it. An intent without an end is that of a run that was cut off in between: such a call is made
// again if that does no harm, and else its outcome stays unknown.
func (in Input) finishCall(ctx context.Context, step int, c model.ToolCall) error {
	finish := Finish{Step: step, CallID: c.ID, Name: c.Name}
	before := in.State.intent(step, c.ID)
	if before != nil && !in.repeatable(before) {
		return in.Record(finish.failed(Unknown, tool.OutcomeUnknown,
			"the outcome of this call is unknown: the run was cut off while the call was under way. It may have been done; it is not made again. Find out before you ask for it once more."))
	}
	t, arguments, refusal := in.gate(c, before != nil)
	if refusal != nil {
		return in.Record(finish.failed(Refused, refusal.Class, refusal.Message))
	}
	intent := Intent{
		Step: step, CallID: c.ID, Name: c.Name, Arguments: arguments, Effect: effectOf(t), Attempt: 1,
		IdempotencyKey: fmt.Sprintf("%s/%d/%s", in.TurnUID, step, c.ID),
	}
	if before != nil {
		intent.Attempt = before.Attempt + 1
	}
	if err := in.Record(journal.Record{Kind: journal.ToolIntended, Payload: intent}); err != nil {
		return err
	}
	return in.call(ctx, t, intent, finish)
}

// repeatable says whether a call that was under way may be made again: if that did no harm by what was known then, nor does
// by what is known now. Of a tool that is gone nothing is known now, and it cannot be called.
func (in Input) repeatable(before *Intent) bool {
	i := in.toolNamed(before.Name)
	return before.Effect.Repeatable() && (i < 0 || effectOf(&in.Tools[i]).Repeatable())
}

// toolNamed is the place of a tool, -1 if there is none of that name.
func (in Input) toolNamed(name string) int {
	return slices.IndexFunc(in.Tools, func(t tool.Tool) bool { return t.Name == name })
}

// call makes a call that is intended, unless the Turn has ended while the intent was written, which may take long.
func (in Input) call(ctx context.Context, t *tool.Tool, intent Intent, finish Finish) error {
	// The context is looked at first, here and below: one that has ended because the run was given up says so from then on,
	// but one that had not ended a moment ago may have by now.
	if ctx.Err() != nil {
		if in.Abandoned() {
			return context.Cause(ctx)
		}
		return in.Record(finish.failed(Refused, tool.Denied, "the tool was not called: the turn ended before"))
	}
	begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	result, err := callGuarded(ctx, t, tool.Call{IdempotencyKey: intent.IdempotencyKey, Arguments: intent.Arguments})
	finish.DurationMS = time.Since(begin).Milliseconds()
	if err == nil {
		return in.Record(finish.succeeded(result))
	}
	over := ctx.Err() != nil
	if over && in.Abandoned() {
		return context.Cause(ctx) // the intent stays open, and the next run judges it
	}
	return in.Record(finish.failure(over, effectOf(t), err))
}

// failure is the end of a call that gave no result. One that does harm may have been done all the same, unless the tool has
// said what became of it.
func (f Finish) failure(over bool, effect tool.Effect, err error) journal.Record {
	const unknown = "the outcome of this call is unknown: "
	e := tool.AsError(err)
	f.Stack = stackOf(err)
	switch {
	case effect.Repeatable():
		return f.failed(Failed, e.Class, e.Message)
	case over:
		return f.failed(Unknown, tool.OutcomeUnknown, unknown+"the turn ended while the call was under way")
	case e.Class == tool.Timeout || e.Class == tool.OutcomeUnknown:
		return f.failed(Unknown, e.Class, unknown+e.Message+findOut)
	case f.Stack != "":
		return f.failed(Unknown, tool.OutcomeUnknown, unknown+e.Message+findOut)
	}
	return f.failed(Failed, e.Class, e.Message)
}

// findOut is what a model is told to do about a call of unknown outcome.
const findOut = ". It may have been done. Find out before you ask for it once more."

func effectOf(t *tool.Tool) tool.Effect {
	if t.Effect == "" {
		return tool.Destructive
	}
	return t.Effect
}

// gate says whether a call may be made, and with which arguments.
func (in Input) gate(c model.ToolCall, again bool) (*tool.Tool, json.RawMessage, *tool.Error) {
	i := in.toolNamed(c.Name)
	if i < 0 {
		return nil, nil, &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf("there is no tool %q: %s", c.Name, others(in.Tools))}
	}
	if !again && in.State.ToolCalls() >= in.Limits.MaxToolCalls {
		return nil, nil, &tool.Error{Class: tool.Denied, Message: fmt.Sprintf(
			"the turn has made all of the %d calls of tools that it may make: answer from what is known", in.Limits.MaxToolCalls)}
	}
	arguments := strings.TrimSpace(c.Arguments)
	if arguments == "" {
		arguments = "{}"
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(arguments), &object); err != nil || object == nil {
		return nil, nil, &tool.Error{Class: tool.InvalidArguments, Message: "the arguments must be a JSON object"}
	}
	return &in.Tools[i], json.RawMessage(arguments), nil
}

func others(tools []tool.Tool) string {
	if len(tools) == 0 {
		return "there is none at all, answer without"
	}
	all := make([]string, 0, len(tools))
	for _, t := range tools {
		all = append(all, t.Name)
	}
	return "use one of " + strings.Join(all, ", ")
}

// callGuarded makes a call within its time, and makes a panic of its adapter an error of that call.
func callGuarded(ctx context.Context, t *tool.Tool, c tool.Call) (result tool.Result, err error) {
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

func (f Finish) failed(o Outcome, class tool.Class, message string) journal.Record {
	f.Outcome, f.Class = o, class
	return f.ended(fmt.Sprintf("error (%s): %s", class, message))
}

func (f Finish) succeeded(r tool.Result) journal.Record {
	f.Outcome, f.Bytes = Succeeded, int64(len(r.Content))
	return f.ended(r.Content)
}

// ended keeps what is too long for the model as an artifact.
func (f Finish) ended(output string) journal.Record {
	whole := int64(len(output))
	output = output[:min(len(output), maxOutput)]
	f.Content = strings.ToValidUTF8(output, "\uFFFD")
	if len(f.Content) <= maxToolChars {
		return journal.Record{Kind: journal.ToolFinished, Payload: f}
	}
	a := journal.NewArtifact([]byte(output))
	half := maxToolChars / 2
	head, tail := strings.ToValidUTF8(f.Content[:half], ""), strings.ToValidUTF8(f.Content[len(f.Content)-half:], "")
	f.Artifact, f.Bytes = a.SHA256, whole
	f.Content = fmt.Sprintf("%s\n[... %d bytes are left out here ...]\n%s", head, len(f.Content)-len(head)-len(tail), tail)
	return journal.Record{Kind: journal.ToolFinished, Payload: f, Artifacts: []journal.Artifact{a}}
}
