package turn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	// Calls are the IDs of the calls to undo. If it is empty, all calls are undone.
	Calls []string
}

// undoField is the field that errors about the other Turn name.
const undoField = "Turn spec.undo"

// planUndo determines the calls of a Turn that undoes others, once. It returns the input of the loop.
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
		exposure.Tools = compensating(plan, offers, r.in.Tools)
	}
	fixed := plan.bind(exposure.Tools)
	return r.record(journal.Record{Kind: journal.UndoPlanned, Payload: undoPlanned{loop.FixedCalls{Calls: fixed}, *plan, exposure}})
}

// readUndo reads the journal of the other Turn. A journal of another namespace or another Agent gives the same error as
// a missing one, so that it cannot be probed.
func (r *run) readUndo(ctx context.Context) (*UndoPlan, error) {
	uid := r.in.Undo.TurnUID
	reader := NewUndoReader()
	err := r.readOther(ctx, uid, reader)
	if err != nil {
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
	return plan, nil
}

// readOther passes the entries of another Turn's journal to a reader. It loads the payloads that the reader needs, one
// at a time.
func (r *run) readOther(ctx context.Context, uid string, reader *UndoReader) error {
	for e, err := range r.engine.Journal.Read(ctx, uid, 0) {
		if err != nil {
			return fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if err := r.readOne(ctx, uid, &e, reader); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) readOne(ctx context.Context, uid string, e *journal.Entry, reader *UndoReader) error {
	if !Undoes(e.Kind) {
		reader.skip(e)
		return nil
	}
	release := func() {}
	defer func() { release() }()
	err := journal.LoadAdmittedPayload(ctx, r.engine.Journal, uid, e, func(bytes int64) (err error) {
		if e.Artifact != "" && r.in.ReserveRead != nil {
			release, err = r.in.ReserveRead(ctx, bytes)
		}
		return err
	})
	if err == nil {
		err = reader.Apply(*e)
	}
	if err != nil && (errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer)) {
		return endsTurn(invalid.Field(undoField+".turnUID", "the journal of the Turn cannot be read: %s", err))
	}
	return err
}

// compensating returns the tools that undo calls. The patterns of an Agent's allow do not apply: they say what a model
// may call. Each call requires approval.
func compensating(plan *UndoPlan, offers []tool.Offer, own []tool.Tool) []tool.Tool {
	needed := map[tool.Source]bool{}
	for i := range plan.Calls {
		if c := &plan.Calls[i]; c.State == UndoPossible {
			needed[tool.Source{Server: c.Server, Name: c.Tool}] = true
		}
	}
	some := make([]tool.Offer, 0, len(offers))
	for _, o := range offers {
		if o.Server == "" {
			continue
		}
		o.Allow, o.MaxCalls, o.RequireApproval = nil, 0, []string{"*"}
		o.Tools = slices.DeleteFunc(slices.Clone(o.Tools), func(t tool.Tool) bool {
			return !needed[tool.Source{Server: o.Server, Name: t.Name}]
		})
		some = append(some, o)
	}
	reserved := tool.Reserved()
	for _, t := range own {
		reserved = append(reserved, t.Name)
	}
	tools := tool.Expose(some, reserved)
	for i := range tools {
		tools[i].EndsTurn, tools[i].Compensation = false, nil
	}
	return tools
}

// bind returns the calls of the loop for the possible compensations. A compensation without its tool becomes
// impossible.
func (p *UndoPlan) bind(tools []tool.Tool) []model.ToolCall {
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

// undoPlanned is the payload of the entry for the calls of a Turn that undoes others.
type undoPlanned struct {
	loop.FixedCalls
	UndoPlan
	// Exposure has the tools of the calls, with their effects when the plan was made.
	Exposure tool.Exposure `json:"exposure"`
}

// UndoMark is the payload of an entry in the journal of a Turn about a call of it that another Turn undoes.
type UndoMark struct {
	Step   int    `json:"step"`
	CallID string `json:"callID"`
	// TurnUID and Turn are the UID and the name of the Turn that undoes the call.
	TurnUID string `json:"turnUID"`
	Turn    string `json:"turn,omitempty"`
	// Undone is true in the entry for the end if the call was undone.
	Undone bool `json:"undone,omitempty"`
}

// undoCaller is the Caller of a tool in a Turn that undoes calls. Before the call, it writes into the journal of the
// other Turn that this Turn undoes the call. So at most one Turn does, whichever is killed at any point:
//
//  1. Killed before the mark, nothing was called.
//  2. Killed after the mark, no other Turn makes the call. This Turn continues by the rules for calls without an end.
//  3. The mark is removed only if the call certainly did nothing, or may be repeated.
type undoCaller struct {
	run   *run
	inner tool.Caller
}

// Check implements tool.Checker.
func (c *undoCaller) Check(ctx context.Context) error {
	if inner, ok := c.inner.(tool.Checker); ok {
		return inner.Check(ctx)
	}
	return nil
}

// Call implements tool.Caller.
func (c *undoCaller) Call(ctx context.Context, call tool.Call) (tool.Result, error) {
	of := c.run.replayed.undo.call(call.CallID)
	if of == nil { // impossible: the calls of the loop are those of the plan
		return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: "this call undoes no call"}
	}
	if err := c.run.mark(ctx, of); err != nil {
		return tool.Result{}, err
	}
	result, err := c.inner.Call(ctx, call)
	if err == nil || didNothing(ctx, call, err) {
		c.run.unmark(of, err == nil) //nolint:contextcheck // because the mark must be written even if the time of the call is over
	}
	return result, err
}

// didNothing reports whether a failed call certainly had no effect, or may be repeated.
func didNothing(ctx context.Context, c tool.Call, err error) bool {
	failure := tool.AsError(err)
	return c.Repeatable || ctx.Err() == nil && !tool.IsUncertain(err) && failure.Class != tool.Timeout &&
		failure.Class != tool.OutcomeUnknown
}

// maxMarks is the number of attempts to write a mark while other Turns write theirs.
const maxMarks = 32

// mark writes into the journal of the other Turn that this Turn is about to undo a call. It returns a *tool.Error if
// another Turn has undone the call, or may have.
func (r *run) mark(ctx context.Context, of *UndoCall) error {
	var err error
	for range maxMarks {
		if err = r.tryMark(ctx, of, journal.UndoBegun, UndoMark{}); !errors.Is(err, journal.ErrSequence) {
			break
		}
	}
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*tool.Error](err); ok {
		return refused
	}
	return &tool.Error{
		Class: tool.Unavailable, Err: err,
		Message: "the tool was not called, because the journal of the turn to undo could not be written",
	}
}

// endMark is the time for the entry about the end of a compensation.
const endMark = 10 * time.Second

// unmark writes the outcome of a compensation into the journal of the other Turn. If that fails, the mark stays, and no
// other Turn undoes the call.
func (r *run) unmark(of *UndoCall, undone bool) {
	ctx, cancel := context.WithTimeout(r.life, endMark)
	defer cancel()
	for range maxMarks {
		if err := r.tryMark(ctx, of, journal.UndoEnded, UndoMark{Undone: undone}); !errors.Is(err, journal.ErrSequence) {
			return
		}
	}
}

// tryMark appends a mark to the journal of the other Turn as it is now. The sequence numbers of the journal make sure
// that only one of several Turns succeeds; the others get journal.ErrSequence and must look again.
func (r *run) tryMark(ctx context.Context, of *UndoCall, kind journal.Kind, m UndoMark) error {
	uid := r.replayed.undo.TurnUID
	m.Step, m.CallID, m.TurnUID, m.Turn = of.Step, of.CallID, r.in.UID, r.in.Name
	reader := NewUndoReader()
	for e, err := range r.engine.Journal.Read(ctx, uid, 0) {
		if err == nil && isMark(e.Kind) {
			err = r.readOne(ctx, uid, &e, reader)
		} else if err == nil {
			reader.skip(&e)
		}
		if err != nil {
			return err
		}
	}
	held := reader.marks[undoKey{of.Step, of.CallID}]
	switch {
	case reader.seq == 0:
		return &tool.Error{
			Class: tool.Unavailable, Message: "the tool was not called, because the journal of the turn to undo was deleted",
		}
	case held != nil && held.TurnUID != r.in.UID:
		return &tool.Error{Class: tool.Unavailable, Message: "the tool was not called: " + held.reason()}
	case held != nil && kind == journal.UndoBegun && !held.ended:
		return nil // an earlier run of this Turn has written it
	}
	log, err := journal.Open(ctx, uid, reader.epoch, journal.Options{
		Journal: r.engine.Journal, Namespace: r.in.Namespace, Now: r.engine.Now, After: reader.seq, Patience: r.engine.Patience,
		Apply: func(journal.Entry) error { return nil },
	})
	switch {
	case errors.Is(err, journal.ErrFenced), err == nil && log.Len() != reader.seq:
		return journal.ErrSequence // another entry was added meanwhile
	case err != nil:
		return err
	}
	err = log.Append(ctx, journal.Record{Kind: kind, Payload: m})
	if errors.Is(err, journal.ErrFenced) {
		return journal.ErrSequence
	}
	return err
}

// UndoState says whether a call can be undone.
type UndoState string

const (
	// UndoPossible calls have a compensation with all its arguments.
	UndoPossible UndoState = "Possible"
	// UndoDone calls were undone by another Turn, or may have been.
	UndoDone UndoState = "Done"
	// UndoImpossible calls cannot be undone.
	UndoImpossible UndoState = "Impossible"
)

// UndoCall is a call of the Turn to undo, and how it can be undone.
type UndoCall struct {
	Step   int    `json:"step"`
	CallID string `json:"callID"`
	// Name is the name of the called tool.
	Name  string    `json:"name"`
	State UndoState `json:"state"`
	// Tool is the tool that undoes the call, Server its ToolServer, UID the UID of that, and Arguments are the
	// arguments. They are empty unless there is a compensation.
	Tool      string          `json:"tool,omitempty"`
	Server    string          `json:"server,omitempty"`
	UID       string          `json:"uid,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Reason says why the call cannot be undone, or which Turn has undone it.
	Reason string `json:"reason,omitempty"`
}

// UndoPlan lists the calls of a Turn that may have changed something, the newest first.
type UndoPlan struct {
	// TurnUID, Namespace, Name and Agent are those of the Turn to undo.
	TurnUID   string `json:"turnUID"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Agent     string `json:"agent,omitempty"`
	// Ended reports whether the Turn has ended. Only such a Turn can be undone.
	Ended bool       `json:"-"`
	Calls []UndoCall `json:"of,omitempty"`
}

// MaxUndoCalls is the maximum number of calls that one Turn undoes.
const MaxUndoCalls = 100

// Possible returns the number of calls that can be undone.
func (p *UndoPlan) Possible() int {
	n := 0
	for i := range p.Calls {
		if p.Calls[i].State == UndoPossible {
			n++
		}
	}
	return n
}

// size returns the approximate memory of the plan and of its journal entry, in bytes.
func (p *UndoPlan) size() int64 {
	const perCall = 512
	n := 0
	for i := range p.Calls {
		n += perCall + 2*len(p.Calls[i].Arguments)
	}
	return int64(n)
}

// call returns a call of the plan, or nil.
func (p *UndoPlan) call(id string) *UndoCall {
	i := slices.IndexFunc(p.Calls, func(c UndoCall) bool { return c.CallID == id && c.State == UndoPossible })
	if i < 0 {
		return nil
	}
	return &p.Calls[i]
}

// Select reduces the plan to the calls with these IDs, or to the newest MaxUndoCalls if ids is empty. It returns an
// error for an ID that the plan does not have.
func (p *UndoPlan) Select(ids []string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(p.Calls, func(c UndoCall) bool { return c.CallID == id }) {
			shown, _ := untrusted.Cap(untrusted.Line(id), model.MaxCallID)
			return fmt.Errorf("the Turn %q has no call %q that may have changed something: capstan logs lists its calls", p.Name, shown)
		}
	}
	if len(ids) > 0 {
		p.Calls = slices.DeleteFunc(p.Calls, func(c UndoCall) bool { return !slices.Contains(ids, c.CallID) })
	}
	possible := 0
	for i := range p.Calls {
		if c := &p.Calls[i]; c.State == UndoPossible {
			if possible++; possible > MaxUndoCalls {
				c.State = UndoImpossible
				c.Reason = fmt.Sprintf("one Turn undoes at most %d calls: undo the rest with another Turn", MaxUndoCalls)
			}
		}
	}
	return nil
}

// UndoReader reads the journal of a Turn to undo.
type UndoReader struct {
	namespace, name, agent string
	ended                  bool
	seq, epoch             int64
	calls                  []undoCandidate
	marks                  map[undoKey]*undoHeld
}

type undoKey struct {
	step   int
	callID string
}

// undoCandidate is a call that was made.
type undoCandidate struct {
	intent loop.Intent
	finish *loop.CallResult
}

// undoHeld is the newest mark of a call.
type undoHeld struct {
	UndoMark
	ended bool
}

// reason says what the mark means for other Turns.
func (h *undoHeld) reason() string {
	if h.ended {
		return fmt.Sprintf("the Turn %q has undone the call", h.Turn)
	}
	return fmt.Sprintf("the Turn %q undoes the call, or has tried to with an unknown outcome: see capstan logs %s", h.Turn, h.Turn)
}

// NewUndoReader returns a reader of one journal.
func NewUndoReader() *UndoReader { return &UndoReader{marks: map[undoKey]*undoHeld{}} }

// Undoes reports whether an UndoReader needs the payload of an entry of this kind.
func Undoes(k journal.Kind) bool {
	switch k { //nolint:exhaustive // because the others do not matter
	case journal.RunStarted, journal.ToolIntended, journal.ToolFinished:
		return true
	}
	return isMark(k)
}

func isMark(k journal.Kind) bool { return k == journal.UndoBegun || k == journal.UndoEnded }

// skip notes an entry without its payload.
func (u *UndoReader) skip(e *journal.Entry) {
	u.seq, u.epoch = e.Seq, e.Epoch
	u.ended = u.ended || e.Kind == journal.Finalized
}

// Apply folds an entry in, in the order of the journal. Its payload must be filled.
func (u *UndoReader) Apply(e journal.Entry) error {
	u.skip(&e)
	switch e.Kind { //nolint:exhaustive // because the others do not matter
	case journal.RunStarted:
		var s started
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			return err
		}
		if u.name == "" {
			u.namespace, u.name, u.agent = s.Namespace, s.Name, s.Agent
		}
	case journal.ToolIntended:
		var i loop.Intent
		if err := json.Unmarshal(e.Payload, &i); err != nil {
			return err
		}
		i.Arguments = nil // the compensation has all that is needed
		if at := u.find(i.Step, i.CallID); at < 0 && i.Step > 0 {
			u.calls = append(u.calls, undoCandidate{intent: i})
		}
	case journal.ToolFinished:
		var f loop.CallResult
		if err := json.Unmarshal(e.Payload, &f); err != nil {
			return err
		}
		if at := u.find(f.Step, f.CallID); at >= 0 && u.calls[at].finish == nil {
			f.Content, f.Text, f.Pages, f.Documents = "", "", nil, nil
			u.calls[at].finish = &f
		}
	case journal.UndoBegun, journal.UndoEnded:
		return u.applyMark(e)
	}
	return nil
}

func (u *UndoReader) applyMark(e journal.Entry) error {
	var m UndoMark
	if err := json.Unmarshal(e.Payload, &m); err != nil {
		return err
	}
	key := undoKey{m.Step, m.CallID}
	switch held := u.marks[key]; {
	case e.Kind == journal.UndoBegun:
		u.marks[key] = &undoHeld{UndoMark: m}
	case held == nil || held.TurnUID != m.TurnUID: // not written by this version
	case m.Undone:
		held.ended = true
	default:
		delete(u.marks, key)
	}
	return nil
}

func (u *UndoReader) find(step int, callID string) int {
	return slices.IndexFunc(u.calls, func(c undoCandidate) bool { return c.intent.Step == step && c.intent.CallID == callID })
}

// Plan returns the calls that may have changed something, the newest first.
func (u *UndoReader) Plan(uid string) *UndoPlan {
	p := &UndoPlan{TurnUID: uid, Namespace: u.namespace, Name: u.name, Agent: u.agent, Ended: u.ended}
	for _, c := range slices.Backward(u.calls) {
		if one, changed := c.undo(u.marks[undoKey{c.intent.Step, c.intent.CallID}]); changed {
			p.Calls = append(p.Calls, one)
		}
	}
	return p
}

// undo returns how a call can be undone. changed is false if the call certainly changed nothing.
func (c *undoCandidate) undo(held *undoHeld) (one UndoCall, changed bool) {
	one = UndoCall{Step: c.intent.Step, CallID: c.intent.CallID, Name: c.intent.Name, State: UndoImpossible}
	f := c.finish
	switch {
	case c.intent.Effect == tool.ReadOnly:
		return one, false
	case f == nil, f.Outcome == loop.Unknown:
		one.Reason = "its outcome is unknown: check whether it took effect"
		return one, true
	case f.Outcome != loop.Succeeded:
		return one, false
	case f.Spent != nil, c.intent.Descendants > 0:
		one.Reason = "it was a call of a sub-agent: undo the Turn of the sub-agent"
		if f.Spent != nil && f.Spent.Turn != "" {
			one.Reason = fmt.Sprintf("it was a call of a sub-agent: undo its Turn %q", f.Spent.Turn)
		}
		return one, true
	case f.Undo == nil:
		one.Reason = "the ToolServer declared no compensation for the tool when the call was made"
		return one, true
	}
	one.Tool, one.Server, one.UID, one.Arguments = f.Undo.Tool, f.Undo.Server, f.Undo.UID, f.Undo.Arguments
	switch {
	case held != nil:
		one.State, one.Reason = UndoDone, held.reason()
	case f.Undo.Problem != "":
		one.Reason = f.Undo.Reason()
	default:
		one.State = UndoPossible
	}
	return one, true
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

// undone returns the outcome for each call of the plan.
func (r *run) undone() []UndoneCall {
	p := r.replayed.undo
	all := make([]UndoneCall, 0, len(p.Calls))
	for i := range p.Calls {
		c := &p.Calls[i]
		one := UndoneCall{CallID: c.CallID, Tool: c.Name, By: c.Tool, Undone: c.State == UndoDone, Reason: c.Reason}
		if c.State == UndoPossible {
			one.Undone, one.Reason = r.outcomeOfUndo(c.CallID)
		}
		all = append(all, one)
	}
	return all
}

// maxUndoReason is the maximum length of the reason of one call, in characters.
const maxUndoReason = 300

// outcomeOfUndo returns whether a call of the plan was undone, and otherwise why not.
func (r *run) outcomeOfUndo(callID string) (undone bool, reason string) {
	finishes := r.replayed.loop.Finishes
	i := slices.IndexFunc(finishes, func(f loop.CallResult) bool { return f.Step == 1 && f.CallID == callID })
	if i < 0 {
		return false, "the turn ended before it was undone"
	}
	f := &finishes[i]
	if f.Outcome == loop.Succeeded || f.Outcome == loop.Reused {
		return true, ""
	}
	line, _, _ := strings.Cut(f.Content, "\n") // the first line is Capstan's own
	line = strings.TrimPrefix(line, fmt.Sprintf("error (%s): ", f.Class))
	if i := strings.LastIndex(line, ": "); i > 0 && f.Outcome == loop.Refused && f.Class != tool.InvalidArguments {
		line = line[:i] // what follows tells a model how to continue
	}
	line, _ = untrusted.Cap(untrusted.Line(line), maxUndoReason)
	return false, line
}

// finalizeUndo makes the result of a Turn that undoes calls. The Turn succeeds only if no call is left that may have
// changed something.
func (r *run) finalizeUndo() (*Result, error) {
	all := r.undone()
	left := 0
	for i := range all {
		if !all[i].Undone {
			left++
		}
	}
	name := r.replayed.undo.Name
	switch {
	case len(all) == 0:
		return r.finalize(StopUndone, fmt.Sprintf("the turn %q has no call that changed something: there is nothing to undo", name))
	case left == 0:
		return r.finalize(StopUndone, fmt.Sprintf("all %d calls of the turn %q are undone", len(all), name))
	}
	return r.finalize(StopUndoIncomplete, fmt.Sprintf("%d of %d calls of the turn %q are not undone: the result has the reasons",
		left, len(all), name))
}

// reportUndo writes the outcome of each call into a result: as text for people, and as data for programs.
func (r *run) reportUndo(result *Result) {
	if r.replayed.undo == nil {
		return
	}
	all := r.undone()
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
