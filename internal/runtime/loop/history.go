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

// CallState is a call that a reply asks for, and its state so far.
type CallState struct {
	// Step is the number of the reply and Place the position of the call in that reply, both from 1.
	Step, Place int
	Call        model.ToolCall
	// Intent is the newest intent, Finish the end of the call, Approval the newest request for approval, and
	// Decision the decision about that request. Each is nil if there is none.
	Intent   *Intent
	Finish   *CallResult
	Approval *Approval
	Decision *Decision
}

// Calls yields all calls that replies ask for, in order. It includes the calls of a last reply, which are never
// made.
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

// ToolCalls returns the number of calls that were made or were about to be made.
func (s *State) ToolCalls() int {
	n := 0
	for _, i := range s.Intents {
		if i.Attempt == 1 {
			n++
		}
	}
	return n
}

// UnknownOutcomes returns the number of calls with an unknown outcome. Once the Turn has ended, an intent without
// an end counts too, unless the call may be repeated.
func (s *State) UnknownOutcomes() int {
	n := s.Outcomes()[Unknown]
	for _, i := range s.intents {
		if i := s.Intents[i]; s.finish(i.Step, i.CallID) == nil && !i.Effect.Repeatable() {
			n++
		}
	}
	return n
}

// Outcomes counts the finished calls by outcome.
func (s *State) Outcomes() map[Outcome]int {
	all := map[Outcome]int{}
	for _, i := range s.finishes {
		all[s.Finishes[i].Outcome]++
	}
	return all
}

// OpenEnds returns a journal record for each call that has not finished when the Turn ends:
//  1. A call that never began is Refused.
//  2. A call that began and must not be made twice is Unknown.
//  3. Any other call that began is Failed: it gave no result, and repeating it would have done no harm.
//
// nonce is the nonce of the Turn.
func (s *State) OpenEnds(nonce string) []journal.Record {
	var all []journal.Record
	end := func(step, place int, callID, name string) {
		e := s.ending(step, place, callID, name, nonce)
		switch i := s.intent(step, callID); {
		case i == nil:
			all = append(all, e.failed(Refused, tool.Denied, errNotCalled.Error()))
		case i.Effect.Repeatable():
			e.MayHaveActed = s.mayHaveActed(step, callID)
			all = append(all, e.failed(Failed, tool.Failed, turnEnded))
		default:
			all = append(all, e.failed(Unknown, tool.OutcomeUnknown, unknownPrefix+turnEnded))
		}
	}
	for _, i := range s.Intents {
		if i.Step == 0 && i.Attempt == 1 && s.finish(0, i.CallID) == nil { // Capstan's own calls, such as context packs
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

// EndLost returns a journal record for the end of an open call that began and whose result was lost, although its
// outcome is known: failure is nil if the call succeeded. nonce is the nonce of the Turn.
func (s *State) EndLost(c *CallState, failure *tool.Error, nonce string) journal.Record {
	e := s.ending(c.Step, c.Place, c.Call.ID, c.Call.Name, nonce)
	if failure != nil {
		return e.failedAs(Failed, failure.Class, failure.Message, failure.RemoteMessage)
	}
	e.trusted = true // the text is Capstan's own
	return e.succeeded(tool.Result{Content: "The call succeeded. Its result was lost because the run was interrupted."})
}

// ending returns the ending of a call of an earlier run.
func (s *State) ending(step, place int, callID, name, nonce string) ending {
	return ending{
		CallResult: CallResult{Step: step, CallID: callID, Name: name}, position: place, nonce: nonce,
		note: repairNote(s.repairsOf(step, callID), nonce),
	}
}

// ToolRepairs returns the number of calls whose arguments were repaired. It leaves out calls that were refused
// because their arguments were still invalid after the repair.
func (s *State) ToolRepairs() int {
	n := 0
	for of := range s.repairs {
		if f := s.finish(of.step, of.callID); f == nil || f.Class != tool.InvalidArguments || f.Outcome != Refused {
			n++
		}
	}
	return n
}

// ToolRetries returns the number of calls that were repeated after a time-out.
func (s *State) ToolRetries() int {
	n := 0
	for _, i := range s.Intents {
		if i.Retry {
			n++
		}
	}
	return n
}

// ToolNames returns the names of the tools that were called or were about to be called, in the order of their first
// calls.
func (s *State) ToolNames() []string {
	var all []string
	for _, i := range s.Intents {
		if !slices.Contains(all, i.Name) {
			all = append(all, i.Name)
		}
	}
	return all
}

// SubAgents yields the usage of the sub-agents' Turns, in the order in which these Turns ended.
func (s *State) SubAgents(yield func(*tool.Spent) bool) {
	for i := range s.Finishes {
		if spent := s.Finishes[i].Spent; spent != nil && !yield(spent) {
			return
		}
	}
}

// TerminalResult returns the end of the first call in the newest reply that ends the Turn, whatever its result. It
// returns nil if there is no such call.
func (s *State) TerminalResult() *CallResult { return s.Terminal(nil) }

// Terminal returns the end of the first call in the newest reply that ends the Turn with a result that fits output.
// It returns nil if there is no such call. If output is nil, every result fits.
func (s *State) Terminal(output *schema.Schema) *CallResult {
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

// OpenApprovals returns the requests for approval that have no decision, oldest first. It leaves out requests of
// older versions, because the loop makes these requests anew.
func (s *State) OpenApprovals() []Approval {
	var open []Approval
	for i, a := range s.Approvals {
		if a.Request == "" || s.approvals[callKey{a.Step, a.CallID}] != i {
			continue
		}
		if _, decided := s.Decision(a.Step, a.CallID); !decided && s.finish(a.Step, a.CallID) == nil {
			open = append(open, a)
		}
	}
	return open
}

// identified returns the calls of a new reply with IDs that are unique within the Turn. The journal keeps these
// IDs, because all later entries identify a call by its ID.
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
	for _, i := range s.Intents { // also the calls of context packs, which no reply asked for
		taken[i.CallID] = true
	}
	calls = slices.Clone(calls)
	model.IdentifyCalls(calls, func(id string) bool { return taken[id] })
	return calls
}

func (s *State) finish(step int, callID string) *CallResult {
	i, ok := s.finishes[callKey{step, callID}]
	if !ok {
		return nil
	}
	return &s.Finishes[i]
}

// mayHaveActed reports whether a call that has not ended began and is of a tool that is not ReadOnly.
func (s *State) mayHaveActed(step int, callID string) bool {
	i := s.intent(step, callID)
	return i != nil && i.Effect != tool.ReadOnly
}

// intent returns the newest intent of a call, or nil.
func (s *State) intent(step int, callID string) *Intent {
	i, ok := s.intents[callKey{step, callID}]
	if !ok {
		return nil
	}
	return &s.Intents[i]
}

// approval returns the newest request for approval of a call, or nil.
func (s *State) approval(step int, callID string) *Approval {
	i, ok := s.approvals[callKey{step, callID}]
	if !ok {
		return nil
	}
	return &s.Approvals[i]
}

// repairsOf returns the repairs of a call, in order.
func (s *State) repairsOf(step int, callID string) []Repair {
	var all []Repair
	for _, i := range s.repairs[callKey{step, callID}] {
		all = append(all, s.Repairs[i])
	}
	return all
}

// retried reports whether a call was repeated after a time-out.
func (s *State) retried(step int, callID string) bool {
	return slices.ContainsFunc(s.Intents, func(i Intent) bool { return i.Retry && i.Step == step && i.CallID == callID })
}

// callsOf returns the number of calls of a tool that were made or were about to be made.
func (s *State) callsOf(name string) int {
	n := 0
	for _, i := range s.Intents {
		if i.Attempt == 1 && i.Name == name {
			n++
		}
	}
	return n
}

// lastFinished finds the newest finished call with this signature. It returns the end of that call and the position of
// its newest intent, from 1; f is nil if there is no such call.
func (s *State) lastFinished(of signature) (f *CallResult, intent int) {
	for _, c := range slices.Backward(s.same[of]) {
		if f := s.finish(c.step, c.callID); f != nil {
			return f, s.intents[c] + 1
		}
	}
	return nil, 0
}

// hasUnknownOutcome reports whether a call with this signature has an unknown outcome: it ended as Unknown, or it
// began, has not ended and must not be repeated.
func (s *State) hasUnknownOutcome(of signature) bool {
	return slices.ContainsFunc(s.same[of], func(c callKey) bool {
		if f := s.finish(c.step, c.callID); f != nil {
			return f.Outcome == Unknown
		}
		return !s.intent(c.step, c.callID).Effect.Repeatable()
	})
}

// signature identifies all calls of one tool with the same arguments.
type signature [sha256.Size]byte

// signatureOf returns the signature of a call. If arguments are not valid JSON, as in a damaged journal, sign uses
// their bytes unchanged.
func signatureOf(name string, arguments json.RawMessage) signature {
	data, err := canonical.JSON(arguments)
	if err != nil {
		data = arguments
	}
	return sha256.Sum256(append([]byte(name+"\x00"), data...))
}

func (s *State) applyRepair(e journal.Entry) error {
	if err := appendEntry(&s.Repairs, e); err != nil {
		return err
	}
	if s.repairs == nil {
		s.repairs = map[callKey][]int{}
	}
	last := len(s.Repairs) - 1
	of := callKey{s.Repairs[last].Step, s.Repairs[last].CallID}
	s.repairs[of] = append(s.repairs[of], last)
	return nil
}

func (s *State) applyApproval(e journal.Entry) error {
	if err := appendEntry(&s.Approvals, e); err != nil {
		return err
	}
	if s.approvals == nil {
		s.approvals = map[callKey]int{}
	}
	last := len(s.Approvals) - 1
	of := callKey{s.Approvals[last].Step, s.Approvals[last].CallID}
	s.approvals[of] = last
	delete(s.decisions, of) // because this is a new request
	return nil
}
