package main

import (
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// compacted checks that messages are not replaced more often than summaries were paid for.
func (h *history) compacted(e journal.Entry) {
	h.checkIdle(e, "older messages are replaced")
	if h.compactions++; h.compactions > len(h.asides) {
		h.wrong(wholeJournals, "entry %d is replacement %d of older messages, but there are only %d summaries", e.Seq, h.compactions,
			len(h.asides))
	}
}

// approvalOf returns the request for a decision about a call, or nil if there was none.
func (h *history) approvalOf(step int, callID string) *approval {
	for _, a := range h.approvals {
		if a.Step == step && a.CallID == callID {
			return a
		}
	}
	return nil
}

func (h *history) approvalRequested(e journal.Entry, a loop.Approval) {
	what := fmt.Sprintf("the approval of call %q of %s in step %d", a.CallID, a.Name, a.Step)
	h.checkIdle(e, what+" was requested")
	if h.approvalOf(a.Step, a.CallID) != nil {
		h.wrong(approvedOnly, "%s was requested twice", what)
		return
	}
	h.approvals = append(h.approvals, &approval{Approval: a})
}

func (h *history) decided(_ journal.Entry, d loop.Decision) {
	a := h.approvalOf(d.Step, d.CallID)
	switch {
	case a == nil:
		h.wrong(approvedOnly, "call %q of step %d was decided without a request for approval", d.CallID, d.Step)
	case a.decision != nil:
		h.wrong(approvedOnly, "call %q of step %d was decided twice", d.CallID, d.Step)
	case d.Expired: // the approver decides long before an approval expires
		h.wrong(approvedOnly, "the approval of call %q of step %d has expired", d.CallID, d.Step)
		a.decision = &d
	default:
		a.decision = &d
	}
}

// wasDenied reports whether any call of this tool was denied.
func (h *history) wasDenied(name string) bool {
	return slices.ContainsFunc(h.approvals, func(a *approval) bool { return a.Name == name && a.decision != nil && !a.decision.Approved })
}

func (h *history) intended(e journal.Entry, i loop.Intent) {
	what := fmt.Sprintf("call %q of %s in step %d", i.CallID, i.Name, i.Step)
	made := &intent{flight: flight{what: what, epoch: e.Epoch, begun: e.Time, toSubAgent: i.Name == toolHelper}, Intent: i}
	if h.mayJoin(made) {
		if len(h.open) == 1 {
			h.waves++
		}
	} else {
		h.checkIdle(e, what)
	}
	if i.Effect.Repeatable() != made.repeatable() {
		h.wrong(calledOnce, "%s has the recorded effect %s, which makes it repeatable: %t, want %t", what, i.Effect,
			i.Effect.Repeatable(), made.repeatable())
	}
	if before := h.intentOf(i.Step, i.CallID); before != nil {
		switch {
		case !made.repeatable():
			h.wrong(calledOnce, "%s, which must not be made twice, was intended again", what)
		case before.ended:
			h.wrong(calledOnce, "%s was intended again although it had ended", what)
		}
	}
	if !h.newestReplyHas(i) {
		h.wrong(calledOnce, "%s was intended, but the newest reply does not contain it", what)
	}
	if h.twinIsUnknown(i.Step, i.CallID) {
		h.wrong(calledOnce, "%s was intended, but the outcome of an identical call of the same reply is unknown", what)
	}
	if a := h.approvalOf(i.Step, i.CallID); i.Name == toolWipe && (a == nil || a.decision == nil || !a.decision.Approved) {
		h.wrong(approvedOnly, "%s was intended, but the journal has no approval of it", what)
	}
	h.intents = append(h.intents, made)
	h.open = append(h.open, &made.flight)
}

// mayJoin reports whether a call may be made while other calls are in flight: this call and the calls in flight must
// all be calls of toolLook in the same step.
func (h *history) mayJoin(made *intent) bool {
	if len(h.open) == 0 || made.Name != toolLook {
		return false
	}
	return !slices.ContainsFunc(h.open, func(f *flight) bool {
		return !slices.ContainsFunc(h.intents, func(i *intent) bool { return &i.flight == f && i.Name == toolLook && i.Step == made.Step })
	})
}

// newestReplyHas reports whether the newest reply contains a call.
func (h *history) newestReplyHas(i loop.Intent) bool {
	if i.Step != len(h.steps) {
		return false
	}
	return slices.ContainsFunc(h.steps[i.Step-1].Reply.ToolCalls,
		func(c model.ToolCall) bool { return c.ID == i.CallID && c.Name == i.Name })
}

// anyReplyHas reports whether a reply of the Turn contains a call with this ID.
func (h *history) anyReplyHas(callID string) bool {
	return slices.ContainsFunc(h.steps, func(s loop.Step) bool {
		return slices.ContainsFunc(s.Reply.ToolCalls, func(c model.ToolCall) bool { return c.ID == callID })
	})
}

// twinIsUnknown reports whether the same reply contains an identical call with an unknown outcome. In that
// case, the call must not be made, because the model has not yet seen that outcome.
func (h *history) twinIsUnknown(step int, callID string) bool {
	if step < 1 || step > len(h.steps) {
		return false
	}
	calls := h.steps[step-1].Reply.ToolCalls
	at := slices.IndexFunc(calls, func(c model.ToolCall) bool { return c.ID == callID })
	return at >= 0 && slices.ContainsFunc(calls, func(c model.ToolCall) bool {
		return c.ID != callID && c.Name == calls[at].Name && c.Arguments == calls[at].Arguments && h.outcomeOf(step, c.ID) == loop.Unknown
	})
}

// refusedForTwin reports whether a call was refused because the outcome of an identical call is unknown.
func (h *history) refusedForTwin(callID string) bool {
	return slices.ContainsFunc(h.finishes, func(f loop.CallResult) bool {
		return f.CallID == callID && f.Outcome == loop.Refused && h.twinIsUnknown(f.Step, f.CallID)
	})
}

// outcomeOf returns the outcome of a call, or an empty one if the call has not ended.
func (h *history) outcomeOf(step int, callID string) loop.Outcome {
	for _, f := range h.finishes {
		if f.Step == step && f.CallID == callID {
			return f.Outcome
		}
	}
	return ""
}

// intentOf returns the newest intent of a call, or nil if there is none.
func (h *history) intentOf(step int, callID string) *intent {
	for _, i := range slices.Backward(h.intents) {
		if i.Step == step && i.CallID == callID {
			return i
		}
	}
	return nil
}

func (h *history) finished(e journal.Entry, f loop.CallResult) {
	what := fmt.Sprintf("call %q of %s in step %d", f.CallID, f.Name, f.Step)
	if slices.ContainsFunc(h.finishes, func(b loop.CallResult) bool { return b.Step == f.Step && b.CallID == f.CallID }) {
		h.wrong(calledOnce, "%s has two outcomes", what)
	}
	h.finishes = append(h.finishes, f)
	i := h.intentOf(f.Step, f.CallID)
	inFlight := i != nil && slices.Contains(h.open, &i.flight)
	if i != nil {
		i.outcome = f.Outcome
	}
	switch f.Outcome {
	case loop.Unknown:
		if i == nil || inFlight || i.repeatable() || f.Class != tool.OutcomeUnknown {
			h.wrong(knownOutcomes, "the outcome of %s is recorded as unknown, but the call was not intended, was not cut off, may be "+
				"repeated, or has another class: %s", what, f.Class)
		}
	case loop.Refused, loop.Reused:
		// In these plans, a call is refused for two reasons: this call or another call of the tool was denied, or
		// the outcome of an identical call is unknown. The plans have no identical read-only calls, so Reused is wrong,
		// too.
		denial := f.Class == tool.Denied && h.wasDenied(f.Name)
		if i != nil || !denial && !h.twinIsUnknown(f.Step, f.CallID) {
			h.wrong(wholeJournals, "%s was %s: %s", what, f.Outcome, f.Content)
		}
	case loop.Succeeded, loop.Failed:
		if !inFlight {
			h.wrong(knownOutcomes, "entry %d records that %s has %s, but it was not in flight", e.Seq, what, f.Outcome)
			return
		}
		h.endFlight(&i.flight)
		if f.Outcome == loop.Failed {
			h.wrong(knownOutcomes, "%s has failed: %s", what, f.Content)
		}
	}
}
