package loop

import (
	"crypto/sha256"
	"encoding/json"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// CallState is a call that a reply asks for, and what became of it by now.
type CallState struct {
	// Step of the reply, and Place of the call in it, both from 1.
	Step, Place int
	Call        model.ToolCall
	// Intent is the newest one, Finish the end, Approval what was asked of people and Decision what they said; nil where there
	// is none.
	Intent   *Intent
	Finish   *Finish
	Approval *Approval
	Decision *Decision
}

// Calls are all calls that replies ask for, in order. Those of a last reply are among them: they are never made.
func (s *State) Calls(yield func(CallState) bool) {
	for _, step := range s.Steps {
		for i, c := range step.Reply.ToolCalls {
			if !yield(s.stateOf(step.Step, i+1, c)) {
				return
			}
		}
	}
}

func (s *State) stateOf(step, place int, c model.ToolCall) CallState {
	of := CallState{
		Step: step, Place: place, Call: c, Intent: s.intent(step, c.ID), Finish: s.finish(step, c.ID), Approval: s.approval(step, c.ID),
	}
	if d, ok := s.Decision(step, c.ID); ok {
		of.Decision = &d
	}
	return of
}

// ToolCalls is the number of calls that were made, or were about to be.
func (s *State) ToolCalls() int {
	n := 0
	for _, i := range s.Intents {
		if i.Attempt == 1 {
			n++
		}
	}
	return n
}

// UnknownOutcomes is the number of calls of which nobody knows whether they were done. An intent without an end is one,
// once the Turn has ended.
func (s *State) UnknownOutcomes() int {
	n := s.Outcomes()[Unknown]
	for _, i := range s.intents {
		if i := s.Intents[i]; s.finish(i.Step, i.CallID) == nil && !i.Effect.Repeatable() {
			n++
		}
	}
	return n
}

// Outcomes counts the calls that have ended, by what became of them.
func (s *State) Outcomes() map[Outcome]int {
	all := map[Outcome]int{}
	for _, i := range s.finishes {
		all[s.Finishes[i].Outcome]++
	}
	return all
}

// OpenEnds returns the ends of the calls that have none, as records for the journal, when the Turn ends before them. A call that
// was never begun is Refused. One that was begun is Unknown if it must not be made twice, and Failed otherwise: it gave no result,
// and to make it again would have done no harm. The nonce is that of the Turn.
func (s *State) OpenEnds(nonce string) []journal.Record {
	var all []journal.Record
	end := func(step, place int, callID, name string) {
		e := ending{Finish: Finish{Step: step, CallID: callID, Name: name}, place: place, nonce: nonce, note: changed(s.repairsOf(step, callID), nonce)}
		switch i := s.intent(step, callID); {
		case i == nil:
			all = append(all, e.failed(Refused, tool.Denied, errNotCalled.Error()))
		case i.Effect.Repeatable():
			all = append(all, e.failed(Failed, tool.Failed, turnEnded))
		default:
			all = append(all, e.failed(Unknown, tool.OutcomeUnknown, unknown+turnEnded))
		}
	}
	for _, i := range s.Intents {
		if i.Step == 0 && i.Attempt == 1 && s.finish(0, i.CallID) == nil { // of a tool that no model asked for
			end(0, 0, i.CallID, i.Name)
		}
	}
	for _, step := range s.Steps {
		for i, c := range step.Reply.ToolCalls {
			if s.finish(step.Step, c.ID) == nil {
				end(step.Step, i+1, c.ID, c.Name)
			}
		}
	}
	return all
}

// ToolRepairs is the number of calls whose arguments were repaired. Where that did not suffice, they were not.
func (s *State) ToolRepairs() int {
	n := 0
	for of := range s.repairs {
		if f := s.finish(of.step, of.callID); f == nil || f.Class != tool.InvalidArguments || f.Outcome != Refused {
			n++
		}
	}
	return n
}

// ToolRetries is the number of calls that were made once more after a time-out.
func (s *State) ToolRetries() int {
	n := 0
	for _, i := range s.Intents {
		if i.Retry {
			n++
		}
	}
	return n
}

// ToolNames are the names of the tools that were called, or were about to be, in the order of their first calls.
func (s *State) ToolNames() []string {
	var all []string
	for _, i := range s.Intents {
		if !slices.Contains(all, i.Name) {
			all = append(all, i.Name)
		}
	}
	return all
}

// SubAgents are what the Turns of sub-agents took, in the order in which they ended.
func (s *State) SubAgents(yield func(*tool.Spent) bool) {
	for i := range s.Finishes {
		if spent := s.Finishes[i].Spent; spent != nil && !yield(spent) {
			return
		}
	}
}

// TerminalResult is the end of the first call of the newest reply that ends the Turn, whatever its result; nil if there is none.
func (s *State) TerminalResult() *Finish { return s.Terminal(nil) }

// Terminal is the end of the first call of the newest reply that ends the Turn with a result that fits a schema; nil if there is
// none. Any result fits a schema that is nil.
func (s *State) Terminal(output *schema.Schema) *Finish {
	step := s.LastStep()
	if step == nil {
		return nil
	}
	for _, c := range step.Reply.ToolCalls {
		if f := s.finish(step.Step, c.ID); f != nil && f.EndsTurn && (output == nil || len(violations(output, f.Text)) == 0) {
			return f
		}
	}
	return nil
}

// OpenApprovals are the requests for approval without a decision, oldest first. Those of older versions are made anew, and are not
// among them.
func (s *State) OpenApprovals() []Approval {
	var open []Approval
	for i, a := range s.Approvals {
		if a.Request == "" || s.approvals[called{a.Step, a.CallID}] != i {
			continue
		}
		if _, decided := s.Decision(a.Step, a.CallID); !decided && s.finish(a.Step, a.CallID) == nil {
			open = append(open, a)
		}
	}
	return open
}

// identified returns the calls of a new reply, each with an ID that no other call of the Turn has. The journal keeps them with these
// IDs: all that follows from a call names it by its ID.
func (s *State) identified(calls []model.ToolCall) []model.ToolCall {
	if len(calls) == 0 {
		return nil
	}
	taken := map[string]bool{}
	for _, step := range s.Steps {
		for _, c := range step.Reply.ToolCalls {
			taken[c.ID] = true
		}
	}
	for _, i := range s.Intents { // also those of context packs, for which no reply asked
		taken[i.CallID] = true
	}
	calls = slices.Clone(calls)
	model.IdentifyCalls(calls, func(id string) bool { return taken[id] })
	return calls
}

func (s *State) finish(step int, callID string) *Finish {
	i, ok := s.finishes[called{step, callID}]
	if !ok {
		return nil
	}
	return &s.Finishes[i]
}

// intent is the newest intent of a call.
func (s *State) intent(step int, callID string) *Intent {
	i, ok := s.intents[called{step, callID}]
	if !ok {
		return nil
	}
	return &s.Intents[i]
}

// approval is what was last asked of people about a call; nil if nothing was.
func (s *State) approval(step int, callID string) *Approval {
	i, ok := s.approvals[called{step, callID}]
	if !ok {
		return nil
	}
	return &s.Approvals[i]
}

// repairsOf are the repairs of a call, in order.
func (s *State) repairsOf(step int, callID string) []Repair {
	var all []Repair
	for _, i := range s.repairs[called{step, callID}] {
		all = append(all, s.Repairs[i])
	}
	return all
}

// retried says whether a call was made once more after a time-out.
func (s *State) retried(step int, callID string) bool {
	return slices.ContainsFunc(s.Intents, func(i Intent) bool { return i.Retry && i.Step == step && i.CallID == callID })
}

// callsOf counts the calls of a tool that were made, or were about to be.
func (s *State) callsOf(name string) int {
	n := 0
	for _, i := range s.Intents {
		if i.Attempt == 1 && i.Name == name {
			n++
		}
	}
	return n
}

// lastOf is the end of the newest call of a tool with the same arguments that has one, and the place of its newest intent, from
// 1; nil if there is none.
func (s *State) lastOf(of signature) (f *Finish, intent int) {
	for _, c := range slices.Backward(s.same[of]) {
		if f := s.finish(c.step, c.callID); f != nil {
			return f, s.intents[c] + 1
		}
	}
	return nil, 0
}

// unknown reports whether nobody knows what became of a call of a tool with the same arguments: it has ended so, or it has begun,
// has not ended and must not be made again.
func (s *State) unknown(of signature) bool {
	return slices.ContainsFunc(s.same[of], func(c called) bool {
		if f := s.finish(c.step, c.callID); f != nil {
			return f.Outcome == Unknown
		}
		return !s.intent(c.step, c.callID).Effect.Repeatable()
	})
}

// signature names all calls of a tool with the same arguments.
type signature [sha256.Size]byte

// sign makes one of arguments, which are JSON. Those of a damaged journal may be none, and are taken as they are.
func sign(name string, arguments json.RawMessage) signature {
	data, err := canonical.JSON(arguments)
	if err != nil {
		data = arguments
	}
	return sha256.Sum256(append([]byte(name+"\x00"), data...))
}

func (s *State) repaired(e journal.Entry) error {
	if err := add(&s.Repairs, e); err != nil {
		return err
	}
	if s.repairs == nil {
		s.repairs = map[called][]int{}
	}
	last := len(s.Repairs) - 1
	of := called{s.Repairs[last].Step, s.Repairs[last].CallID}
	s.repairs[of] = append(s.repairs[of], last)
	return nil
}

func (s *State) awaited(e journal.Entry) error {
	if err := add(&s.Approvals, e); err != nil {
		return err
	}
	if s.approvals == nil {
		s.approvals = map[called]int{}
	}
	last := len(s.Approvals) - 1
	of := called{s.Approvals[last].Step, s.Approvals[last].CallID}
	s.approvals[of] = last
	delete(s.decisions, of) // people are asked anew
	return nil
}
