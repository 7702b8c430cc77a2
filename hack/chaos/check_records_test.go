package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/usage"
)

// withRecords returns the story with a record of its Turn, which was also judged and learned from.
func withRecords() evidence {
	e := story()
	e.Turns[0].Turn.Spec.RequestedBy = &v1alpha1.Requester{Username: "ada"}
	e.Turns[0].Turn.Status.Usage.Cost = &v1alpha1.Cost{Amount: "0.45", Currency: currency}
	cost := func(amount string) *turnrecord.Cost { return &turnrecord.Cost{Amount: amount, Currency: currency} }
	e.Records = []turnrecord.Record{{
		UID: uid, Turn: "t", Reason: v1alpha1.TurnReasonCompleted, Requester: "ada",
		Details: turnrecord.Details{Models: []turnrecord.Model{
			{Provider: "p", Model: "m", Usage: model.Usage{InputTokens: 39, OutputTokens: 6, Estimated: true}, Cost: cost("0.45")},
		}},
		Expenses: []turnrecord.Expense{
			{For: usage.ForEvaluation, Requests: 1, Usage: model.Usage{InputTokens: 7, OutputTokens: 1}, Cost: cost("0.1")},
			{For: "memory", Requests: 1, Usage: model.Usage{InputTokens: 5, OutputTokens: 2}, Cost: cost("0.2")},
		},
	}}
	e.Asked = append(e.Asked, asked{ID: "j", FollowUp: true, Billed: true, Input: 7, Output: 1},
		asked{ID: "l", FollowUp: true, Billed: true, Input: 5, Output: 2})
	e.Budget = &budget.Account{Tokens: 60, Turns: 1, Cost: decimal.RequireFromString("0.75")}
	return e
}

// TestRecordsAgree checks that each difference between records, statuses, the bill and the ledger is found.
func TestRecordsAgree(t *testing.T) {
	for name, tc := range map[string]struct {
		harm func(e *evidence)
		says string
	}{
		"equal":                 {func(*evidence) {}, ""},
		"no record":             {func(e *evidence) { e.Records = e.Records[:0] }, "it has no record"},
		"a surplus record":      {func(e *evidence) { e.Records = append(e.Records, turnrecord.Record{UID: "x"}) }, "2 records, want 1"},
		"other tokens":          {func(e *evidence) { e.Records[0].Models[0].Usage.InputTokens++ }, "its record has {Input:40"},
		"another cost":          {func(e *evidence) { e.Records[0].Models[0].Cost.Amount = "0.46" }, "a cost of 0.46"},
		"another requester":     {func(e *evidence) { e.Records[0].Requester = "bob" }, `requester "bob"`},
		"another reason":        {func(e *evidence) { e.Records[0].Reason = "Cancelled" }, `reason "Cancelled"`},
		"an unrecorded request": {func(e *evidence) { e.Records[0].Expenses[0].Requests = 0 }, "but the records have 1"},
		"another bill":          {func(e *evidence) { e.Records[0].Expenses[1].Usage.InputTokens = 6 }, "billed, but the records have"},
		"another message bill":  {func(e *evidence) { e.Asked[len(e.Asked)-1].About = "y" }, "message \"y\""},
		"an account too low":    {func(e *evidence) { e.Budget.Tokens = 45 }, "the usage is 60 tokens of 1 Turns"},
		"a cost too low":        {func(e *evidence) { e.Budget.Cost = decimal.RequireFromString("0.45") }, "and 0.45"},
	} {
		e := withRecords()
		tc.harm(&e)
		got, broken := check(e)
		found := slices.ContainsFunc(broken, func(v violation) bool {
			return v.Guarantee == exactRecords && strings.Contains(v.What, tc.says)
		})
		if tc.says == "" && (len(broken) > 0 || got.Judged != 1 || got.Learned != 1 || got.FollowUps != 2 || got.Records != 1) {
			t.Errorf("%s: figures %+v, violations %+v", name, got, broken)
		}
		if tc.says != "" && !found {
			t.Errorf("%s: violations %+v, want %q", name, broken, tc.says)
		}
	}
}
