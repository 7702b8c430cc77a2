package turn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Undo makes a Turn undo calls of another Turn. Such a Turn asks no model and has no prompt.
type Undo struct {
	// TurnUID is the UID of the other Turn, whose journal has the compensations. Its object may be gone.
	TurnUID string
	// Calls are the IDs of the calls to undo. If it is empty, all calls are undone. Calls that are not selected count
	// as not undone in the result.
	Calls []string
}

// undoField is the field that errors about the Turn to undo mention.
const undoField = "Turn spec.undo"

// planUndo determines and records, once, the calls that undo the calls of the other Turn.
func (r *run) planUndo(ctx context.Context) error {
	if err := r.tighten(ctx); err != nil {
		return err
	}
	if r.replayed.undo != nil {
		return nil
	}
	plan, err := r.readUndo(ctx)
	if err != nil {
		return err
	}
	if err := r.memory.hold(plan.size()); err != nil {
		return err
	}
	exposure := tool.Exposure{Nonce: rand.Text(), EffectsDeclared: true}
	if r.in.Toolbox != nil && plan.Possible() > 0 {
		offers, err := r.in.Toolbox.Offers(ctx)
		if err != nil {
			return fmt.Errorf("failed to list the agent's tools: %w", err)
		}
		exposure.Tools = compensationTools(ctx, plan, offers, r.in.Tools)
	}
	fixed := plan.fixedCalls(exposure.Tools)
	return r.record(journal.Record{Kind: journal.UndoPlanned, Payload: undoPlanned{loop.FixedCalls{Calls: fixed}, *plan, exposure}})
}

// readUndo reads the journal of the other Turn. A journal of another namespace or another Agent gives the same error as
// a missing journal, so that a user cannot find out which journals exist.
func (r *run) readUndo(ctx context.Context) (*UndoPlan, error) {
	uid := r.in.Undo.TurnUID
	reader := NewUndoReader()
	err := r.readOtherJournal(ctx, uid, reader)
	if err != nil {
		return nil, err
	}
	if err := r.findAbandoned(ctx, reader); err != nil {
		return nil, err
	}
	plan := reader.Plan(uid)
	switch {
	case plan.Name == "", plan.Namespace != r.in.Namespace, plan.Agent != r.in.About.Agent:
		return nil, endsTurn(invalid.Field(undoField+".turnUID", "there is no journal of a Turn %q of this namespace and this Agent: "+
			"it may have been deleted, or the Turn is of another Agent", uid))
	case !plan.Ended:
		return nil, endsTurn(invalid.Field(undoField+".turnUID", "the Turn %q has not ended: wait for its end, or cancel it", plan.Name))
	}
	if err := plan.Select(r.in.Undo.Calls); err != nil {
		return nil, endsTurn(invalid.Field(undoField+".calls", "%s", err))
	}
	reader.calls, r.marks = nil, reader // only the marks are still needed
	return plan, nil
}

// findAbandoned finds the compensations that other Turns have begun and will not end.
func (r *run) findAbandoned(ctx context.Context, reader *UndoReader) error {
	return reader.FindAbandoned(func(m UndoMark) (bool, error) { return r.hasEnded(ctx, &m) })
}

// hasEnded reports whether the Turn of a mark has ended or is gone. This Turn has not.
func (r *run) hasEnded(ctx context.Context, m *UndoMark) (bool, error) {
	switch {
	case m.TurnUID == r.in.UID:
		return false, nil
	case r.in.HasEnded != nil:
		return r.in.HasEnded(ctx, m.Turn, m.TurnUID)
	}
	open, err := IsOpen(r.engine.Journal.Read(ctx, m.TurnUID, 0))
	return !open, err
}

// readOtherJournal passes the entries of the other Turn's journal to a reader. It loads the payloads that the reader
// needs, one at a time.
func (r *run) readOtherJournal(ctx context.Context, uid string, reader *UndoReader) error {
	for e, err := range r.engine.Journal.Read(ctx, uid, 0) {
		if err != nil {
			return fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if err := r.readEntry(ctx, uid, &e, reader); err != nil {
			return err
		}
	}
	return nil
}

// readEntry passes one entry to a reader, with its payload if the reader needs it.
func (r *run) readEntry(ctx context.Context, uid string, e *journal.Entry, reader *UndoReader) error {
	if !reader.needsPayload(e.Kind) {
		reader.skip(e)
		return nil
	}
	release, err := loadPayload(ctx, r.engine.Journal, uid, e, r.in.ReserveRead)
	defer release()
	if err == nil {
		err = reader.Apply(*e)
	}
	if err != nil && (errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer)) {
		return endsTurn(invalid.Field(undoField+".turnUID", "the journal of the Turn cannot be read: %s", err))
	}
	return err
}

// compensationTools returns the tools that undo calls. The patterns in an Agent's allow do not apply, because they
// restrict only a model. Each call requires approval.
func compensationTools(ctx context.Context, plan *UndoPlan, offers []tool.Offer, own []tool.Tool) []tool.Tool {
	needed := map[tool.Source]bool{}
	for i := range plan.Calls {
		if c := &plan.Calls[i]; c.State == UndoPossible {
			needed[tool.Source{Server: c.Server, Name: c.Tool}] = true
		}
	}
	selected := make([]tool.Offer, 0, len(offers))
	for _, o := range offers {
		if o.Server == "" {
			continue
		}
		o.Allow, o.MaxCalls, o.RequireApproval = nil, 0, []string{"*"}
		o.Tools = slices.DeleteFunc(slices.Clone(o.Tools), func(t tool.Tool) bool {
			return !needed[tool.Source{Server: o.Server, Name: t.Name}]
		})
		selected = append(selected, o)
	}
	reserved := tool.Reserved()
	for _, t := range own {
		reserved = append(reserved, t.Name)
	}
	tools := tool.Expose(ctx, selected, reserved)
	for i := range tools {
		tools[i].EndsTurn, tools[i].Compensation = false, nil
	}
	return tools
}

// fixedCalls returns the calls that the loop makes for the possible compensations. If a compensation has no usable
// tool, fixedCalls marks it as impossible.
func (p *UndoPlan) fixedCalls(tools []tool.Tool) []model.ToolCall {
	var fixed []model.ToolCall
	for i := range p.Calls {
		c := &p.Calls[i]
		if c.State != UndoPossible {
			continue
		}
		at := slices.IndexFunc(tools, func(t tool.Tool) bool { return t.Source.Server == c.Server && t.Source.Name == c.Tool })
		switch {
		case at < 0:
			c.State, c.Reason = UndoImpossible, fmt.Sprintf("the Agent has no usable tool %q of ToolServer %q now: the server may not be "+
				"reachable, or has changed", c.Tool, c.Server)
		case c.UID != "" && tools[at].Source.UID != c.UID:
			c.State, c.Reason = UndoImpossible, fmt.Sprintf("the ToolServer %q was replaced by another one with the same name", c.Server)
		default:
			fixed = append(fixed, model.ToolCall{ID: c.CallID, Name: tools[at].Name, Arguments: string(c.Arguments)})
		}
	}
	for i := range p.Calls {
		p.Calls[i].Arguments = nil // the fixed calls have them
	}
	return fixed
}

// undoPlanned is the payload of the entry for the plan of a Turn that undoes another Turn.
type undoPlanned struct {
	loop.FixedCalls
	UndoPlan
	// Exposure has the tools of the calls, with their effects when the plan was made.
	Exposure tool.Exposure `json:"exposure"`
}

// copyOutcomes copies outcomes of compensations from the journal of the other Turn into the journal of this Turn. An
// earlier run may have been killed between the two writes, or before it called the tool, and a third Turn may have
// undone the call since. Without the copy, a compensation that succeeded would be made again or count as not undone. If
// the other journal is gone, the rules for calls without a result apply.
func (r *run) copyOutcomes() error {
	p := r.replayed.undo
	if p == nil {
		return nil
	}
	var open []loop.CallState
	for c := range r.replayed.loop.Calls {
		if c.Intent != nil && c.Result == nil {
			open = append(open, c)
		}
	}
	if len(open) == 0 {
		return nil
	}
	reader, err := r.readMarks(r.life)
	if err != nil {
		if _, damaged := errors.AsType[*preparationError](err); damaged {
			return nil
		}
		return err
	}
	var ends []journal.Record
	for i := range open {
		c := &open[i]
		target := p.call(c.Call.ID)
		if target == nil {
			continue
		}
		m := reader.marks[undoKey{target.Step, target.CallID}]
		switch {
		case m == nil, !m.ended:
		case m.Undone && m.TurnUID != r.in.UID:
			ends = append(ends, r.replayed.loop.LostResult(c, m.result(), nil, r.exposed().Nonce))
		case m.TurnUID != r.in.UID:
		case m.Undone:
			ends = append(ends, r.replayed.loop.LostResult(c, lostResult, nil, r.exposed().Nonce))
		case !c.Intent.Effect.Repeatable(): // repeatable calls are made again
			ends = append(ends, r.replayed.loop.LostResult(c, tool.Result{}, errMarkedFailed, r.exposed().Nonce))
		}
	}
	if len(ends) == 0 {
		return nil
	}
	return r.record(ends...)
}

// lostResult is the result of a compensation that succeeded.
var lostResult = tool.Result{Content: "The call succeeded. Its result was lost because the run was interrupted."}

// errMarkedFailed is the error of a compensation that certainly had no effect.
var errMarkedFailed = &tool.Error{
	Class: tool.Failed, Message: "the call failed without an effect, and its error was lost because the run was interrupted",
}

// UndoneCall is the outcome for one call, as the result of the Turn lists it.
type UndoneCall struct {
	CallID string `json:"callID"`
	Tool   string `json:"tool"`
	// By is the tool that undoes the call. It is empty if there is none.
	By string `json:"by,omitempty"`
	// Undone is true if the call is undone now.
	Undone bool `json:"undone"`
	// Reason says why the call is not undone, or which other Turn has undone it.
	Reason string `json:"reason,omitempty"`
}

// undoneCalls returns the outcome for each call of the plan.
func (r *run) undoneCalls() []UndoneCall {
	p := r.replayed.undo
	all := make([]UndoneCall, 0, len(p.Calls))
	results := r.resultsOfUndo()
	for i := range p.Calls {
		c := &p.Calls[i]
		call := UndoneCall{CallID: c.CallID, Tool: c.Name, By: c.Tool, Undone: c.State == UndoDone, Reason: c.Reason}
		if c.State == UndoPossible {
			call.Undone, call.Reason = outcomeOfUndo(c.CallID, results)
		}
		all = append(all, call)
	}
	return all
}

// maxUndoReason is the maximum length of the reason of one call, in characters.
const maxUndoReason = 300

// resultsOfUndo returns the results of all compensations that have begun. One without a result receives it at the end
// of the Turn, after the report of the undo.
func (r *run) resultsOfUndo() []loop.CallResult {
	results := slices.Clip(r.replayed.loop.CallResults)
	for _, f := range r.resultsOfOpenCalls() {
		if f.Outcome != loop.Refused {
			results = append(results, f)
		}
	}
	return results
}

// outcomeOfUndo reports whether a call of the plan is undone. If it is not, outcomeOfUndo also returns the reason, and
// if another Turn has undone it, which Turn that was.
func outcomeOfUndo(callID string, results []loop.CallResult) (undone bool, reason string) {
	i := slices.IndexFunc(results, func(f loop.CallResult) bool { return f.Step == 1 && f.CallID == callID })
	if i < 0 {
		return false, "the turn ended before this call was undone"
	}
	f := &results[i]
	switch {
	case f.UndoneBy != "":
		return true, undoneBy(f.UndoneBy)
	case f.Outcome == loop.Succeeded, f.Outcome == loop.Reused:
		return true, ""
	}
	line, _, _ := strings.Cut(f.Content, "\n") // the first line is Capstan's own
	line = strings.TrimPrefix(line, fmt.Sprintf("error (%s): ", f.Class))
	if i := strings.LastIndex(line, ": "); i > 0 && f.Outcome == loop.Refused && f.Class != tool.InvalidArguments {
		line = line[:i] // the rest of the line tells a model how to continue
	}
	line, _ = untrusted.Cap(untrusted.Line(line), maxUndoReason)
	return false, line
}

// finalizeUndo makes the result of a Turn that undoes calls. The Turn succeeds only if no call is left that may have
// changed something.
func (r *run) finalizeUndo() (*Result, error) {
	all := r.undoneCalls()
	var left []string
	for i := range all {
		if !all[i].Undone {
			left = append(left, all[i].CallID)
		}
	}
	name := r.replayed.undo.Name
	switch {
	case len(all) == 0:
		return r.finalize(StopUndone, fmt.Sprintf("the turn %q has no call that changed something: there is nothing to undo", name))
	case len(left) == 0:
		return r.finalize(StopUndone, fmt.Sprintf("all %d calls of the turn %q are undone", len(all), name))
	}
	return r.finalize(StopUndoIncomplete, fmt.Sprintf("%d of %d calls of the turn %q are not undone (%s): the result has the reasons",
		len(left), len(all), name, shortList(left)))
}

// maxCallsNamed is the maximum number of calls that the message of a Turn names.
const maxCallsNamed = 10

// shortList lists the first IDs of calls, and the number of the remaining calls.
func shortList(ids []string) string {
	list := untrusted.Line(strings.Join(ids[:min(len(ids), maxCallsNamed)], ", "))
	if more := len(ids) - maxCallsNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", list, more)
	}
	return list
}

// reportUndo writes the outcome of each call into a result: as text for people, and as data for programs.
func (r *run) reportUndo(result *Result) {
	if r.replayed.undo == nil {
		return
	}
	all := r.undoneCalls()
	var b strings.Builder
	for i := range all {
		c := &all[i]
		fmt.Fprintf(&b, "%s (call %s): ", untrusted.Line(c.Tool), untrusted.Line(c.CallID))
		switch {
		case c.Undone && c.Reason == "":
			fmt.Fprintf(&b, "undone by %s\n", c.By)
		case c.Undone:
			fmt.Fprintf(&b, "%s\n", c.Reason)
		default:
			fmt.Fprintf(&b, "not undone: %s\n", c.Reason)
		}
	}
	result.Text = b.String()
	if data, err := json.Marshal(map[string]any{"turn": r.replayed.undo.Name, "calls": all}); err == nil && len(data) <= maxInline {
		result.Data = data
	}
}
