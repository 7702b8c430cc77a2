package main

import (
	"maps"
	"slices"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
)

// told checks that the model was told of each unknown outcome, and of no other. Older messages may be gone from later requests. A
// Turn of a Session is shown what earlier Turns were told, too.
func (c *checker) told(t *v1alpha1.Turn, h *history) {
	said := map[string]bool{}
	for _, r := range h.requests {
		for _, a := range c.byID[r.ID] {
			for _, id := range a.Unknown {
				// What an identical call is refused for is not its own outcome.
				if !h.refusedForTwin(id) && (h.asks(id) || !c.unknownInSession(t, id)) {
					said[id] = true
				}
			}
		}
	}
	c.UnknownTold += len(said)
	if got, want := slices.Sorted(maps.Keys(said)), h.unknown(); !slices.Equal(got, want) {
		c.wrong(knownOutcomes, t.Name, "the model was told of %d unknown outcomes of %d: %q, not %q", len(got), len(want), got, want)
	}
}

// unknownInSession says whether a call of a Turn of the same Session ended with nobody knowing.
func (c *checker) unknownInSession(t *v1alpha1.Turn, callID string) bool {
	return slices.ContainsFunc(c.evidence.Turns, func(e turnEvidence) bool {
		return t.Spec.SessionRef != nil && e.Turn.Spec.SessionRef != nil && *t.Spec.SessionRef == *e.Turn.Spec.SessionRef &&
			slices.Contains(readHistory(string(e.Turn.UID), e.Entries).unknown(), callID)
	})
}

// calls checks each call by how often the tools' server has got it.
func (c *checker) calls() {
	for key, intents := range c.intents {
		last := intents[len(intents)-1]
		if last.awaits {
			continue // no server has got it
		}
		got := c.Called[key]
		name := c.names[key]
		if last.repeatable() {
			c.Repeatable++
			c.RepeatableMade += got.Times
			if got.Times > len(intents) {
				c.wrong(calledOnce, name, "%s was made %d times, and intended %d times", last.what, got.Times, len(intents))
			}
			continue
		}
		c.Intended++
		c.Made += min(got.Times, 1)
		if got.Times > 1 {
			c.Twice++
			c.wrong(calledOnce, name, "%s was made %d times", last.what, got.Times)
		}
		switch {
		case last.outcome == loop.Unknown:
			c.Unknown++
			c.UnknownMade += min(got.Times, 1)
		case last.outcome == loop.Succeeded && got.Times == 0:
			c.wrong(knownOutcomes, name, "the journal has a result of %s, which the tools' server never got", last.what)
		}
	}
}

// approvals checks the calls that need approval by what the API server has of decisions: each that was made was approved, and each
// that was approved was to be made.
func (c *checker) approvals() {
	for key, a := range c.asking {
		c.Awaited++
		decided, made := c.Decided[key], c.Called[key].Times > 0
		switch {
		case a.decision == nil:
			c.wrong(approvedOnly, c.names[key], "call %q of step %d still waits for a decision", a.CallID, a.Step)
		case a.decision.Approved != (decided == v1alpha1.ApprovalApproved):
			c.wrong(approvedOnly, c.names[key], "the journal says of call %q of step %d that its approval is %t, and the API server has %q", a.CallID, a.Step, a.decision.Approved, decided)
		}
		switch decided {
		case v1alpha1.ApprovalApproved:
			c.Approved++
			if made {
				c.ApprovedMade++
			}
			if c.intents[key] == nil {
				c.wrong(approvedOnly, c.names[key], "call %q of step %d was approved, and was not to be made", a.CallID, a.Step)
			}
		case v1alpha1.ApprovalDenied:
			c.Denied++
			if made {
				c.DeniedMade++
			}
		}
	}
	for key, call := range c.Called {
		if call.Tool == toolWipe && c.Decided[key] != v1alpha1.ApprovalApproved {
			c.wrong(approvedOnly, c.names[key], "the tools' server got call %q, which nobody has approved", key)
		}
	}
}

// family finds the Turns of sub-agents.
func (c *checker) family() {
	known := map[string]bool{}
	for _, t := range c.evidence.Turns {
		known[string(t.Turn.UID)] = true
	}
	for _, t := range c.evidence.Turns {
		owner, ok := translate.Parent(t.Turn)
		if !ok {
			continue
		}
		c.Children++
		c.children[string(owner.UID)] = append(c.children[string(owner.UID)], t.Turn)
		if !known[string(owner.UID)] {
			c.wrong(oneChild, t.Turn.Name, "it is the child of %q, which is not there", owner.Name)
		}
	}
}

// delegated checks that each call of a sub-agent has made the one Turn whose answer it has got, and that what these took is what
// the status says.
func (c *checker) delegated(t *v1alpha1.Turn, h *history) {
	var answered, there []string
	for _, f := range h.finishes {
		if f.Name == toolHelper && f.Spent != nil {
			answered = append(answered, f.Spent.Turn)
		}
	}
	calls := map[string]bool{}
	for _, i := range h.intents {
		if i.awaits {
			calls[i.IdempotencyKey] = true
		}
	}
	var took tokens
	for _, child := range c.children[string(t.UID)] {
		there = append(there, child.Name)
		for _, u := range []*v1alpha1.Usage{child.Status.Usage, child.Status.SubAgentUsage} {
			if u != nil {
				took.add(u.InputTokens, u.OutputTokens)
			}
		}
	}
	c.Delegated += len(calls)
	slices.Sort(answered)
	slices.Sort(there)
	if len(calls) != len(there) || !slices.Equal(answered, there) {
		c.wrong(oneChild, t.Name, "%d calls of sub-agents have got the answers of %q, and there are the Turns %q", len(calls), answered, there)
	}
	var said tokens
	if u := t.Status.SubAgentUsage; u != nil {
		said.add(u.InputTokens, u.OutputTokens)
	}
	c.OfChildren.add(said.Input, said.Output)
	if said != took {
		c.wrong(exactUsage, t.Name, "its status says that sub-agents took %+v tokens, and theirs say %+v", said, took)
	}
}
