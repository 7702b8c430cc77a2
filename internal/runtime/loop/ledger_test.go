package loop_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
)

// daily returns a daily budget.
func daily(name string, l budget.Limits, queue bool) budget.Rule {
	return budget.Rule{UID: name, Name: name, Unit: budget.Day, Zone: time.UTC, Limits: l, Currency: "USD", Queue: queue}
}

// withBudgets applies budgets to a run.
func withBudgets(in loop.Input, rules ...budget.Rule) loop.Input {
	in.Budgets = func() ([]budget.Rule, error) { return rules, nil }
	return in
}

// withOutputLimit sets the output limit of a candidate, and a price of one USD for each token.
func withOutputLimit(c loop.Candidate, tokens int64) loop.Candidate {
	c.MaxOutputTokens = tokens
	million := decimal.NewFromInt(1_000_000)
	c.Pricing = &model.Pricing{Currency: "USD", Input: million, Output: million, CacheRead: million}
	return c
}

// account returns the account of a budget on this day.
func account(t *testing.T, j *journaltest.Store, uid string) budget.Account {
	t.Helper()
	all, err := j.Accounts(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Budget == uid {
			return a
		}
	}
	return budget.Account{}
}

func TestBudgetsAreCharged(t *testing.T) {
	c, _ := candidate("one", 2, fails(model.Overloaded), says("Fine."))
	c = withOutputLimit(c, 100)
	j := &journaltest.Store{}
	in := withBudgets(inputOf(t, j, 1, c), daily("a", budget.Limits{}, false), daily("b", budget.Limits{Tokens: new(int64(1000))}, false))
	synctest.Test(t, func(t *testing.T) {
		if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
			t.Fatalf("Run: %+v, %v; want an answer", end, err)
		}
		for _, uid := range []string{"a", "b"} {
			a := account(t, j, uid)
			if a.Turns != 1 || a.Tokens != 13 || a.Cost.String() != "13" || a.ReservedTokens != 0 || !a.ReservedCost.IsZero() {
				t.Errorf("account: %+v; want one Turn and the usage of both requests, once in each budget", a)
			}
		}
	})
}

// TestExceededBudget checks how a run ends if its budget does not allow the first request as it is. The prompt is
// short, and the reply may have 2000 tokens.
func TestExceededBudget(t *testing.T) {
	spent := func(tokens int64) budget.Amount {
		return budget.Amount{Tokens: tokens, Cost: decimal.NewFromInt(tokens), Currency: "USD"}
	}
	tokens := func(n int64) budget.Limits { return budget.Limits{Tokens: &n} }
	turns := func(n int64) budget.Limits { return budget.Limits{Turns: &n} }
	cost := func(n int64) budget.Limits { return budget.Limits{Cost: new(decimal.NewFromInt(n))} }
	for name, tc := range map[string]struct {
		rule   budget.Rule
		spent  budget.Amount
		limit  int64  // output limit of the request; 0 if none is sent
		says   string // text of the end
		parked bool   // the Turn waits
	}{
		"tokens, reject":         {daily("day", tokens(5000), false), spent(4500), 0, "allows 5000 tokens per day: 4500 are spent", false},
		"tokens, queue":          {daily("day", tokens(5000), true), spent(4500), 0, `Budget "day" allows 5000 tokens per day`, true},
		"tokens, reject, less":   {daily("day", tokens(5000), false), spent(3500), 1400, "", false},
		"tokens, queue, less":    {daily("day", tokens(5000), true), spent(3500), 0, "3500 are spent", true},
		"queue, never fits":      {daily("day", tokens(900), true), spent(100), 0, "allows 900 tokens", false},
		"queue, always too long": {daily("day", tokens(1500), true), budget.Amount{}, 1400, "", false},
		"queue, paused":          {daily("day", tokens(0), true), budget.Amount{}, 0, "allows 0 tokens", true},
		"reject, paused":         {daily("day", tokens(0), false), budget.Amount{}, 0, "allows 0 tokens", false},
		"cost, reject":           {daily("day", cost(5000), false), spent(4500), 0, "allows 5000 USD per day: 4500 are spent", false},
		"cost, queue":            {daily("day", cost(5000), true), spent(4500), 0, "the next period begins at ", true},
		"cost, reject, less":     {daily("day", cost(5000), false), spent(3500), 1400, "", false},
		"turns, reject":          {daily("day", turns(1), false), spent(1), 0, "allows 1 turns per day, and 1 have begun", false},
		"turns, queue":           {daily("day", turns(1), true), spent(1), 0, "allows 1 turns per day", true},
		"reply beyond budget":    {daily("day", tokens(5000), false), spent(1_000_000), 0, "1000000 are spent", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journaltest.Store{}
				if tc.spent.Tokens > 0 {
					spend(t, j, tc.rule, tc.spent)
				}
				before := account(t, j, "day")
				c, s := candidate("one", 2, says("Fine."))
				in := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 2000)), tc.rule)
				end, err := loop.Run(t.Context(), &in)
				waits, parked := errors.AsType[*loop.Parked](err)
				switch {
				case tc.limit > 0:
					if err != nil || end.Reason != loop.Answered || len(s.requests) != 1 ||
						s.requests[0].MaxOutput() < int(tc.limit) || s.requests[0].MaxOutput() > int(tc.limit)+100 {
						t.Fatalf("Run: %+v, %v; want an answer to a request with about %d output tokens", end, err, tc.limit)
					}
					return
				case parked != tc.parked:
					t.Fatalf("Run: %+v, %v; parked is %t, want %t", end, err, parked, tc.parked)
				case parked:
					midnight := time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)
					if b := waits.Budget; b == nil || !b.Until.Equal(midnight) || b.Name != "day" || b.Started ||
						!strings.Contains(b.Message, tc.says) {
						t.Errorf("waits for %+v, want %q until midnight", b, tc.says)
					}
				case err != nil || end.Reason != loop.OverBudget || !strings.Contains(end.Message, tc.says):
					t.Errorf("Run: %+v, %v; want the end because of the budget: %q", end, err, tc.says)
				}
				if after := account(t, j, "day"); len(s.asked) > 0 || after.Tokens != before.Tokens || after.ReservedTokens != 0 {
					t.Errorf("%d requests were sent, and the account is %+v; want nothing sent or charged", len(s.asked), after)
				}
			})
		})
	}
}

// TestCountedTurnIsNotRefused checks that a budget does not count a Turn again whose journal was lost, and so does not
// refuse it.
func TestCountedTurnIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a clock on which no new day begins
		rule := daily("day", budget.Limits{Turns: new(int64(1))}, false)
		j := &journaltest.Store{}
		spend(t, j, rule, budget.Amount{Tokens: 10})
		c, _ := candidate("one", 2, says("Fine."))
		in := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 100)), rule)
		in.IsCounted = true
		end, err := loop.Run(t.Context(), &in)
		if err != nil || end.Reason != loop.Answered || account(t, j, "day").Turns != 1 {
			t.Errorf("Run: %+v, %v, and the account is %+v; want an answer, and one Turn", end, err, account(t, j, "day"))
		}
	})
}

// TestOptionalRequestsDoNotWaitForABudget checks that an answer that exists is not held back until the next period,
// because a Budget does not allow a request that the Turn can do without.
func TestOptionalRequestsDoNotWaitForABudget(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*loop.Input)
		parked  bool
	}{
		"reflection":                  {func(in *loop.Input) { in.Reflect = true }, false},
		"a policy that only reports":  {func(in *loop.Input) { withPolicies(in, polite(outputpolicy.Report)) }, false},
		"a policy that must be kept":  {func(in *loop.Input) { withPolicies(in, polite(outputpolicy.Fail)) }, true},
		"an answer without a request": {func(*loop.Input) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journaltest.Store{}
				rule := daily("day", budget.Limits{Tokens: new(int64(5000))}, true)
				c, s := candidate("one", 2, withUsage(says("Good day."), 3000, 500), says("never asked"))
				in := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 2000)), rule)
				tc.prepare(&in)
				end, err := loop.Run(t.Context(), &in)
				waits, parked := errors.AsType[*loop.Parked](err)
				if parked != tc.parked || parked && waits.Budget == nil || !parked && (err != nil || end.Reason != loop.Answered) {
					t.Fatalf("Run: %+v, %v; want it to wait: %t", end, err, tc.parked)
				}
				if text := in.State.AnswerText(); text != "Good day." || len(s.asked) != 1 {
					t.Errorf("the answer is %q after %d requests, want the one of the first request", text, len(s.asked))
				}
			})
		})
	}
}

// TestNecessarySummaryWaitsForABudget checks that a Turn waits if a Budget does not allow the summary that it needs,
// because the endpoint has refused the whole prompt.
func TestNecessarySummaryWaitsForABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, rule := &journaltest.Store{}, daily("day", budget.Limits{Tokens: new(int64(100_000))}, true)
		spend(t, j, rule, budget.Amount{Tokens: 9_900, Currency: "USD"})
		c, s := candidate("one", 2, fails(model.ContextLength), says("never asked"))
		in := withHistory(inputOf(t, j, 1, withOutputLimit(c, 2000)), model.Message{Role: model.RoleUser, Content: words(3000)})
		in.Context.Compact = true
		in.Budgets = func() ([]budget.Rule, error) {
			if len(s.asked) > 0 { // the limit was lowered meanwhile
				rule.Limits.Tokens = new(int64(10_000))
			}
			return []budget.Rule{rule}, nil
		}
		end, err := loop.Run(t.Context(), &in)
		if waits, parked := errors.AsType[*loop.Parked](err); !parked || waits.Budget == nil || len(s.asked) != 1 {
			t.Errorf("Run: %+v, %v after %d requests; want a wait for the budget after the first", end, err, len(s.asked))
		}
	})
}

// TestWaitAfterEmbedding checks that a Turn which has only requested vectors has not started: its starting deadline
// applies while it waits for a budget.
func TestWaitAfterEmbedding(t *testing.T) {
	for purpose, started := range map[loop.Purpose]bool{loop.ForEmbedding: false, loop.ForStep: true} {
		synctest.Test(t, func(t *testing.T) {
			rule, j := daily("day", budget.Limits{Tokens: new(int64(5000))}, true), &journaltest.Store{}
			spend(t, j, rule, budget.Amount{Tokens: 4500, Currency: "USD"})
			c, _ := candidate("one", 2, says("Fine."))
			in := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 2000)), rule)
			in.State.Requests = []loop.Request{{ID: "uid/1", Purpose: purpose}}
			_, err := loop.Run(t.Context(), &in)
			waits, parked := errors.AsType[*loop.Parked](err)
			if !parked || waits.Budget == nil || waits.Budget.Started != started {
				t.Errorf("after a request with purpose %q: %+v, %v; want a wait with Started %t", purpose, waits, err, started)
			}
		})
	}
}

// spend charges a budget with the usage of another Turn.
func spend(t *testing.T, j journal.Journal, rule budget.Rule, used budget.Amount) {
	t.Helper()
	p, err := budget.PeriodAt(rule.Unit, rule.Zone, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	hold := budget.Hold{Key: budget.KeyOf(rule.UID, p), Currency: rule.Currency}
	for i, c := range []budget.Change{{Reserve: []budget.Reservation{{Hold: hold, CountTurn: true}}}, {Outcome: &used}} {
		if err := j.Append(t.Context(), "other", journal.Entry{Seq: int64(i) + 1, Epoch: 1, Version: 1, Ledger: &c}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestContendedBudget checks a run whose budget is reserved by the request of another Turn.
func TestContendedBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		used   int64 // by the other request, after 10 s; 0 if it never ends
		parked bool
		reason loop.Reason
	}{
		"the other uses less than it has reserved": {100, false, loop.Answered},
		"the other uses all":                       {5000, false, loop.OverBudget},
		"the other never ends":                     {0, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journaltest.Store{}
				rule := daily("day", budget.Limits{Tokens: new(int64(5000))}, false)
				p, err := budget.PeriodAt(rule.Unit, rule.Zone, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				appendOther := func(seq int64, c budget.Change) {
					if err := j.Append(t.Context(), "other", journal.Entry{Seq: seq, Epoch: 1, Version: 1, Ledger: &c}); err != nil {
						t.Error(err)
					}
				}
				appendOther(1, budget.Change{Reserve: []budget.Reservation{{Hold: budget.Hold{Key: budget.KeyOf("day", p), Tokens: 4500}}}})
				if tc.used > 0 {
					time.AfterFunc(10*time.Second, func() { appendOther(2, budget.Change{Outcome: &budget.Amount{Tokens: tc.used}}) })
				}
				c, s := candidate("one", 2, says("Fine."))
				in := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 2000)), rule)
				began := time.Now()
				end, err := loop.Run(t.Context(), &in)
				waits, parked := errors.AsType[*loop.Parked](err)
				switch {
				case parked != tc.parked, !parked && (err != nil || end.Reason != tc.reason):
					t.Fatalf("Run: %+v, %v after %s", end, err, time.Since(began))
				case parked && (!waits.Budget.Contended || time.Until(waits.Budget.Until) > time.Minute ||
					time.Since(began) > time.Minute):
					t.Errorf("parked for %+v after %s, want a short wait without a slot", waits.Budget, time.Since(began))
				}
				if tc.reason == loop.Answered && (len(s.asked) != 1 || in.State.Requests[0].Attempt != 1) {
					t.Errorf("requests: %+v, want one request with attempt 1", in.State.Requests)
				}
			})
		})
	}
}

// TestContendedBudgetLeavesTheGate checks that a request that waits for the requests of other Turns does not occupy the
// gate of its provider. A Turn with another budget could otherwise not send its request.
func TestContendedBudgetLeavesTheGate(t *testing.T) {
	for name, limits := range map[string]pace.Limits{
		"requests at the same time": {MaxConcurrent: 1},
		"requests per minute":       {RequestsPerMinute: 2},
		"tokens per minute":         {TokensPerMinute: 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journaltest.Store{}
				rule := daily("day", budget.Limits{Tokens: new(int64(5000))}, false)
				p, err := budget.PeriodAt(rule.Unit, rule.Zone, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				others := budget.Change{Reserve: []budget.Reservation{{Hold: budget.Hold{Key: budget.KeyOf("day", p), Tokens: 4500}}}}
				if err := j.Append(t.Context(), "other", journal.Entry{Seq: 1, Epoch: 1, Version: 1, Ledger: &others}); err != nil {
					t.Fatal(err)
				}
				c, s, gate := gatedCandidate("one", limits, says("never asked"))
				in := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 2000)), rule)
				ended := make(chan error)
				go func() {
					_, err := loop.Run(t.Context(), &in)
					ended <- err
				}()
				for number := range 5 {
					synctest.Wait() // the run waits for the other request
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					permit, err := gate.Enter(ctx, &pace.Request{Wait: model.Wait{Model: "m", Tokens: 60}})
					cancel()
					if err != nil {
						t.Errorf("request %d of another Turn cannot enter the gate: %v", number+1, err)
						break
					}
					permit.Done(pace.Outcome{Unsent: true})
					time.Sleep(time.Second)
				}
				if _, parked := errors.AsType[*loop.Parked](<-ended); !parked || len(s.asked) != 0 {
					t.Errorf("the run sent %d requests, want it parked without one", len(s.asked))
				}
			})
		})
	}
}

// TestUnsentRequestsDoNotCount checks that a budget counts a Turn from its first request that may have been sent.
func TestUnsentRequestsDoNotCount(t *testing.T) {
	unsent := answer{err: &model.Error{Kind: model.Auth, Message: "no key", Unsent: true}}
	notReached := answer{err: &model.Error{Kind: model.Network, Message: "connection refused", NotReached: true}}
	for name, tc := range map[string]struct {
		answers, fallback []answer
		cutOff            bool // an earlier run was cut off during a request
		turns             int64
	}{
		"none was sent":                {[]answer{unsent}, nil, false, 0},
		"none could connect":           {[]answer{notReached, notReached}, nil, false, 0},
		"the second could connect":     {[]answer{notReached, says("Fine.")}, nil, false, 1},
		"the fallback was asked":       {[]answer{unsent}, []answer{says("Fine.")}, false, 1},
		"the first was sent":           {[]answer{fails(model.Overloaded), unsent}, nil, false, 1},
		"the first may have been sent": {[]answer{unsent}, nil, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, rule := &journaltest.Store{}, daily("day", budget.Limits{Turns: new(int64(5))}, true)
				if tc.cutOff {
					cutOff(t, j, rule)
				}
				c, _ := candidate("one", 2, tc.answers...)
				chain := []loop.Candidate{withOutputLimit(c, 100)}
				if tc.fallback != nil {
					second, _ := candidate("two", 1, tc.fallback...)
					chain = append(chain, withOutputLimit(second, 100))
				}
				in := withBudgets(inputOf(t, j, 2, chain...), rule)
				_, _ = loop.Run(t.Context(), &in)
				if a := account(t, j, "day"); a.Turns != tc.turns || a.ReservedTokens != 0 {
					t.Errorf("account: %+v, want %d Turns and nothing reserved", a, tc.turns)
				}
			})
		})
	}
}

func TestCostLimitNeedsPrice(t *testing.T) {
	for name, pricing := range map[string]*model.Pricing{
		"no price": nil, "another currency": {Currency: "EUR", Input: decimal.NewFromInt(1), Output: decimal.NewFromInt(1)},
	} {
		t.Run(name, func(t *testing.T) {
			unpriced, asked := candidate("free", 1, says("Fine."))
			unpriced.Pricing = pricing
			priced, _ := candidate("dear", 1, says("Fine, too."))
			priced = withOutputLimit(priced, 10)
			rule := daily("day", budget.Limits{Cost: new(decimal.NewFromInt(1000))}, true)
			in := withBudgets(input(t, unpriced, priced), rule)
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end.Reason != loop.Answered || len(asked.asked) > 0 || in.State.LastStep().Provider != "dear" {
				t.Errorf("Run: %+v, %v; want the answer of the model that has a price in USD", end, err)
			}
			in = withBudgets(input(t, unpriced), rule)
			end, err = loop.Run(t.Context(), &in)
			if err != nil || end.Reason != loop.OverBudget || !strings.Contains(end.Message, "no price in USD") {
				t.Errorf("Run: %+v, %v; want the end, because a wait does not help", end, err)
			}
		})
	}
}

// cutOff runs a Turn in a process that is killed when it has recorded its first request.
func cutOff(t *testing.T, j *journaltest.Store, rule budget.Rule) {
	t.Helper()
	c, _ := candidate("one", 2, says("Fine."))
	killed := withBudgets(inputOf(t, j, 1, withOutputLimit(c, 2000)), rule)
	killed.Record = runAfterError(killed.Record, journal.ModelRequested, errCutOff)
	if _, err := loop.Run(t.Context(), &killed); !errors.Is(err, errCutOff) {
		t.Fatalf("Run: %v, want it cut off", err)
	}
}

// TestBudgetAfterCut checks that a request that was cut off is charged with its estimate, which the usage contains,
// too.
func TestBudgetAfterCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a clock on which no new day begins
		j := &journaltest.Store{}
		c, _ := candidate("one", 2, says("Fine."))
		c = withOutputLimit(c, 2000)
		rule := daily("day", budget.Limits{}, false)
		cutOff(t, j, rule)
		if a := account(t, j, "day"); a.ReservedTokens <= 2000 || a.Tokens != 0 {
			t.Fatalf("account: %+v, want the reservation of the request", a)
		}
		in := withBudgets(inputOf(t, j, 2, c), rule)
		if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
			t.Fatalf("Run: %+v, %v; want an answer", end, err)
		}
		var used int64
		for one := range in.State.Spendings {
			used += one.Usage.InputTokens + one.Usage.OutputTokens
		}
		if a := account(t, j, "day"); a.Turns != 1 || a.Tokens != used || a.Tokens <= 6 || a.ReservedTokens != 0 {
			t.Errorf("account: %+v; want %d tokens, the usage of the Turn", a, used)
		}
	})
}
