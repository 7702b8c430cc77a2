package main

import (
	"maps"
	"slices"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/usage"
)

// splitAsked removes the requests of judges and for memories from Asked, because the journals do not contain them. It
// adds up the tokens that were billed for these requests, by the message of the Turn that they are about.
func (c *checker) splitAsked() {
	var rest []asked
	c.billedFollowUps = map[string]tokens{}
	for _, a := range c.Asked {
		if !a.FollowUp {
			rest = append(rest, a)
			continue
		}
		c.FollowUps++
		if a.Billed {
			billed := c.billedFollowUps[a.About]
			billed.add(a.Input, a.Output)
			c.billedFollowUps[a.About] = billed
		}
	}
	c.Asked = rest
}

// checkRecords compares the records of the Turns with the statuses, and with the tokens billed for the requests of
// judges and for memories. It also adds the records up, as capstan usage does, and compares the sum with the ledger
// of the Budget.
func (c *checker) checkRecords() {
	if c.evidence.Records == nil {
		return
	}
	c.figures.Records = len(c.evidence.Records)
	byUID, sum := map[string]*turnrecord.Record{}, usage.NewSum(nil)
	var requests int64
	recorded, estimated := map[string]tokens{}, map[string]bool{}
	messages := map[string]string{}
	for _, t := range c.evidence.Turns {
		messages[string(t.Turn.UID)] = t.Turn.Spec.Message
	}
	for i := range c.evidence.Records {
		r := &c.evidence.Records[i]
		byUID[r.UID] = r
		if err := sum.Add(r); err != nil {
			c.wrong(exactRecords, r.Turn, "its record cannot be added up: %v", err)
		}
		for j := range r.Expenses {
			e := &r.Expenses[j]
			requests += e.Requests
			message := messages[r.UID]
			total := recorded[message]
			total.add(e.Usage.InputTokens, e.Usage.OutputTokens)
			recorded[message] = total
			estimated[message] = estimated[message] || e.Usage.Estimated
			c.FollowedUp.add(e.Usage.InputTokens, e.Usage.OutputTokens)
			c.followUpCost = c.followUpCost.Add(c.costOf(r.Turn, e.Cost))
			if e.For == usage.ForEvaluation {
				c.Judged += int(e.Requests)
			} else {
				c.Learned += int(e.Requests)
			}
		}
	}
	for _, t := range c.evidence.Turns {
		c.checkRecord(t.Turn, byUID[string(t.Turn.UID)])
	}
	if len(c.evidence.Records) != len(c.evidence.Turns) {
		c.wrong(exactRecords, "", "there are %d records, want %d, one for each Turn", len(c.evidence.Records), len(c.evidence.Turns))
	}
	if requests < int64(c.FollowUps) {
		c.wrong(exactRecords, "", "the model server received %d requests of judges and for memories, but the records have %d",
			c.FollowUps, requests)
	}
	c.checkBillOfFollowUps(recorded, estimated)
	c.checkUsage(sum)
}

// checkBillOfFollowUps compares the recorded tokens of the requests of judges and for memories with the billed
// tokens, for each message of Turns. It skips a message if a request about it was interrupted, because the billed
// tokens of that request are not known.
func (c *checker) checkBillOfFollowUps(recorded map[string]tokens, estimated map[string]bool) {
	messages := slices.Collect(maps.Keys(recorded))
	for message := range c.billedFollowUps {
		if _, isRecorded := recorded[message]; !isRecorded {
			messages = append(messages, message)
		}
	}
	slices.Sort(messages)
	for _, message := range messages {
		if estimated[message] {
			c.EstimatedMessages++
			continue
		}
		c.ComparedMessages++
		if billed, recorded := c.billedFollowUps[message], recorded[message]; billed != recorded {
			c.wrong(exactRecords, "", "for requests about Turns with the message %q, %+v tokens were billed, but the records have %+v",
				message, billed, recorded)
		}
	}
}

// checkRecord compares the record of a Turn with its status.
func (c *checker) checkRecord(t *v1alpha1.Turn, r *turnrecord.Record) {
	if r == nil {
		c.wrong(exactRecords, t.Name, "it has no record")
		return
	}
	var used tokens
	var cost decimal.Decimal
	for i := range r.Models {
		used.add(r.Models[i].Usage.InputTokens, r.Models[i].Usage.OutputTokens)
		cost = cost.Add(c.costOf(t.Name, r.Models[i].Cost))
	}
	var want tokens
	var wantCost *turnrecord.Cost
	if u := t.Status.Usage; u != nil {
		want.add(u.InputTokens, u.OutputTokens)
		if u.Cost != nil {
			wantCost = &turnrecord.Cost{Amount: u.Cost.Amount, Currency: u.Cost.Currency}
		}
	}
	if used != want || !cost.Equal(c.costOf(t.Name, wantCost)) || r.Reason != t.StateReason() || r.Requester != t.Requester() {
		c.wrong(exactRecords, t.Name, "its record has %+v tokens, a cost of %s, reason %q and requester %q, but its status has %+v, "+
			"%+v, %q and %q", used, cost, r.Reason, r.Requester, want, wantCost, t.StateReason(), t.Requester())
	}
}

// costOf returns the amount of a cost, or 0 if the cost is nil. It records a violation if the cost is invalid.
func (c *checker) costOf(turn string, cost *turnrecord.Cost) decimal.Decimal {
	if cost == nil {
		return decimal.Zero
	}
	amount, err := decimal.NewFromString(cost.Amount)
	if err != nil || cost.Currency != currency {
		c.wrong(exactRecords, turn, "it has the cost %q %s", cost.Amount, cost.Currency)
	}
	return amount
}

// checkUsage compares the sum of the records with the ledger of the Budget.
func (c *checker) checkUsage(sum *usage.Sum) {
	groups := sum.Groups()
	if c.Budget == nil || len(groups) == 0 {
		return
	}
	all := groups[0]
	var cost *turnrecord.Cost
	if len(all.Costs) > 0 {
		cost = &all.Costs[0]
	}
	if n := all.Usage.InputTokens + all.Usage.OutputTokens; len(groups) != 1 || n != c.Budget.Tokens || all.Turns != c.Budget.Turns ||
		len(all.Costs) > 1 || !c.costOf("", cost).Equal(c.Budget.Cost) || all.TurnsOfUnknownCost > 0 {
		c.wrong(exactRecords, "", "the usage is %d tokens of %d Turns, with costs %+v (%d Turns without one), but the ledger of the "+
			"Budget has %d, %d and %s", n, all.Turns, all.Costs, all.TurnsOfUnknownCost, c.Budget.Tokens, c.Budget.Turns, c.Budget.Cost)
	}
}
