package loop

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// CallState is a call that a reply requests, and its state so far.
type CallState struct {
	// Step is the number of the reply and Place the position of the call in that reply, both from 1.
	Step, Place int
	Call        model.ToolCall
	// Intent is the newest intent of the call, Result its result, Approval its newest request for approval, and
	// Decision the decision about that request. Each is nil if there is none.
	Intent   *Intent
	Result   *CallResult
	Approval *Approval
	Decision *Decision
}

// Calls yields all calls that replies request, in order. It includes the calls that a reply requests after the Turn
// has run out of steps (see Step.Last), which are never made.
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
	state := CallState{
		Step: step, Place: place, Call: c, Intent: s.intent(step, c.ID), Result: s.result(step, c.ID), Approval: s.approval(step, c.ID),
	}
	if d, ok := s.Decision(step, c.ID); ok {
		state.Decision = &d
	}
	return state
}

// ToolCalls returns the number of calls whose intent is in the journal, whether or not the call was then made.
func (s *State) ToolCalls() int {
	n := 0
	for _, i := range s.Intents {
		if i.Attempt == 1 {
			n++
		}
	}
	return n
}

// UnknownOutcomes returns the number of calls with an unknown outcome. It also counts calls that began and have no
// result, unless they may be repeated, so call it only after the Turn has ended.
func (s *State) UnknownOutcomes() int {
	n := s.Outcomes()[Unknown]
	for _, i := range s.intentIndex.All() {
		if i := s.Intents[i]; s.result(i.Step, i.CallID) == nil && !i.Effect.Repeatable() {
			n++
		}
	}
	return n
}

// Outcomes returns the number of calls with each outcome. It leaves out calls without a result.
func (s *State) Outcomes() map[Outcome]int {
	all := map[Outcome]int{}
	for _, i := range s.resultIndex.All() {
		all[s.CallResults[i].Outcome]++
	}
	return all
}

// ResultsOfOpenCalls returns a journal record with the result of each call that has no result when the Turn ends:
//  1. A call that never began is Refused.
//  2. A call that began and must not be made twice is Unknown.
//  3. Any other call that began is Failed. Whether it was made does not matter, because it could have been repeated
//     without harm.
//
// nonce is the nonce of the Turn.
func (s *State) ResultsOfOpenCalls(nonce string) []journal.Record {
	var all []journal.Record
	add := func(step, place int, callID, name string) {
		b := s.newResult(step, place, callID, name, nonce)
		switch i := s.intent(step, callID); {
		case i == nil:
			all = append(all, b.failed(Refused, tool.Denied, errNotCalled.Error()))
		case i.Effect.Repeatable():
			b.MayHaveActed = s.mayHaveActed(step, callID)
			all = append(all, b.failed(Failed, tool.Failed, turnEnded))
		default:
			all = append(all, b.failed(Unknown, tool.OutcomeUnknown, unknownPrefix+turnEnded))
		}
	}
	for _, i := range s.Intents {
		if i.Step == 0 && i.Attempt == 1 && s.result(0, i.CallID) == nil { // Capstan's own calls, such as context packs
			add(0, 0, i.CallID, i.Name)
		}
	}
	for _, step := range s.Steps {
		for i, c := range step.Reply.ToolCalls {
			if s.result(step.Step, c.ID) == nil {
				add(step.Step, i+1, c.ID, c.Name)
			}
		}
	}
	return all
}

// LostResult returns a journal record with the result of a call whose output was lost although its outcome is known.
// failure is nil if the call succeeded, and result is then its result, in Capstan's own words. The call must have
// begun, and must not have a result. nonce is the nonce of the Turn.
func (s *State) LostResult(c *CallState, result tool.Result, failure *tool.Error, nonce string) journal.Record {
	b := s.newResult(c.Step, c.Place, c.Call.ID, c.Call.Name, nonce)
	if failure != nil {
		return b.failedAs(Failed, failure.Class, failure.Message, failure.RemoteMessage)
	}
	b.trusted = true // the text is Capstan's own
	return b.succeeded(result)
}

// newResult returns a builder for the result of a call that an earlier run began or was about to begin.
func (s *State) newResult(step, place int, callID, name, nonce string) resultBuilder {
	return resultBuilder{
		CallResult: CallResult{Step: step, CallID: callID, Name: name}, position: place, nonce: nonce,
		note: repairNote(s.repairsOf(step, callID), nonce),
	}
}

// ToolRepairs returns the number of calls whose arguments were repaired. It leaves out calls that were refused
// because their arguments were still invalid after the repair.
func (s *State) ToolRepairs() int {
	n := 0
	for call := range s.repairIndex {
		if f := s.result(call.step, call.callID); f == nil || f.Class != tool.InvalidArguments || f.Outcome != Refused {
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

// SubAgentUsage yields the usage of the sub-agents' Turns, in the order in which these Turns ended.
func (s *State) SubAgentUsage(yield func(*tool.Spent) bool) {
	for i := range s.CallResults {
		if spent := s.CallResults[i].Spent; spent != nil && !yield(spent) {
			return
		}
	}
}

// TerminalResult returns the result that ends the Turn: the first one in the newest reply whose EndsTurn is true. It
// returns nil if there is none.
func (s *State) TerminalResult() *CallResult {
	return s.terminal(func(string) bool { return true })
}

// Terminal is like TerminalResult, but leaves out results whose text does not fit the schema output. If output is nil,
// every text fits. A long check first waits until the namespace of ctx is next.
func (s *State) Terminal(ctx context.Context, output *schema.Schema) *CallResult {
	return s.terminal(func(text string) bool { return output == nil || len(violations(ctx, output, text)) == 0 })
}

// terminal returns the first result in the newest reply that ends the Turn and whose text fits, or nil.
func (s *State) terminal(fits func(text string) bool) *CallResult {
	step := s.LastStep()
	if step == nil {
		return nil
	}
	for _, c := range step.Reply.ToolCalls {
		if f := s.result(step.Step, c.ID); f != nil && f.EndsTurn && fits(f.Text) {
			return f
		}
	}
	return nil
}

// OpenApprovals returns the requests for approval that have no decision, oldest first. It leaves out requests that an
// older version of Capstan recorded without an ID, because the loop replaces them by new requests.
func (s *State) OpenApprovals() []Approval {
	var open []Approval
	for i, a := range s.Approvals {
		if a.Request == "" || s.approvalIndex[callKey{a.Step, a.CallID}] != i {
			continue
		}
		if _, decided := s.Decision(a.Step, a.CallID); !decided && s.result(a.Step, a.CallID) == nil {
			open = append(open, a)
		}
	}
	return open
}

// identified returns the calls of a new reply after it has replaced missing, invalid and repeated IDs, so that each ID
// is unique within the Turn. The journal keeps the new IDs, because all later entries identify a call by its ID.
func (s *State) identified(calls []model.ToolCall) []model.ToolCall {
	if len(calls) == 0 {
		return nil
	}
	used := map[string]bool{}
	for _, step := range s.Steps {
		for _, c := range step.Reply.ToolCalls {
			used[c.ID] = true
		}
	}
	for _, i := range s.Intents { // includes the calls of context packs, which no reply requests
		used[i.CallID] = true
	}
	calls = slices.Clone(calls)
	model.IdentifyCalls(calls, func(id string) bool { return used[id] })
	return calls
}

// result returns the result of a call, or nil.
func (s *State) result(step int, callID string) *CallResult {
	i, ok := s.resultIndex.Get(callKey{step, callID})
	if !ok {
		return nil
	}
	return &s.CallResults[i]
}

// mayHaveActed reports whether a call without a result may have taken effect: it began, and its tool is not ReadOnly.
func (s *State) mayHaveActed(step int, callID string) bool {
	i := s.intent(step, callID)
	return i != nil && i.Effect != tool.ReadOnly
}

// intent returns the newest intent of a call, or nil.
func (s *State) intent(step int, callID string) *Intent {
	i, ok := s.intentIndex.Get(callKey{step, callID})
	if !ok {
		return nil
	}
	return &s.Intents[i]
}

// approval returns the newest request for approval of a call, or nil.
func (s *State) approval(step int, callID string) *Approval {
	i, ok := s.approvalIndex[callKey{step, callID}]
	if !ok {
		return nil
	}
	return &s.Approvals[i]
}

// repairsOf returns the repairs of a call, in order.
func (s *State) repairsOf(step int, callID string) []Repair {
	var all []Repair
	for _, i := range s.repairIndex[callKey{step, callID}] {
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

// newestResult finds the newest call with this signature that has a result. It returns this result and the position of
// the call's newest intent, from 1. If there is no such call, f is nil.
func (s *State) newestResult(of signature) (f *CallResult, intent int) {
	same, _ := s.callsBySignature.Get(of)
	for _, c := range slices.Backward(same) {
		if f := s.result(c.step, c.callID); f != nil {
			at, _ := s.intentIndex.Get(c)
			return f, at + 1
		}
	}
	return nil, 0
}

// hasUnknownOutcome reports whether a call with this signature has an unknown outcome: its result says Unknown, or it
// began, has no result and must not be repeated.
func (s *State) hasUnknownOutcome(of signature) bool {
	same, _ := s.callsBySignature.Get(of)
	return slices.ContainsFunc(same, func(c callKey) bool {
		if f := s.result(c.step, c.callID); f != nil {
			return f.Outcome == Unknown
		}
		return !s.intent(c.step, c.callID).Effect.Repeatable()
	})
}

// signature is the same for all calls of one tool with the same arguments.
type signature [sha256.Size]byte

// signatureOf returns the signature of a call. If arguments are not valid JSON, as in a damaged journal, signatureOf
// uses their bytes unchanged.
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
	if s.repairIndex == nil {
		s.repairIndex = map[callKey][]int{}
	}
	last := len(s.Repairs) - 1
	of := callKey{s.Repairs[last].Step, s.Repairs[last].CallID}
	s.repairIndex[of] = append(s.repairIndex[of], last)
	return nil
}

func (s *State) applyApproval(e journal.Entry) error {
	if err := appendEntry(&s.Approvals, e); err != nil {
		return err
	}
	if s.approvalIndex == nil {
		s.approvalIndex = map[callKey]int{}
	}
	last := len(s.Approvals) - 1
	of := callKey{s.Approvals[last].Step, s.Approvals[last].CallID}
	s.approvalIndex[of] = last
	delete(s.decisions, of) // an earlier decision is not about this new request
	return nil
}
