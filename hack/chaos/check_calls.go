package main

import (
	"maps"
	"slices"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
)

// checkUnknownOutcomesShown checks that the requests to the model reported exactly the unknown outcomes. Compaction may
// remove older messages from later requests, so the check looks at all requests together. In a Session, the model also
// sees the unknown outcomes of earlier Turns.
func (c *checker) checkUnknownOutcomesShown(t *v1alpha1.Turn, h *history) {
	shown := map[string]bool{}
	for _, r := range h.requests {
		for _, a := range c.byID[r.ID] {
			for _, id := range a.Unknown {
				// Skip a call that was refused because an identical call has an unknown outcome: its result mentions
				// that outcome, but its own outcome is Refused.
				if !h.refusedForTwin(id) && (h.anyReplyHas(id) || !c.unknownInSession(t, id)) {
					shown[id] = true
				}
			}
		}
	}
	c.UnknownTold += len(shown)
	if got, want := slices.Sorted(maps.Keys(shown)), h.unknownCalls(); !slices.Equal(got, want) {
		c.wrong(knownOutcomes, t.Name, "the model saw %d unknown outcomes, want %d: %q, want %q", len(got), len(want), got, want)
	}
}

// unknownInSession reports whether the outcome of this call is unknown in a Turn of the same Session.
func (c *checker) unknownInSession(t *v1alpha1.Turn, callID string) bool {
	return slices.ContainsFunc(c.evidence.Turns, func(e turnEvidence) bool {
		return t.Spec.SessionRef != nil && e.Turn.Spec.SessionRef != nil && *t.Spec.SessionRef == *e.Turn.Spec.SessionRef &&
			slices.Contains(readHistory(string(e.Turn.UID), e.Entries).unknownCalls(), callID)
	})
}

// checkCallCounts compares each call with the number of times that the tool server has received it.
func (c *checker) checkCallCounts() {
	for key, intents := range c.intents {
		last := intents[len(intents)-1]
		if last.toSubAgent {
			continue // no server has received this call
		}
		got := c.Called[key]
		name := c.names[key]
		if last.repeatable() {
			c.Repeatable++
			c.RepeatableMade += got.Times
			if got.Times > len(intents) {
				c.wrong(calledOnce, name, "%s was made %d times, but intended %d times", last.what, got.Times, len(intents))
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
			c.wrong(knownOutcomes, name, "the journal has a result of %s, which the tool server never received", last.what)
		}
	}
}

// checkApprovals compares the calls that require approval with the decisions at the API server: each call that was made
// was approved, and each approved call was intended.
func (c *checker) checkApprovals() {
	arrived := map[string]bool{}
	for key := range c.Called {
		arrived[keyStart(key)] = true
	}
	for key, a := range c.asking {
		c.Awaited++
		decided, made := c.Decided[key], arrived[key]
		switch {
		case a.decision == nil:
			c.wrong(approvedOnly, c.names[key], "call %q of step %d still waits for a decision", a.CallID, a.Step)
		case a.decision.Approved != (decided == v1alpha1.ApprovalApproved):
			c.wrong(approvedOnly, c.names[key], "call %q of step %d: approved is %t in the journal, but the decision at the "+
				"API server is %q", a.CallID, a.Step, a.decision.Approved, decided)
		}
		switch decided {
		case v1alpha1.ApprovalApproved:
			c.Approved++
			if made {
				c.ApprovedMade++
			}
			if !c.intended[key] {
				c.wrong(approvedOnly, c.names[key], "call %q of step %d was approved, but it has no intent", a.CallID, a.Step)
			}
		case v1alpha1.ApprovalDenied:
			c.Denied++
			if made {
				c.DeniedMade++
			}
		}
	}
	for key, call := range c.Called {
		if call.Tool == toolWipe && c.Decided[keyStart(key)] != v1alpha1.ApprovalApproved {
			c.wrong(approvedOnly, c.names[key], "the tool server received call %q, which was not approved", key)
		}
	}
}

// findChildren finds the Turns of sub-agents.
func (c *checker) findChildren() {
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
			c.wrong(oneChild, t.Turn.Name, "it is a child of %q, which does not exist", owner.Name)
		}
	}
}

// checkSubAgents checks two facts: each call of a sub-agent created exactly one Turn and received its answer, and the
// status includes the usage of these Turns.
func (c *checker) checkSubAgents(t *v1alpha1.Turn, h *history) {
	var answered, existing []string
	for _, f := range h.finishes {
		if f.Name == toolHelper && f.Spent != nil {
			answered = append(answered, f.Spent.Turn)
		}
	}
	calls := map[string]bool{}
	for _, i := range h.intents {
		if i.toSubAgent {
			calls[i.IdempotencyKey] = true
		}
	}
	var used tokens
	for _, child := range c.children[string(t.UID)] {
		existing = append(existing, child.Name)
		for _, u := range []*v1alpha1.Usage{child.Status.Usage, child.Status.SubAgentUsage} {
			if u != nil {
				used.add(u.InputTokens, u.OutputTokens)
			}
		}
	}
	c.Delegated += len(calls)
	slices.Sort(answered)
	slices.Sort(existing)
	if len(calls) != len(existing) || !slices.Equal(answered, existing) {
		c.wrong(oneChild, t.Name, "%d calls to sub-agents; answers came from the Turns %q; the child Turns are %q",
			len(calls), answered, existing)
	}
	var reported tokens
	if u := t.Status.SubAgentUsage; u != nil {
		reported.add(u.InputTokens, u.OutputTokens)
	}
	c.OfChildren.add(reported.Input, reported.Output)
	if reported != used {
		c.wrong(exactUsage, t.Name, "its status reports %+v tokens of sub-agents, but their statuses report %+v", reported, used)
	}
}
