package main

import (
	"fmt"
	"slices"

	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// checker compares the parts of the evidence with each other, and records violations and counts.
type checker struct {
	evidence
	figures
	broken []violation
	// requests holds the requests of all journals by ID. intents holds the intents of all journals by idempotency key.
	// names holds the names of the Turns that requested the calls, by the same keys and by callKey. intended has the
	// calls with intents, by callKey.
	requests map[string]*request
	intents  map[string][]*intent
	names    map[string]string
	intended map[string]bool
	// asking holds the calls that required approval, by callKey. children holds the Turns of sub-agents, by the UID of
	// their parent.
	asking   map[string]*approval
	children map[string][]*v1alpha1.Turn
	// cost is the cost in the statuses, in currency.
	cost decimal.Decimal
	// followUpCost is the recorded cost of the requests of judges and for memories. billedFollowUps holds the tokens
	// that were billed for these requests, by the message of the Turn.
	followUpCost    decimal.Decimal
	billedFollowUps map[string]tokens
	// byID holds the requests that the model server has received, by their IDs.
	byID map[string][]asked
}

// check returns the counts of the evidence and the guarantees that did not hold.
func check(e evidence) (figures, []violation) {
	c := &checker{
		evidence: e, requests: map[string]*request{}, intents: map[string][]*intent{}, names: map[string]string{},
		byID:   map[string][]asked{},
		asking: map[string]*approval{}, intended: map[string]bool{}, children: map[string][]*v1alpha1.Turn{},
	}
	c.splitAsked()
	for _, a := range c.Asked {
		c.byID[a.ID] = append(c.byID[a.ID], a)
	}
	c.figures.Turns = len(e.Turns)
	c.findChildren()
	for _, t := range e.Turns {
		c.checkTurn(t)
	}
	c.checkStrays()
	c.checkCallCounts()
	c.checkApprovals()
	c.checkSessions()
	c.checkBill()
	c.checkRecords()
	c.checkBudget()
	return c.figures, c.broken
}

// wrong records that a guarantee did not hold.
func (c *checker) wrong(g guarantee, turn, format string, args ...any) {
	c.broken = append(c.broken, violation{Guarantee: g, Turn: turn, What: fmt.Sprintf(format, args...)})
}

// checkTurn checks one Turn by its journal and its status.
func (c *checker) checkTurn(e turnEvidence) {
	t := e.Turn
	h := readHistory(string(t.UID), e.Entries)
	for _, v := range h.broken {
		v.Turn = t.Name
		c.broken = append(c.broken, v)
		if v.Guarantee == paidOnce {
			c.Repeated++
		}
	}
	c.Entries += h.entries
	c.Replies += len(h.steps) + len(h.asides)
	c.Asides += len(h.asides)
	c.Compactions += h.compactions
	c.Waves += h.waves
	c.Parked += h.parked
	c.CutOff += h.cutOff
	if meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionSucceeded) && t.StateReason() == v1alpha1.TurnReasonCompleted {
		c.Finished++
	} else {
		c.wrong(everyTurnFinished, t.Name, "its state is %q: %s", t.StateReason(), messageOf(t))
	}
	if h.result == nil {
		c.wrong(everyTurnFinished, t.Name, "its journal has no result")
	}
	c.checkCuts(t.Name, h)
	c.checkStatus(t, h)
	for _, r := range h.requests {
		c.requests[r.ID] = r
		c.checkRequest(t.Name, r)
	}
	for _, i := range h.intents {
		c.intents[i.IdempotencyKey] = append(c.intents[i.IdempotencyKey], i)
		c.names[i.IdempotencyKey] = t.Name
		c.intended[keyStart(i.IdempotencyKey)] = true
	}
	for _, a := range h.approvals {
		key := callKey(string(t.UID), int32(a.Step), a.CallID) //nolint:gosec // because a Turn of the test has a few steps
		c.asking[key], c.names[key] = a, t.Name
	}
	c.checkUnknownOutcomesShown(t, h)
	c.checkSubAgents(t, h)
}

func messageOf(t *v1alpha1.Turn) string {
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); c != nil {
		return c.Message
	}
	return "no controller has seen the Turn yet"
}

// checkCuts checks that only kills have interrupted requests and calls, and that the journal has the right outcome for
// calls that were interrupted.
func (c *checker) checkCuts(turn string, h *history) {
	checkCause := func(f *flight) {
		inFlight := func(k kill) bool { return !k.To.Before(f.begun) && !k.From.After(f.cut) }
		if f.lost() && !f.toSubAgent && !f.cut.IsZero() && !slices.ContainsFunc(c.Kills, inFlight) {
			c.wrong(knownOutcomes, turn, "%s was interrupted between %s and %s, but no process was killed in that time", f.what,
				f.begun.Format("15:04:05.000"), f.cut.Format("15:04:05.000"))
		}
	}
	for _, r := range h.requests {
		checkCause(&r.flight)
	}
	for _, i := range h.intents {
		checkCause(&i.flight)
		if i.lost() && !i.repeatable() && i.outcome != loop.Unknown {
			c.wrong(knownOutcomes, turn, "%s was in flight at a kill, but its recorded outcome is %q", i.what, i.outcome)
		}
	}
	if h.result != nil && len(h.unfinishedCalls()) > 0 {
		c.wrong(wholeJournals, turn, "calls %q have no outcome", h.unfinishedCalls())
	}
}

// checkStatus compares the counts and the usage in the status with the journal.
func (c *checker) checkStatus(t *v1alpha1.Turn, h *history) {
	var got v1alpha1.StepCounts
	if t.Status.Steps != nil {
		got = *t.Status.Steps
	}
	count := func(n int) int32 { return int32(n) } //nolint:gosec // because a Turn of the test has a few steps
	want := v1alpha1.StepCounts{
		Count: count(len(h.steps)), Resumes: count(max(0, h.runs-1-h.parked)), UnknownOutcomes: count(len(h.unknownCalls())),
		Compactions: count(h.compactions),
	}
	for _, r := range h.requests {
		if !r.unsent {
			want.ModelRequests++
		}
	}
	for _, i := range h.intents {
		if i.Attempt == 1 {
			want.ToolCalls++
		}
	}
	want.ModelRetries = got.ModelRetries // the test does not check how retries are counted
	if got != want {
		c.wrong(everyTurnFinished, t.Name, "its status counts %+v, but its journal has %+v", got, want)
	}
	if got.UnknownOutcomes != want.UnknownOutcomes {
		c.wrong(knownOutcomes, t.Name, "its status reports %d unknown outcomes, want %d", got.UnknownOutcomes, want.UnknownOutcomes)
	}
	if t.Epoch() < h.epoch {
		c.wrong(wholeJournals, t.Name, "its status has epoch %d, but its journal has %d", t.Epoch(), h.epoch)
	}
	c.Resumes += int(got.Resumes)
	c.UnknownReported += int(got.UnknownOutcomes)
	var used model.Usage
	for _, r := range h.requests {
		used = used.Add(r.usage)
		if r.lost() {
			used = used.Add(model.Usage{InputTokens: r.EstimatedTokens})
			c.Estimated.add(r.EstimatedTokens, 0)
		}
	}
	u := t.Status.Usage
	if u == nil {
		u = &v1alpha1.Usage{}
	}
	c.Reported.add(u.InputTokens, u.OutputTokens)
	if u.Cost != nil {
		amount, err := decimal.NewFromString(u.Cost.Amount)
		if err != nil || u.Cost.Currency != currency {
			c.wrong(exactBudget, t.Name, "its status has the cost %q %s", u.Cost.Amount, u.Cost.Currency)
		}
		c.cost = c.cost.Add(amount)
	}
	if u.InputTokens != used.InputTokens || u.OutputTokens != used.OutputTokens {
		c.wrong(exactUsage, t.Name, "its status has %d+%d tokens, but its journal has %d+%d", u.InputTokens,
			u.OutputTokens, used.InputTokens, used.OutputTokens)
	}
}

// checkRequest compares one request with the model server's records.
func (c *checker) checkRequest(turn string, r *request) {
	seen := c.byID[r.ID]
	if len(seen) > 1 {
		c.Repeated++
		c.wrong(paidOnce, turn, "the model server received %s %d times", r.what, len(seen))
	}
	switch {
	case r.lost() && len(seen) > 0:
		c.LostSent++
	case r.lost():
		c.LostUnsent++
	case r.replied && len(seen) == 0:
		c.wrong(paidOnce, turn, "the journal has a reply to %s, which the model server never received", r.what)
	case !r.replied && len(seen) > 0:
		c.Failures++
	case !r.replied:
		c.Unsent++
	}
	for _, a := range seen {
		if r.replied && (a.Input != r.usage.InputTokens || a.Output != r.usage.OutputTokens) {
			c.wrong(exactUsage, turn, "%s was billed %d+%d tokens, but the journal has %d+%d", r.what, a.Input, a.Output,
				r.usage.InputTokens, r.usage.OutputTokens)
		}
	}
}

// checkStrays checks that the servers have received no request and no call that is missing in the journals.
func (c *checker) checkStrays() {
	c.Requests = len(c.Asked)
	for _, a := range c.Asked {
		if c.requests[a.ID] == nil {
			c.Repeated++
			c.wrong(paidOnce, "", "the model server received request %q, which no journal has", a.ID)
		}
	}
	if sum := c.Replies + c.Failures + c.LostSent; sum != c.Requests {
		c.wrong(paidOnce, "", "the model server received %d requests, but the journals have %d: %d replies, %d "+
			"failures, %d in flight at a kill",
			c.Requests, sum, c.Replies, c.Failures, c.LostSent)
	}
	for key := range c.Called {
		if c.intents[key] == nil {
			c.wrong(calledOnce, "", "the tool server received call %q, which no journal has", key)
		}
	}
}

// checkBill compares the billed tokens of each request with the statuses and with the requests that were lost.
func (c *checker) checkBill() {
	for _, a := range c.Asked {
		if !a.Billed {
			continue
		}
		c.Billed.add(a.Input, a.Output)
		switch r := c.requests[a.ID]; {
		case r == nil:
			c.wrong(exactUsage, "", "request %q was billed, but no journal contains it", a.ID)
		case r.lost():
			c.Lost.add(a.Input, a.Output)
		case !r.replied && (a.Input != r.usage.InputTokens || a.Output != r.usage.OutputTokens):
			c.wrong(exactUsage, "", "%s was billed %d+%d tokens, but the journal has a failure with %d+%d", r.what,
				a.Input, a.Output, r.usage.InputTokens, r.usage.OutputTokens)
		}
	}
	sum := c.Reported
	sum.add(c.Lost.Input-c.Estimated.Input, c.Lost.Output)
	if sum != c.Billed {
		c.wrong(exactUsage, "", "%+v tokens were billed; the statuses have %+v, including estimates of %+v for "+
			"requests that were interrupted; lost replies used %+v",
			c.Billed, c.Reported, c.Estimated, c.Lost)
	}
}

// checkBudget compares the ledger of the Budget with the statuses: each request counts once, whichever process was
// killed, and nothing stays reserved.
func (c *checker) checkBudget() {
	b := c.Budget
	if b == nil {
		return // the phase has no Budget
	}
	c.Counted, c.CountedTurns, c.CountedCost = b.Tokens, b.Turns, b.Cost.String()
	if sum := c.cost.Add(c.followUpCost); !b.Cost.Equal(sum) || b.Unpriced != 0 {
		c.wrong(exactBudget, "", "the ledger has counted a cost of %s, and %d requests without one, but the statuses have %s, with the "+
			"work that followed", b.Cost, b.Unpriced, sum)
	}
	if sum := c.Reported.Input + c.Reported.Output + c.FollowedUp.Input + c.FollowedUp.Output; b.Tokens != sum {
		c.wrong(exactBudget, "", "the ledger has counted %d tokens, but the statuses have %d, with the work that followed", b.Tokens, sum)
	}
	if b.Turns != int64(c.figures.Turns) {
		c.wrong(exactBudget, "", "the ledger has counted %d Turns, want %d", b.Turns, c.figures.Turns)
	}
	if b.ReservedTokens != 0 || !b.ReservedCost.IsZero() {
		c.wrong(exactBudget, "", "all Turns have finished, but %d tokens are still reserved, with a cost of %s", b.ReservedTokens,
			b.ReservedCost)
	}
}
