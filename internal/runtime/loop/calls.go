package loop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// finishCalls makes the calls of a reply that have no result yet, wave by wave, until each has one. The model receives
// the failure of a call as its result; finishCalls returns an error only if the run must stop, for example a *Parked.
//
// No new call begins in two cases:
//  1. The budget is spent: no further request could show the result to the model.
//  2. A call has ended the Turn with a result that fits the schema.
func (run *runner) finishCalls(ctx context.Context, step *Step) (*End, error) {
	number := step.Step
	for open := run.open(step); len(open) > 0; open = run.open(step) {
		if f := run.State.Terminal(ctx, run.Output); f != nil {
			if dropped := run.resultsAfterEnd(number, f, open); len(dropped) > 0 {
				if err := run.Record(dropped...); err != nil {
					return nil, err
				}
				continue
			}
		}
		if err := run.safePoint(ctx); err != nil {
			return nil, err
		}
		if why := run.budgetSpent(); why != "" {
			if open = run.withIntent(number, open); len(open) == 0 {
				return &End{Reason: OverBudget, Message: why}, nil
			}
		}
		if err := run.proceed(ctx, number, open); err != nil {
			return nil, err
		}
	}
	if f := run.State.Terminal(ctx, run.Output); f != nil {
		return &End{Reason: ToolEnded, Message: fmt.Sprintf("the tool %q ended the turn", f.Name)}, nil
	}
	return run.checkTerminalResult(ctx, step)
}

// checkTerminalResult checks the result of a tool that should end the Turn. If the result does not fit the schema,
// checkTerminalResult sends it back to the model. After maxRejections rejections in a Turn, it ends the Turn instead.
// All calls of the reply already have results, so the model can be asked again.
func (run *runner) checkTerminalResult(ctx context.Context, step *Step) (*End, error) {
	f := run.State.TerminalResult()
	if f == nil || run.State.rejections[step.Step] != nil {
		return nil, nil //nolint:nilnil // because the model is asked again
	}
	wrong := run.violations(ctx, f.Text)
	if run.State.schemaRejections() >= maxRejections {
		return &End{Reason: OutputInvalid, Message: fmt.Sprintf(
			"the result of the tool %q, which should end the turn, does not fit spec.output.schema, even after "+
				"%d answers were sent back: %s", f.Name, maxRejections, wrong[0])}, nil
	}
	return nil, run.Record(journal.Record{
		Kind:    journal.OutputRejected,
		Payload: Rejection{Step: step.Step, CallID: f.CallID, Message: resultRejection(wrong)},
	})
}

// resultsAfterEnd returns the results of the calls that had not begun when a tool ended the Turn.
func (run *runner) resultsAfterEnd(step int, by *CallResult, open []openCall) []journal.Record {
	var records []journal.Record
	for _, c := range open {
		if run.State.intent(step, c.call.ID) == nil {
			records = append(records, run.newResult(step, c, nil).failed(Refused, tool.Denied,
				fmt.Sprintf("the tool was not called, because the turn ended with the result of %q", by.Name)))
		}
	}
	return records
}

// withIntent returns the open calls that have an intent.
func (run *runner) withIntent(step int, open []openCall) []openCall {
	return slices.DeleteFunc(open, func(c openCall) bool { return run.State.intent(step, c.call.ID) == nil })
}

// openCall is a call and its position in the reply, from 1.
type openCall struct {
	call     model.ToolCall
	position int
}

// open returns the calls of a reply that have no result, in order.
func (run *runner) open(step *Step) []openCall {
	var all []openCall
	for i, c := range step.Reply.ToolCalls {
		if run.State.result(step.Step, c.ID) == nil {
			all = append(all, openCall{c, i + 1})
		}
	}
	return all
}

// proceed advances at least the first of the open calls: it records a result for the call or requests its approval.
func (run *runner) proceed(ctx context.Context, step int, open []openCall) error {
	p := run.plan(ctx, step, open)
	if len(p.records) == 0 && len(p.wave) == 0 {
		return run.awaitApproval(ctx, step, open)
	}
	if err := run.checkApproved(ctx, step, &p); err != nil {
		return err
	}
	records := p.records
	for _, c := range p.wave {
		records = append(appendRepairs(records, c.repairs), journal.Record{Kind: journal.ToolIntended, Payload: c.intent})
	}
	// Reserve the memory first: a call whose intent is recorded must be made.
	if err := run.hold(sizeOf(records)); err != nil {
		return err
	}
	if err := run.Record(records...); err != nil {
		return err
	}
	return run.runWave(ctx, p.wave)
}

// hold reserves memory for all recorded entries, and for this number of bytes in addition.
func (run *runner) hold(more int64) error {
	if run.Hold == nil {
		return nil
	}
	return run.Hold(more)
}

// sizeOf returns the approximate size of the records of calls, in bytes.
func sizeOf(records []journal.Record) int64 {
	bytes := 0
	for _, r := range records {
		switch p := r.Payload.(type) {
		case CallResult:
			bytes += len(p.Content) + len(p.Text)
			if p.Undo != nil {
				bytes += len(p.Undo.Arguments)
			}
		case Intent:
			bytes += len(p.Arguments)
		case Repair:
			bytes += len(p.Before) + len(p.After)
		}
	}
	return int64(bytes)
}

// plan holds the next actions for the calls of a reply.
type plan struct {
	// records are the results that are known without making the calls: refusals and reused results.
	records []journal.Record
	// wave holds the calls that are made at the same time.
	wave []*planned
}

// planned is a call that passed all gates and will be made.
type planned struct {
	openCall
	tool    *tool.Tool
	intent  Intent
	repairs []Repair
	// signature identifies calls of the same tool with the same arguments.
	signature signature
	// took is the duration of the call so far, in milliseconds.
	took int64
}

// plan passes the open calls through the gates in order until a wave is complete. A wave is a group of neighboring
// read-only calls, or one other call alone. plan stops before a call that waits for a decision, and before a call
// that equals another call of its wave. After a result of a fixed call, plan adds only refusals, because RunFixed
// decides whether the other calls may be made.
//
// If calls have an unknown outcome, plan returns only the results of these calls. The gates must see these results
// before they check the other calls of the reply, because a call that equals one of them must be refused.
func (run *runner) plan(ctx context.Context, step int, open []openCall) plan {
	if results := run.cutOffResults(step, open); len(results) > 0 {
		return plan{records: results}
	}
	var p plan
	for _, c := range open {
		v := run.viewOf(ctx, step, c)
		if len(p.wave) > 0 && v.tool != nil && !run.parallel(v.tool) {
			return p
		}
		total, ofTool := p.uncounted(c.call.Name)
		v.callsMade, v.callsOfTool = v.callsMade+total, v.callsOfTool+ofTool
		v.descendants -= p.reserved()
		got := checkGates(v)
		if run.fixed && len(p.records) > 0 && got.ruling != refused {
			return p // an earlier call may have been refused
		}
		switch got.ruling {
		case waiting:
			return p
		case refused:
			b := run.newResult(step, c, v.tool)
			b.MayHaveActed = run.State.mayHaveActed(step, c.call.ID) // an earlier run may have made the call
			p.records = append(appendRepairs(p.records, got.repairs), b.failed(Refused, got.class, got.message))
		case answered:
			p.records = append(appendRepairs(p.records, got.repairs), run.reused(run.newResult(step, c, v.tool), got))
		case allowed:
			next := run.planCall(v, c, got)
			if slices.ContainsFunc(p.wave, func(o *planned) bool { return o.signature == next.signature }) {
				return p
			}
			if p.wave = append(p.wave, next); !run.parallel(v.tool) {
				return p
			}
		}
	}
	return p
}

// maxCutOffCalls is the number of attempts of a call after which it is not repeated, if the run was cut off during each
// of them. The call itself may be the reason why each run ends. The number does not apply to sub-agents: a result
// without the usage of the sub-agent's Turn would hide that usage, and a repeated call finds that Turn. The
// time limit of the Turn bounds these attempts.
const maxCutOffCalls = 8

// cutOffResults returns the results of the open calls that an earlier run began and that must not be repeated.
func (run *runner) cutOffResults(step int, open []openCall) []journal.Record {
	var results []journal.Record
	for _, c := range open {
		before := run.State.intent(step, c.call.ID)
		switch b := run.newResult(step, c, nil); {
		case before == nil:
		case !run.repeatable(before) || run.own != nil && before.Effect != tool.ReadOnly:
			results = append(results, b.failed(Unknown, tool.OutcomeUnknown,
				unknownPrefix+"the run was interrupted during the call"+unknownSuffix))
		case run.State.cutOffAttempts(step, c.call.ID) >= maxCutOffCalls && !run.callsSubAgent(before):
			b.MayHaveActed = run.State.mayHaveActed(step, c.call.ID)
			results = append(results, b.failed(Failed, tool.OutcomeUnknown, fmt.Sprintf(
				"the call was given up after %d attempts, because the run was interrupted again and again", maxCutOffCalls)))
		}
	}
	return results
}

// uncounted returns the number of calls in the wave that the state does not count yet: of all tools, and of the tool
// with this name. The state already counts a repeated call, because its first intent is in the journal.
func (p plan) uncounted(name string) (total, ofTool int) {
	for _, c := range p.wave {
		if c.intent.Attempt > 1 {
			continue
		}
		total++
		if c.call.Name == name {
			ofTool++
		}
	}
	return total, ofTool
}

// reserved returns the number of Turns that the calls of the wave may create and that the state does not count yet.
func (p plan) reserved() int {
	n := 0
	for _, c := range p.wave {
		if c.intent.Attempt == 1 {
			n += c.intent.Descendants
		}
	}
	return n
}

// parallel reports whether calls of a tool may be made at the same time as other calls.
func (run *runner) parallel(t *tool.Tool) bool {
	return !run.Policy.Sequential && effectOf(t) == tool.ReadOnly
}

// viewOf returns the view of a call that the gates check.
func (run *runner) viewOf(ctx context.Context, step int, c openCall) view {
	v := view{
		ctx: ctx, step: step, call: c.call, own: run.own, state: run.State, limits: run.Limits, policy: run.Policy,
		callsMade: run.State.ToolCalls(), callsOfTool: run.State.callsOf(c.call.Name),
		alreadyBegun: run.State.intent(step, c.call.ID) != nil,
		descendants:  run.Limits.MaxDescendants - run.State.Descendants(),
	}
	if i := run.toolNamed(c.call.Name); i >= 0 {
		v.tool = &run.callable()[i]
	} else {
		v.tools = run.offeredTools()
	}
	if deadline, ok := ctx.Deadline(); ok {
		v.left = new(time.Until(deadline))
	}
	return v
}

// offeredTools returns the tools that the prompt offered to the model.
func (run *runner) offeredTools() []tool.Tool {
	if run.Offered == nil {
		return run.callable()
	}
	var all []tool.Tool
	for _, t := range run.callable() {
		if run.Offered(t.Name) {
			all = append(all, t)
		}
	}
	return all
}

// planCall returns the planned call, with its intent, for a call that passed all gates.
func (run *runner) planCall(v view, c openCall, got verdict) *planned {
	next := &planned{openCall: c, tool: v.tool, repairs: got.repairs, signature: signatureOf(v.tool.Name, got.arguments), intent: Intent{
		Step: v.step, CallID: c.call.ID, Name: v.tool.Name, Arguments: got.arguments, Effect: effectOf(v.tool), Attempt: 1,
	}}
	before := run.State.intent(v.step, c.call.ID)
	if before == nil {
		next.intent.IdempotencyKey = run.keyOf(v.step, c.call.ID)
	} else { // an older version may have made the key
		next.intent.Attempt, next.intent.IdempotencyKey = before.Attempt+1, before.IdempotencyKey
	}
	next.intent.Descendants = descendantsFor(v, before)
	return next
}

// keyOf returns the idempotency key of a call that has not begun.
func (run *runner) keyOf(step int, callID string) string {
	if run.Key != nil {
		if key := run.Key(callID); key != "" {
			return key
		}
	}
	return run.newKey(step, callID)
}

// newKey returns a new idempotency key for a call. The UID of the Turn and the ID of the call do not identify the call:
// local runs with the same inputs have the same UID, a Turn whose journal is lost may run again, and endpoints use the
// same IDs again. So the key ends in a digest of the nonce, which each journal has anew. The key does not contain the
// nonce itself, because a tool server that knows it could forge the end of a fence.
func (run *runner) newKey(step int, callID string) string {
	key := fmt.Sprintf("%s/%d/%s", run.TurnUID, step, callID)
	digest := sha256.Sum256([]byte(run.Nonce + "/" + key))
	return key + "/" + hex.EncodeToString(digest[:8])
}

// appendRepairs appends records of repairs to records.
func appendRepairs(records []journal.Record, repairs []Repair) []journal.Record {
	for _, r := range repairs {
		records = append(records, journal.Record{Kind: journal.ToolRepaired, Payload: r})
	}
	return records
}

// newResult returns a builder for the result of a call. t is nil if the called tool does not exist.
func (run *runner) newResult(step int, c openCall, t *tool.Tool) resultBuilder {
	b := resultBuilder{
		CallResult: CallResult{Step: step, CallID: c.call.ID, Name: c.call.Name}, position: c.position, nonce: run.Nonce,
		note:    repairNote(run.State.repairsOf(step, c.call.ID), run.Nonce),
		trusted: t != nil && t.Trusted, ends: t != nil && t.EndsTurn, wantsJSON: run.Output != nil,
		redact: run.redacted, artifactPrefix: run.ArtifactPrefix,
	}
	if t != nil {
		b.role = t.Role
	}
	if run.own != nil {
		b.convert = run.own.Convert
	}
	return b
}

// reused returns the record of a call that reuses the result of an earlier identical call. It removes the note about
// repairs of the earlier call's arguments, because that note does not apply to this call.
func (run *runner) reused(b resultBuilder, got verdict) journal.Record {
	before := got.known
	b.Outcome = Reused
	b.Content = strings.TrimPrefix(before.Content, repairNote(run.State.repairsOf(before.Step, before.CallID), run.Nonce))
	if len(got.repairs) > 0 {
		b.note = repairNote(append(run.State.repairsOf(b.Step, b.CallID), got.repairs...), run.Nonce)
	}
	if content := b.note + b.Content; utf8.RuneCountInString(content) <= MaxToolMessage {
		b.Content = content
	}
	b.Bytes, b.Artifact, b.ArtifactName = before.Bytes, before.Artifact, before.ArtifactName
	return journal.Record{Kind: journal.ToolFinished, Payload: b.CallResult}
}

// repeatable reports whether an interrupted call may be repeated. Both the effect recorded in its intent and the
// current effect of the tool must allow it. A tool that no longer exists cannot be called, so only the recorded
// effect counts.
func (run *runner) repeatable(before *Intent) bool {
	i := run.toolNamed(before.Name)
	return before.Effect.Repeatable() && (i < 0 || effectOf(&run.callable()[i]).Repeatable())
}

// callsSubAgent reports whether an interrupted call is the call of a sub-agent.
func (run *runner) callsSubAgent(before *Intent) bool {
	i := run.toolNamed(before.Name)
	return i >= 0 && isSubAgent(&run.callable()[i])
}

// callable returns the tools that may be called.
func (run *runner) callable() []tool.Tool {
	if run.tools == nil && run.Tools != nil {
		run.tools = run.Tools()
	}
	return run.tools
}

// toolNamed returns the index of a tool in callable, or -1 if no tool has this name.
func (run *runner) toolNamed(name string) int {
	return slices.IndexFunc(run.callable(), func(t tool.Tool) bool { return t.Name == name })
}

func effectOf(t *tool.Tool) tool.Effect {
	if t.Effect == "" {
		return tool.Destructive
	}
	return t.Effect
}
