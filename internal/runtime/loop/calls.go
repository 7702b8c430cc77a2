package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// finishCalls makes the calls that a reply asks for and that have not ended yet, wave by wave, so that each has an answer. A
// failed call is data for the model; only what stops the run is an error, such as a *Parked. Once the budget is spent no call
// is begun: no request could tell the model of it. Nor is any once a call has ended the Turn with a result that fits, which is the end.
func (in *Input) finishCalls(ctx context.Context, step *Step) (*End, error) {
	number := step.Step
	for open := in.open(step); len(open) > 0; open = in.open(step) {
		if f := in.State.Terminal(in.Output); f != nil {
			if dropped := in.dropped(number, f, open); len(dropped) > 0 {
				if err := in.Record(dropped...); err != nil {
					return nil, err
				}
				continue
			}
		}
		if err := in.safePoint(ctx); err != nil {
			return nil, err
		}
		if why := in.budgetSpent(); why != "" {
			if open = in.begun(number, open); len(open) == 0 {
				return &End{Reason: OverBudget, Message: why}, nil
			}
		}
		if err := in.proceed(ctx, number, open); err != nil {
			return nil, err
		}
	}
	if f := in.State.Terminal(in.Output); f != nil {
		return &End{Reason: ToolEnded, Message: fmt.Sprintf("the tool %q has ended the turn", f.Name)}, nil
	}
	return in.judgeResult(step)
}

// judgeResult sends the result of a tool that was to end the Turn and does not fit the schema of the answer back to the model, as
// often as an answer is sent back; then it is the end. All calls of the reply have an answer, so the loop goes on.
func (in *Input) judgeResult(step *Step) (*End, error) {
	f := in.State.TerminalResult()
	if f == nil || in.State.rejections[step.Step] != nil {
		return nil, nil //nolint:nilnil // because the model is asked again
	}
	wrong := in.violations(f.Text)
	if len(in.State.Rejections) >= maxRejections {
		return &End{Reason: OutputInvalid, Message: fmt.Sprintf(
			"the result of the tool %q, which was to end the turn, does not fit spec.output.schema, after %d answers were sent back: %s", f.Name, maxRejections, wrong[0])}, nil
	}
	return nil, in.Record(journal.Record{Kind: journal.OutputRejected, Payload: Rejection{Step: step.Step, CallID: f.CallID, Message: resultRejection(wrong)}})
}

// dropped are the ends of the open calls that were not begun when a tool ended the Turn.
func (in *Input) dropped(step int, by *Finish, open []placed) []journal.Record {
	var records []journal.Record
	for _, c := range open {
		if in.State.intent(step, c.call.ID) == nil {
			records = append(records, in.ending(step, c, nil).failed(Refused, tool.Denied, fmt.Sprintf("the turn has ended with the result of %q", by.Name)))
		}
	}
	return records
}

// begun are those of the open calls that have an intent.
func (in *Input) begun(step int, open []placed) []placed {
	return slices.DeleteFunc(open, func(c placed) bool { return in.State.intent(step, c.call.ID) == nil })
}

// placed is a call with its place in the reply, from 1.
type placed struct {
	call  model.ToolCall
	place int
}

// open are the calls of a reply that have not ended, in order.
func (in *Input) open(step *Step) []placed {
	var all []placed
	for i, c := range step.Reply.ToolCalls {
		if in.State.finish(step.Step, c.ID) == nil {
			all = append(all, placed{c, i + 1})
		}
	}
	return all
}

// proceed brings the first of the open calls at least one move further: to its end, or to the people who decide about it.
func (in *Input) proceed(ctx context.Context, step int, open []placed) error {
	p := in.plan(ctx, step, open)
	if len(p.records) == 0 && len(p.wave) == 0 {
		return in.await(ctx, step, open)
	}
	if err := in.release(ctx, step, &p); err != nil {
		return err
	}
	records := p.records
	for _, c := range p.wave {
		records = append(repaired(records, c.repairs), journal.Record{Kind: journal.ToolIntended, Payload: c.intent})
	}
	if err := in.Record(records...); err != nil {
		return err
	}
	return in.run(ctx, p.wave)
}

// plan is what happens next to the calls of a reply.
type plan struct {
	// records of what is known without a call: refusals, and results of before.
	records []journal.Record
	// wave of calls that are made together.
	wave []*planned
}

// planned is a call that will be made.
type planned struct {
	placed
	tool    *tool.Tool
	intent  Intent
	repairs []Repair
	// signature of the call, by which another one is the same.
	signature signature
	// took is how long it took by now, in milliseconds.
	took int64
}

// plan gates the open calls in order until a wave is complete: neighbouring calls that only read, or any other call alone. It
// stops before a call that waits for a decision, and before one that is the same as another of its wave.
//
// Calls whose outcome is unknown end first and by themselves. The gates must see these ends before they judge the other calls of
// the reply, because a call that equals one of unknown outcome must be refused.
func (in *Input) plan(ctx context.Context, step int, open []placed) plan {
	if ends := in.cutOff(step, open); len(ends) > 0 {
		return plan{records: ends}
	}
	var p plan
	for _, c := range open {
		v := in.look(ctx, step, c)
		if len(p.wave) > 0 && v.tool != nil && !in.parallel(v.tool) {
			return p
		}
		made, madeOf := p.uncounted(c.call.Name)
		v.made, v.madeOf = v.made+made, v.madeOf+madeOf
		v.descendants -= p.reserved()
		got := judge(v)
		switch got.ruling {
		case waiting:
			return p
		case refused:
			p.records = append(repaired(p.records, got.repairs), in.ending(step, c, v.tool).failed(Refused, got.class, got.message))
		case answered:
			p.records = append(repaired(p.records, got.repairs), in.reused(in.ending(step, c, v.tool), got))
		case allowed:
			next := in.intend(v, c, got)
			if slices.ContainsFunc(p.wave, func(o *planned) bool { return o.signature == next.signature }) {
				return p
			}
			if p.wave = append(p.wave, next); !in.parallel(v.tool) {
				return p
			}
		}
	}
	return p
}

// cutOff returns the ends of the open calls that a run before has begun and that must not be made again.
func (in *Input) cutOff(step int, open []placed) []journal.Record {
	var ends []journal.Record
	for _, c := range open {
		if before := in.State.intent(step, c.call.ID); before != nil && !in.repeatable(before) {
			ends = append(ends, in.ending(step, c, nil).failed(Unknown, tool.OutcomeUnknown, unknown+"the run was cut off while the call was under way"+findOut))
		}
	}
	return ends
}

// uncounted returns how many calls of the wave the state does not count yet, of all tools and of one. The state counts a call
// that is made again, because its first intent is in the journal.
func (p plan) uncounted(name string) (all, of int) {
	for _, c := range p.wave {
		if c.intent.Attempt > 1 {
			continue
		}
		all++
		if c.call.Name == name {
			of++
		}
	}
	return all, of
}

// reserved is how many Turns the calls of the wave may create that the state does not count yet.
func (p plan) reserved() int {
	n := 0
	for _, c := range p.wave {
		if c.intent.Attempt == 1 {
			n += c.intent.Descendants
		}
	}
	return n
}

// parallel says whether a tool's calls may be made beside others.
func (in *Input) parallel(t *tool.Tool) bool {
	return !in.Policy.Sequential && effectOf(t) == tool.ReadOnly
}

// look is what gates are shown of a call.
func (in *Input) look(ctx context.Context, step int, c placed) view {
	v := view{
		step: step, call: c.call, state: in.State, limits: in.Limits, policy: in.Policy,
		made: in.State.ToolCalls(), madeOf: in.State.callsOf(c.call.Name), again: in.State.intent(step, c.call.ID) != nil,
		descendants: in.Limits.MaxDescendants - in.State.Descendants(),
	}
	if i := in.toolNamed(c.call.Name); i >= 0 {
		v.tool = &in.callable()[i]
	} else {
		v.tools = in.told()
	}
	if deadline, ok := ctx.Deadline(); ok {
		v.left = new(time.Until(deadline))
	}
	return v
}

// told are the tools that the model was told of.
func (in *Input) told() []tool.Tool {
	if in.Offered == nil {
		return in.callable()
	}
	var all []tool.Tool
	for _, t := range in.callable() {
		if in.Offered(t.Name) {
			all = append(all, t)
		}
	}
	return all
}

// intend is a call that has passed all gates.
func (in *Input) intend(v view, c placed, got verdict) *planned {
	next := &planned{placed: c, tool: v.tool, repairs: got.repairs, signature: sign(v.tool.Name, got.arguments), intent: Intent{
		Step: v.step, CallID: c.call.ID, Name: v.tool.Name, Arguments: got.arguments, Effect: effectOf(v.tool), Attempt: 1,
		IdempotencyKey: fmt.Sprintf("%s/%d/%s", in.TurnUID, v.step, c.call.ID),
	}}
	before := in.State.intent(v.step, c.call.ID)
	if before != nil {
		next.intent.Attempt = before.Attempt + 1
	}
	next.intent.Descendants = reserve(v, before)
	return next
}

// repaired adds repairs to what is journalled.
func repaired(records []journal.Record, repairs []Repair) []journal.Record {
	for _, r := range repairs {
		records = append(records, journal.Record{Kind: journal.ToolRepaired, Payload: r})
	}
	return records
}

// ending of a call of a tool, which is nil where there is none.
func (in *Input) ending(step int, c placed, t *tool.Tool) ending {
	return ending{
		Finish: Finish{Step: step, CallID: c.call.ID, Name: c.call.Name}, place: c.place, nonce: in.Nonce,
		note:    changed(in.State.repairsOf(step, c.call.ID), in.Nonce),
		trusted: t != nil && t.Trusted, ends: t != nil && t.EndsTurn, redact: in.redacted,
	}
}

// reused gives the recorded result of the same call once more. The word of a change of that call's arguments is not of this one.
func (in *Input) reused(e ending, got verdict) journal.Record {
	before := got.known
	e.Outcome = Reused
	e.Content = strings.TrimPrefix(before.Content, changed(in.State.repairsOf(before.Step, before.CallID), in.Nonce))
	if len(got.repairs) > 0 {
		e.note = changed(append(in.State.repairsOf(e.Step, e.CallID), got.repairs...), in.Nonce)
	}
	if content := e.note + e.Content; utf8.RuneCountInString(content) <= MaxToolMessage {
		e.Content = content
	}
	e.Bytes, e.Artifact, e.ArtifactName = before.Bytes, before.Artifact, before.ArtifactName
	return journal.Record{Kind: journal.ToolFinished, Payload: e.Finish}
}

// repeatable says whether a call that was under way may be made again: if that did no harm by what was known then, nor does
// by what is known now, which is in Tools: the stricter of both. Of a tool that is not among them nothing is known now, and it
// cannot be called.
func (in *Input) repeatable(before *Intent) bool {
	i := in.toolNamed(before.Name)
	return before.Effect.Repeatable() && (i < 0 || effectOf(&in.callable()[i]).Repeatable())
}

// callable are the tools that may be called.
func (in *Input) callable() []tool.Tool {
	if in.tools == nil && in.Tools != nil {
		in.tools = in.Tools()
	}
	return in.tools
}

// toolNamed is the place of a tool among those that may be called, -1 if there is none of that name.
func (in *Input) toolNamed(name string) int {
	return slices.IndexFunc(in.callable(), func(t tool.Tool) bool { return t.Name == name })
}

func effectOf(t *tool.Tool) tool.Effect {
	if t.Effect == "" {
		return tool.Destructive
	}
	return t.Effect
}
