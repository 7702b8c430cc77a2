package turn

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// UndoState says whether a call can be undone.
type UndoState string

const (
	// UndoPossible calls have a compensation with all its arguments.
	UndoPossible UndoState = "Possible"
	// UndoDone calls were undone by another Turn.
	UndoDone UndoState = "Done"
	// UndoImpossible calls cannot be undone, or another Turn is undoing them or tried to with an unknown outcome.
	UndoImpossible UndoState = "Impossible"
	// UndoNotSelected calls can be undone, but the Turn undoes only other calls.
	UndoNotSelected UndoState = "NotSelected"
)

// UndoCall is a call of the Turn to undo, with the way to undo it.
type UndoCall struct {
	Step   int    `json:"step"`
	CallID string `json:"callID"`
	// Name is the name of the called tool.
	Name  string    `json:"name"`
	State UndoState `json:"state"`
	// Tool is the tool that undoes the call. Server and UID are the name and the UID of its ToolServer. Arguments are
	// the arguments for the tool. All are empty if there is no compensation.
	Tool      string          `json:"tool,omitempty"`
	Server    string          `json:"server,omitempty"`
	UID       string          `json:"uid,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Key is the idempotency key of a compensation that another Turn has tried, and that may have taken effect. It is
	// empty if there is none.
	Key string `json:"idempotencyKey,omitempty"`
	// Reason says why the call is not undone, or which Turn has undone it.
	Reason string `json:"reason,omitempty"`
}

// UndoPlan lists the calls of a Turn that may have changed something, the newest first.
type UndoPlan struct {
	// TurnUID, Namespace, Name and Agent identify the Turn to undo and its Agent.
	TurnUID   string `json:"turnUID"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Agent     string `json:"agent,omitempty"`
	// Ended reports whether the Turn has ended. Only such a Turn can be undone.
	Ended bool       `json:"-"`
	Calls []UndoCall `json:"of,omitempty"`
	// Begun has the marks of compensations that have begun and not ended, of the newest call first.
	Begun []UndoMark `json:"-"`
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

// call returns the possible compensation for the call with this ID, or nil.
func (p *UndoPlan) call(id string) *UndoCall {
	i := slices.IndexFunc(p.Calls, func(c UndoCall) bool { return c.CallID == id && c.State == UndoPossible })
	if i < 0 {
		return nil
	}
	return &p.Calls[i]
}

// Select marks each possible call whose ID is not in ids as not selected. If ids is empty, Select selects all calls.
// After MaxUndoCalls selected calls, it marks the rest as impossible. Select returns an error for an ID that the plan
// does not have.
func (p *UndoPlan) Select(ids []string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(p.Calls, func(c UndoCall) bool { return c.CallID == id }) {
			shown, _ := untrusted.Cap(untrusted.Line(id), model.MaxCallID)
			return fmt.Errorf("the Turn %q has no call %q that may have changed something: capstan logs lists its calls", p.Name, shown)
		}
	}
	possible := 0
	for i := range p.Calls {
		switch c := &p.Calls[i]; {
		case c.State != UndoPossible:
		case len(ids) > 0 && !slices.Contains(ids, c.CallID):
			c.State, c.Reason = UndoNotSelected, "it was not selected"
		case possible == MaxUndoCalls:
			c.State = UndoImpossible
			c.Reason = fmt.Sprintf("one Turn undoes at most %d calls: undo the rest with another Turn", MaxUndoCalls)
		default:
			possible++
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
	marks                  map[undoKey]*callMark
	// keys has the idempotency keys of the compensations that have ended, or were abandoned, and may have taken effect.
	keys map[undoKey]string
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

// callMark is the newest mark of a call in the journal of its Turn. ended is true once the compensation has ended.
// abandoned is true if it may be repeated and has not ended, and its Turn has ended or is gone.
type callMark struct {
	UndoMark
	ended, abandoned bool
}

// reason returns why no other Turn undoes the call.
func (m *callMark) reason() string {
	if m.ended {
		return undoneBy(m.Turn)
	}
	return fmt.Sprintf("the Turn %q undoes the call, or has tried to with an unknown outcome: see capstan logs %s", m.Turn, m.Turn)
}

// undoneBy says that the Turn with this name has undone a call.
func undoneBy(name string) string { return fmt.Sprintf("the Turn %q has undone the call", name) }

// result returns the result of a compensation that this Turn need not make, because the Turn of the mark has made it.
func (m *callMark) result() tool.Result {
	return tool.Result{Content: "The tool was not called: " + undoneBy(m.Turn) + ".", UndoneBy: m.Turn}
}

// NewUndoReader returns a reader of one journal.
func NewUndoReader() *UndoReader {
	return &UndoReader{marks: map[undoKey]*callMark{}, keys: map[undoKey]string{}}
}

// needsPayload reports whether Apply needs the payload of an entry of this kind. Otherwise skip is sufficient.
func (*UndoReader) needsPayload(k journal.Kind) bool {
	switch k { //nolint:exhaustive // because the other kinds do not matter
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

// Apply folds an entry into the state of the reader. Entries must be applied in the order of the journal, with their
// payloads.
func (u *UndoReader) Apply(e journal.Entry) error {
	u.skip(&e)
	switch e.Kind { //nolint:exhaustive // because the other kinds do not matter
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
		i.Arguments = nil // the compensation has its own arguments
		switch at := u.find(i.Step, i.CallID); {
		case at >= 0: // the owner may have corrected the declaration since the first attempt
			u.calls[at].intent.Effect = tool.Stricter(u.calls[at].intent.Effect, i.Effect)
		case i.Step > 0:
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
	switch begun := u.marks[key]; {
	case e.Kind == journal.UndoBegun:
		if begun != nil && !begun.ended { // it was abandoned
			u.keepKey(key, begun.Key)
		}
		u.marks[key] = &callMark{UndoMark: m}
	case begun == nil || begun.TurnUID != m.TurnUID: // the write of the mark has failed
	default:
		begun.ended, begun.Undone = true, m.Undone
		if m.MayHaveActed {
			u.keepKey(key, cmp.Or(m.Key, begun.Key))
		}
	}
	return nil
}

// keepKey notes that a compensation with this key may have taken effect. Marks of older versions have no key.
func (u *UndoReader) keepKey(of undoKey, key string) {
	if key != "" {
		u.keys[of] = key
	}
}

// FindAbandoned finds the marks of compensations that may be repeated and have not ended, although their Turns have
// ended or are gone. Such a Turn was cut off, and has not withdrawn its marks itself. Another Turn may undo these
// calls, with the same idempotency keys. hasEnded reports whether the Turn of a mark has ended or is gone.
func (u *UndoReader) FindAbandoned(hasEnded func(UndoMark) (bool, error)) error {
	known := map[string]bool{}
	for key := range u.marks {
		m := u.openMark(key.step, key.callID)
		if m == nil {
			continue
		}
		ended, asked := known[m.TurnUID]
		if !asked {
			var err error
			if ended, err = hasEnded(m.UndoMark); err != nil {
				return err
			}
			known[m.TurnUID] = ended
		}
		u.setAbandoned(m, ended)
	}
	return nil
}

// setAbandoned notes whether the Turn of a mark that has not ended has ended or is gone.
func (u *UndoReader) setAbandoned(m *callMark, ended bool) {
	if m.abandoned = ended; ended {
		u.keepKey(undoKey{m.Step, m.CallID}, m.Key)
	}
}

// openMark returns the newest mark of a call if it may be repeated, has not ended, and is not known to be abandoned, or
// nil.
func (u *UndoReader) openMark(step int, callID string) *callMark {
	m := u.marks[undoKey{step, callID}]
	if m == nil || m.ended || m.abandoned || !m.Repeatable {
		return nil
	}
	return m
}

// IsOpen reports whether the journal of a Turn has entries but no end, so that a run may continue the Turn. It returns
// the error of the entries.
func IsOpen(entries iter.Seq2[journal.Entry, error]) (open bool, err error) {
	for e, err := range entries {
		if err != nil {
			return false, fmt.Errorf("failed to read the journal of a turn that undoes a call: %w", err)
		}
		if e.Kind == journal.Finalized {
			return false, nil
		}
		open = true
	}
	return open, nil
}

// allowsKey reports whether a compensation may be made with this idempotency key. It must be the key of all
// compensations of the call that may have taken effect.
func (u *UndoReader) allowsKey(step int, callID, key string) bool {
	known := u.keys[undoKey{step, callID}]
	return known == "" || known == key
}

// blockingMark returns the newest mark of a call, or nil if any Turn may undo the call. repeatable is true if the tool
// that undoes the call may be called again, or if this is not known yet.
func (u *UndoReader) blockingMark(step int, callID string, repeatable bool) *callMark {
	m := u.marks[undoKey{step, callID}]
	if m != nil && (m.ended && !m.Undone || m.abandoned && !m.ended && repeatable) {
		return nil
	}
	return m
}

func (u *UndoReader) find(step int, callID string) int {
	return slices.IndexFunc(u.calls, func(c undoCandidate) bool { return c.intent.Step == step && c.intent.CallID == callID })
}

// Plan returns the calls that may have changed something, the newest first.
func (u *UndoReader) Plan(uid string) *UndoPlan {
	p := &UndoPlan{TurnUID: uid, Namespace: u.namespace, Name: u.name, Agent: u.agent, Ended: u.ended}
	for _, c := range slices.Backward(u.calls) {
		mark := u.blockingMark(c.intent.Step, c.intent.CallID, true)
		if call, changed := c.undo(mark); changed {
			call.Key = u.keys[undoKey{call.Step, call.CallID}]
			p.Calls = append(p.Calls, call)
		}
		if mark != nil && !mark.ended {
			p.Begun = append(p.Begun, mark.UndoMark)
		}
	}
	return p
}

// mayHaveActed reports whether the call, or the sub-agent's Turn that it created, may have changed something. A call
// whose outcome is unknown may have, even if it was made as ReadOnly: its owner has corrected the declaration since.
func (c *undoCandidate) mayHaveActed() bool {
	f := c.finish
	switch {
	case f != nil && f.Outcome == loop.Unknown:
		return true
	case c.intent.Effect == tool.ReadOnly:
		return false
	}
	return f == nil || f.TookEffect() || f.Spent != nil
}

// undo returns how a call can be undone. mark is the mark that blocks the call, or nil. changed is false if the call
// certainly changed nothing.
func (c *undoCandidate) undo(mark *callMark) (call UndoCall, changed bool) {
	call = UndoCall{Step: c.intent.Step, CallID: c.intent.CallID, Name: c.intent.Name, State: UndoImpossible}
	f := c.finish
	switch {
	case !c.mayHaveActed():
		return call, false
	case f != nil && f.Spent != nil && f.Spent.Turn != "":
		call.Reason = fmt.Sprintf("it was a call of a sub-agent: undo its Turn %q", f.Spent.Turn)
		return call, true
	case c.intent.Descendants > 0, f != nil && f.Spent != nil:
		call.Reason = "it was a call of a sub-agent: undo the Turn of the sub-agent"
		return call, true
	case f == nil, f.Outcome == loop.Unknown:
		call.Reason = "its outcome is unknown: check whether it took effect"
		return call, true
	case f.Outcome != loop.Succeeded:
		call.Reason = fmt.Sprintf("it may have taken effect before it failed: check what %q has changed", c.intent.Name)
		return call, true
	case f.Undo == nil:
		call.Reason = "the ToolServer declared no compensation for the tool when the call was made"
		return call, true
	}
	call.Tool, call.Server, call.UID, call.Arguments = f.Undo.Tool, f.Undo.Server, f.Undo.UID, f.Undo.Arguments
	switch {
	case mark != nil && mark.ended:
		call.State, call.Reason = UndoDone, mark.reason()
	case mark != nil: // the compensation must not be made again, but may have had no effect
		call.Reason = mark.reason()
	case f.Undo.Problem != "":
		call.Reason = f.Undo.Reason()
	default:
		call.State = UndoPossible
	}
	return call, true
}
