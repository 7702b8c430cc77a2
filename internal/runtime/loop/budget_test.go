package loop_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func pricing(in, out int64) *model.Pricing {
	return &model.Pricing{
		Currency: "USD", Input: decimal.NewFromInt(in), Output: decimal.NewFromInt(out),
		CacheRead: decimal.NewFromInt(in),
	}
}

// withUsage returns an answer with a reported usage.
func withUsage(a answer, in, out int64) answer {
	a.reply.Usage = model.Usage{InputTokens: in, OutputTokens: out}
	return a
}

// withReasoning returns an answer that has used a part of its output tokens for reasoning.
func withReasoning(a answer, in, out, reasoning int64) answer {
	a = withUsage(a, in, out)
	a.reply.Usage.ReasoningTokens = reasoning
	return a
}

func TestBudget(t *testing.T) {
	look := asksFor("", call("c1", "find", `{}`))
	for name, tc := range map[string]struct {
		reason  string
		answers []answer
		tokens  int64
		cost    string
		pricing *model.Pricing
		asked   int
		why     string // empty if the Turn is answered
	}{
		"no limit": {
			"without a limit the Turn continues",
			[]answer{withUsage(look, 1e6, 1e6), says("Done.")},
			0,
			"0", pricing(1, 10), 2, "",
		},
		"tokens suffice": {
			"1100 tokens used and 1101 expected are exactly the budget",
			[]answer{withUsage(look, 1000, 100), says("Done.")},
			2201, "0", nil, 2, "",
		},
		"tokens": {
			"the next prompt has the last prompt, its reply and the result",
			[]answer{withUsage(look, 1000, 100), says("Done.")},
			2200, "0", nil, 1,
			"the turn used 1100 tokens and the next request would use about 1101 more: together they exceed its budget of 2200 tokens",
		},
		"reasoning": {
			"reasoning counts as used, but is not sent back",
			[]answer{withReasoning(look, 1000, 5100, 5000), says("Done.")},
			7201, "0", nil, 2, "",
		},
		"reasoning, one token too few": {
			"one token less is too little",
			[]answer{withReasoning(look, 1000, 5100, 5000), says("Done.")},
			7200, "0", nil,
			1, "the turn used 6100 tokens and the next request would use about 1101 more: together they exceed its budget of 7200 tokens",
		},
		"more reasoning than output": {
			"a reply never has fewer than 0 tokens",
			[]answer{withReasoning(look, 1000, 100, 500), says("Done.")},
			2100, "0", nil, 1,
			"the turn used 1100 tokens and the next request would use about 1001 more: together they exceed its budget of 2100 tokens",
		},
		"first request": {
			"the first prompt is estimated: 6 tokens of messages and 23 of a tool",
			[]answer{says("Done.")},
			29, "0", nil, 1, "",
		},
		"first too long": {
			"a prompt beyond the budget is not sent",
			[]answer{says("Done.")},
			28, "0", nil, 0,
			"the turn used 0 tokens and the next request would use about 29 more: together they exceed its budget of 28 tokens",
		},
		"cost suffices": {
			"0.002 spent and 0.001101 expected are exactly the budget",
			[]answer{withUsage(look, 1000, 100), says("Done.")},
			0, "0.003101", pricing(1, 10), 2, "",
		},
		"cost": {
			"only the prompt of the next request is counted",
			[]answer{withUsage(look, 1000, 100), says("Done.")},
			0, "0.0031", pricing(1, 10), 1,
			"the turn cost 0.002 and the next request would cost about 0.001101 more: together they exceed its budget of 0.0031",
		},
		"unpriced": {
			"a model without a price costs nothing",
			[]answer{withUsage(look, 1000, 100), says("Done.")},
			0, "0.0000000001", nil, 2, "",
		},
		"no usage": {
			"missing usage is estimated and counted",
			[]answer{withUsage(look, 0, 0), says("Done.")},
			40, "0", nil, 1,
			"the turn used 31 tokens and the next request would use about 32 more: together they exceed its budget of 40 tokens",
		},
		"absurd usage": {
			"an absurd usage ends the Turn without an overflow",
			[]answer{withUsage(look, math.MaxInt64, math.MaxInt64), says("Done.")},
			1e9, "0", nil, 1,
			"the turn used 2251799813685248 tokens, which is more than its budget of 1000000000 tokens: no further tools were called",
		},
		"absurd usage with a price": {
			"an absurd usage has a bounded cost",
			[]answer{withUsage(look, math.MaxInt64, math.MinInt64), says("Done.")},
			0,
			"1", pricing(1, 10), 1, "the turn cost 1125899906.842644, which is more than its budget of 1: no further tools were called",
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				j := &journaltest.Store{}
				c, s := candidate("one", 1, tc.answers...)
				c.Pricing = tc.pricing
				find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
				run := func(epoch int64) (*loop.End, error) {
					in := withTools(inputOf(t, j, epoch, c), find)
					in.Limits.MaxTokens, in.Limits.MaxCost = tc.tokens, decimal.RequireFromString(tc.cost)
					if restart && epoch == 1 { // interrupt the first run during its call
						stop := make(chan struct{})
						find.Caller.(*fakeToolServer).results[0].do = func() { close(stop) }
						in.Interrupt = stop
					}
					return loop.Run(t.Context(), &in)
				}
				end, err := run(1)
				if restart {
					find.Caller.(*fakeToolServer).results[0].do = nil
					end, err = run(2)
				}
				if err != nil || len(s.requests) != tc.asked {
					t.Fatalf("Run: %v after %d requests, want %d: %s", err, len(s.requests), tc.asked, tc.reason)
				}
				want := loop.End{Reason: loop.Answered, Message: "the model answered"}
				if tc.why != "" {
					want = loop.End{Reason: loop.OverBudget, Message: tc.why}
				}
				if *end != want {
					t.Errorf("end %+v, want %+v: %s", *end, want, tc.reason)
				}
			})
		}
	}
}

// TestBudgetCountsALongReply checks that a request is not sent if its reply may exceed the budget.
func TestBudgetCountsALongReply(t *testing.T) {
	expensive := pricing(1_000_000, 2_000_000)
	reasoned := *expensive
	reasoned.Reasoning = new(decimal.NewFromInt(3_000_000))
	for name, tc := range map[string]struct {
		reason     string
		declared   int64
		wanted     *int
		tokens     int64
		cost       string
		pricing    *model.Pricing
		isAnswered bool
		why        string
		window     int64
	}{
		"tokens suffice": {"6 for the prompt and 50 for the reply", 50, nil, 56, "0", nil, true, "", 0},
		"tokens": {
			"one token is missing", 50, nil, 55, "0", nil, false,
			"the turn used 0 tokens and the next request may use 56 more, about 6 for its prompt and up to 50 for the reply: " +
				"together they exceed its budget of 55 tokens: raise limits.maxTokens, or lower parameters.maxOutputTokens of the Agent", 0,
		},
		"shorter wanted": {"the lower limit counts", 50, new(20), 26, "0", nil, true, "", 0},
		"longer wanted":  {"the model cannot write more", 20, new(50), 26, "0", nil, true, "", 0},
		"only wanted": {
			"nothing is declared", 0, new(20), 25, "0", nil, false, "the turn used 0 tokens and the next request may use 26 more, " +
				"about 6 for its prompt and up to 20 for the reply: together they exceed its budget of 25 tokens: " +
				"raise limits.maxTokens, or lower parameters.maxOutputTokens of the Agent",
			0,
		},
		"cost suffices": {"6 for the prompt and 100 for the reply", 50, nil, 0, "106", expensive, true, "", 0},
		"cost": {
			"0.1 is missing", 50, nil, 0, "105.9", expensive, false,
			"the turn cost 0 and the next request may cost 106 more with a reply of up to 50 tokens: together they exceed its budget " +
				"of 105.9: raise limits.maxCost, or lower parameters.maxOutputTokens of the Agent", 0,
		},
		"reasoning": {
			"the reply may be all reasoning", 50, nil, 0, "155", &reasoned, false,
			"the turn cost 0 and the next request may cost 156 more with a reply of up to 50 tokens: together they exceed its budget " +
				"of 155: raise limits.maxCost, or lower parameters.maxOutputTokens of the Agent", 0,
		},
		"unknown price":               {"a cost that is unknown cannot be limited", 50, nil, 0, "0.0000000001", nil, true, "", 0},
		"a model that can write much": {"the reply is seldom so long", 64_000, nil, 1030, "0", nil, true, "", 0},
		"a model that can write much, and a small budget": {
			"the rest is too little for a useful reply", 64_000, nil, 1029, "0", nil, false,
			"the turn used 0 tokens and the next request may use 1030 more, about 6 for its prompt and at least 1024 for the reply: " +
				"together they exceed its budget of 1029 tokens: raise limits.maxTokens",
			0,
		},
		"a long reply is wanted": {"a shorter one is useful", 64_000, new(2000), 2005, "0", nil, true, "", 0},
		"window":                 {"prompt and reply are in one window", 50, nil, 40, "0", nil, true, "", 40},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, says("Done."))
			c.ContextWindow = tc.window
			c.Pricing, c.MaxOutputTokens, c.Parameters.MaxOutputTokens = tc.pricing, tc.declared, tc.wanted
			in := input(t, c)
			in.Limits.MaxTokens, in.Limits.MaxCost = tc.tokens, decimal.RequireFromString(tc.cost)
			end, err := loop.Run(t.Context(), &in)
			if err != nil || (end.Reason == loop.Answered) != tc.isAnswered || len(s.requests) == 1 != tc.isAnswered {
				t.Fatalf("Run = %+v, %v after %d requests; want it answered: %t: %s", end, err, len(s.requests), tc.isAnswered, tc.reason)
			}
			if want := (loop.End{Reason: loop.OverBudget, Message: tc.why}); !tc.isAnswered && *end != want {
				t.Errorf("end %+v, want %+v: %s", *end, want, tc.reason)
			}
		})
	}
}

// TestReplyThatTheBudgetCutsOff checks that a reply that reaches an output limit ends the Turn because of its budget
// only if the budget lowered this limit. The Turn keeps the text so far. It makes no difference whether a run is cut
// off between the reply and the end.
func TestReplyThatTheBudgetCutsOff(t *testing.T) {
	cut := answer{reply: model.Reply{
		Text: "It is a long", FinishReason: model.FinishLength, Usage: model.Usage{InputTokens: 1003, OutputTokens: 1996},
	}}
	want := loop.End{Reason: loop.OverBudget, Message: "the model's answer was cut off after 1996 output tokens, because the turn's " +
		"budget left no more: raise limits.maxTokens or limits.maxCost, or ask for a shorter answer"}
	answered := loop.End{Reason: loop.Answered, Message: "the model answered"}
	for name, tc := range map[string]struct {
		reason        string
		tokens        int64
		window        int64
		own           *int
		first, second int // the output limits of the requests
		byWindow      bool
		end           loop.End
	}{
		"by the budget":                         {"the model may write more", 3999, 0, nil, 3970, 1994, false, want},
		"by the Agent":                          {"the budget would allow it", 3999, 0, new(1990), 1990, 1990, false, answered},
		"by the window":                         {"there is no budget", 0, 50_000, nil, 49_971, 48_997, true, answered},
		"by the window, although with a budget": {"the budget leaves more", 100_000, 50_000, nil, 49_971, 48_997, true, answered},
		"by a budget below the window":          {"the window leaves more", 40_000, 50_000, nil, 39_971, 37_995, false, want},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, s := candidate("one", 1, withUsage(asksFor("", call("c1", "find", `{}`)), 1000, 2), cut)
			c.MaxOutputTokens, c.Parameters.MaxOutputTokens, c.ContextWindow = 64_000, tc.own, tc.window
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			for epoch := range int64(2) {
				in := withTools(inputOf(t, j, epoch+1, c), find)
				in.Limits.MaxTokens = tc.tokens
				end, err := loop.Run(t.Context(), &in)
				if err != nil || *end != tc.end || in.State.CutByWindow() != tc.byWindow || in.State.AnswerText() != "It is a long" {
					t.Errorf("run %d: %+v, %v with the answer %q, cut off by the window: %t; want %+v, %t and the text so far: %s", epoch+1,
						end, err, in.State.AnswerText(), in.State.CutByWindow(), tc.end, tc.byWindow, tc.reason)
				}
			}
			var limits []int
			for _, r := range s.requests {
				limits = append(limits, r.MaxOutput())
				if r.Parameters.MaxOutputTokens != tc.own || r.OutputLimit > 0 != (tc.own == nil) {
					t.Errorf("the request has the Agent's limit %v and the lower limit %d", r.Parameters.MaxOutputTokens, r.OutputLimit)
				}
			}
			if want := []int{tc.first, tc.second}; !slices.Equal(limits, want) {
				t.Errorf("the requests have the output limits %d, want %d", limits, want)
			}
		})
	}
}

// TestBudgetOfAChain checks that a model that costs too much is skipped for one that costs less, also after tools have
// run, and that the journal shows it. A later run does not ask the first model again.
func TestBudgetOfAChain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		second *model.Pricing
		asked  int // requests to the second model
		end    loop.Reason
	}{
		"cheaper":      {"the second model fits into the budget", pricing(1, 10), 1, loop.Answered},
		"as expensive": {"no model fits", pricing(1000, 1000), 0, loop.OverBudget},
		"unpriced":     {"the cost is not limited", nil, 1, loop.Answered},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			one, first := candidate("one", 1, withUsage(asksFor("", call("c1", "find", `{}`)), 1000, 100), says("Never."))
			one.Pricing = pricing(1000, 1000)
			two, second := candidate("two", 1, says("Done."))
			two.Pricing = tc.second
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			for epoch := range int64(2) {
				in := withTools(inputOf(t, j, epoch+1, one, two), find)
				in.Limits.MaxCost = decimal.NewFromInt(2) // 1.1 are used
				end, err := loop.Run(t.Context(), &in)
				if err != nil || end.Reason != tc.end || len(first.requests) != 1 || len(second.requests) != tc.asked {
					t.Fatalf("run %d: %+v, %v, asked %d and %d times; want %s, 1 and %d: %s", epoch+1, end, err, len(first.requests),
						len(second.requests), tc.end, tc.asked, tc.reason)
				}
				failed := in.State.FailedRequests
				if len(failed) != 1 || failed[0].Kind != model.OverBudget || !failed[0].Unsent || failed[0].Step != 2 ||
					failed[0].Place != 1 ||
					!strings.HasPrefix(failed[0].GaveUp, "the turn cost 1.1 and the next request would cost about") {
					t.Errorf("run %d: the journal has %+v, want that the first model was given up for its cost", epoch+1, failed)
				}
			}
		})
	}
}

// TestFailedRequestsCount checks that failed requests count against the budget, and that a fallback is
// checked with its own price.
func TestFailedRequestsCount(t *testing.T) {
	one, _ := candidate("one", 1, fails(model.Auth)) // it uses 7 tokens
	two, second := candidate("two", 1, says("Done."))
	in := input(t, one, two)
	in.Limits.MaxTokens = 10
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.OverBudget || len(second.requests) != 0 ||
		!strings.HasPrefix(end.Message, "the turn used 7 tokens and the next request would use about 6 more:") {
		t.Errorf("Run = %+v, %v; want the budget used up by the request that failed", end, err)
	}
	one, _ = candidate("one", 1, fails(model.Auth))
	two, second = candidate("two", 1, says("Done."))
	two.Pricing = pricing(1_000_000, 1)
	in = input(t, one, two)
	in.Limits.MaxCost = decimal.NewFromInt(3)
	end, err = loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.OverBudget || len(second.requests) != 0 {
		t.Errorf("Run = %+v, %v; want the fallback not to be asked: it would cost about 6", end, err)
	}
}

// TestBudgetBeforeEachAttempt checks the budget before each attempt, because failed attempts cost money too.
func TestBudgetBeforeEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := candidate("one", 5, fails(model.Overloaded)) // it uses 7 tokens
		in := input(t, c)
		in.Limits.MaxTokens = 20
		end, err := loop.Run(t.Context(), &in)
		want := loop.End{
			Reason: loop.OverBudget, Message: "the turn used 21 tokens and the next request would use about 6 " +
				"more: together they exceed its budget of 20 tokens",
		}
		if err != nil || *end != want || len(s.asked) != 3 {
			t.Errorf("Run = %+v, %v after %d requests; want %+v after 3: 14 and 6 are within the budget, 21 and 6 are not", end, err,
				len(s.asked), want)
		}
	})
}

// TestNoCallBeyondTheBudget uses up the budget with one reply. Its calls are not made, because no further request
// could return their results to the model.
func TestNoCallBeyondTheBudget(t *testing.T) {
	look := asksFor("I look.", call("c1", "find", `{}`), call("c2", "find", `{}`))
	for name, tc := range map[string]struct {
		reason string
		tokens int64
		cost   string
		calls  int
		why    string
	}{
		"tokens": {
			"1100 tokens exceed the budget", 1099, "0", 0,
			"the turn used 1100 tokens, which is more than its budget of 1099 tokens: no further tools were called",
		},
		"tokens exactly used up": {
			"no request fits into the budget, but a call needs no tokens", 1100, "0", 2,
			"the turn used 1100 tokens and the next request would use about 1102 more: together they exceed its budget of 1100 tokens",
		},
		"cost": {
			"0.002 exceeds the budget", 0, "0.0019", 0,
			"the turn cost 0.002, which is more than its budget of 0.0019: no further tools were called",
		},
		"cost exactly used up": {
			"a call has no cost", 0, "0.002", 2,
			"the turn cost 0.002 and the next request would cost about 0.001102 more: together they exceed its budget of 0.002",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			for epoch := range int64(2) {
				c, s := candidate("one", 1, withUsage(look, 1000, 100))
				c.Pricing = pricing(1, 10)
				find, found := toolOf("find", tool.Destructive, result{content: "found"})
				in := withTools(inputOf(t, j, epoch+1, c), find)
				in.Limits.MaxTokens, in.Limits.MaxCost = tc.tokens, decimal.RequireFromString(tc.cost)
				end, err := loop.Run(t.Context(), &in)
				if want := (loop.End{Reason: loop.OverBudget, Message: tc.why}); err != nil || *end != want {
					t.Fatalf("run %d: %+v, %v; want %+v: %s", epoch+1, end, err, want, tc.reason)
				}
				if epoch > 0 && len(found.calls)+len(s.requests) > 0 || in.State.ToolCalls() != tc.calls ||
					in.State.UnknownOutcomes() != 0 {
					t.Errorf("run %d: %d calls in all, want %d in the first: %s", epoch+1, in.State.ToolCalls(), tc.calls, tc.reason)
				}
				messages := in.State.Messages(t.Context())
				if len(messages) != 1+tc.calls || messages[0].Content != "I look." || len(messages[0].ToolCalls) != tc.calls {
					t.Errorf("the messages are %+v, want the text of the reply and its %d calls that have a result", messages, tc.calls)
				}
			}
		})
	}
}

// TestInterruptedCallIgnoresTheBudget checks that an interrupted call is repeated even if the budget is spent by now.
func TestInterruptedCallIgnoresTheBudget(t *testing.T) {
	c, _ := candidate("one", 1, says("Done."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(inputOf(t, interruptedJournal(t, tool.ReadOnly), 2, c), find)
	in.Limits.MaxTokens = 1 // 6 are used
	if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.OverBudget || len(found.calls) != 1 {
		t.Errorf("Run = %+v, %v after %d calls; want the call repeated, and then the end", end, err, len(found.calls))
	}
}

// runCutOff makes a run that dies with errCutOff before it records the end of its first request. If the run ends before
// that, the error is the error of Run or the message of the End.
func runCutOff(t *testing.T, j journal.Journal, epoch int64, limits loop.Limits, c loop.Candidate) (loop.Input, error) {
	t.Helper()
	in := inputOf(t, j, epoch, c)
	in.Limits.MaxTokens, in.Limits.MaxCost = limits.MaxTokens, limits.MaxCost
	record := in.Record
	in.Record = func(records ...journal.Record) error {
		if kind := records[0].Kind; kind == journal.ModelReplied || kind == journal.ModelFailed {
			return errCutOff
		}
		return record(records...)
	}
	end, err := loop.Run(t.Context(), &in)
	if err == nil {
		err = errors.New(end.Message)
	}
	return in, err
}

var errCutOff = errors.New("the run was cut off")

// TestCutOffRequestsCount checks that requests that were cut off count with their estimates, both in the budget
// and in the reported usage.
func TestCutOffRequestsCount(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		limits loop.Limits
		want   string
	}{
		"tokens": {
			"each request counts 6 tokens",
			loop.Limits{MaxTokens: 15},
			"the turn used 12 tokens and the next request would use about 6 more: together they exceed its budget of 15 tokens",
		},
		"cost": {
			"each request counts the price of 6 tokens",
			loop.Limits{MaxCost: decimal.NewFromInt(15)},
			"the turn cost 12 and the next request would cost about 6 more: together they exceed its budget of 15",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, s := candidate("one", 2, says("never kept"))
			c.Pricing = pricing(1_000_000, 1)
			for epoch := range int64(2) {
				if _, err := runCutOff(t, j, epoch+1, tc.limits, c); !errors.Is(err, errCutOff) {
					t.Fatalf("run %d: %v, want it cut off", epoch+1, err)
				}
			}
			in, err := runCutOff(t, j, 3, tc.limits, c)
			if err == nil || err.Error() != tc.want || len(s.requests) != 2 {
				t.Errorf("the third run: %v after %d requests, want %q after 2: %s", err, len(s.requests), tc.want, tc.reason)
			}
			var reported []model.Usage
			for one := range in.State.Spendings {
				reported = append(reported, one.Usage)
			}
			estimate := model.Usage{InputTokens: 6, Estimated: true}
			if want := []model.Usage{estimate, estimate}; !slices.Equal(reported, want) {
				t.Errorf("the usage %+v is reported, want %+v: the endpoint may have billed the prompts", reported, want)
			}
		})
	}
}

// TestFinishedRequestCountsOnce checks that a finished request counts once with its real usage, even if an
// earlier request was cut off.
func TestFinishedRequestCountsOnce(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("one", 1, says("never kept"))
	if _, err := runCutOff(t, j, 1, loop.Limits{}, c); !errors.Is(err, errCutOff) {
		t.Fatal(err)
	}
	one, _ := candidate("one", 1, fails(model.Auth)) // it uses 7 tokens
	two, second := candidate("two", 1, says("Done."))
	in := inputOf(t, j, 2, one, two)
	in.Limits.MaxTokens = 14
	end, err := loop.Run(t.Context(), &in)
	want := "the turn used 13 tokens and the next request would use about 6 more: together they exceed its budget of 14 tokens"
	if err != nil || end.Message != want || len(second.requests) != 0 {
		t.Errorf("Run = %+v, %v; want %q: 6 tokens of the request that was cut off and 7 of the failed request", end, err, want)
	}
}

// TestRequestThatEndsEachRun checks that a request that ends each run is not sent forever.
func TestRequestThatEndsEachRun(t *testing.T) {
	j := &journaltest.Store{}
	c, s := candidate("one", 2, says("never kept"))
	for epoch := range int64(10) {
		if _, err := runCutOff(t, j, epoch+1, loop.Limits{}, c); !errors.Is(err, errCutOff) {
			t.Fatalf("run %d: %v, want a request that is cut off", epoch+1, err)
		}
	}
	_, err := runCutOff(t, j, 11, loop.Limits{}, c)
	failure, ok := errors.AsType[*loop.Error](err)
	const want = "stopped after 10 requests for one step, because 10 of them were cut off when their run ended: " +
		"the logs of the executor show the cause"
	if !ok || failure.Kind != model.Network || failure.Message != want || len(s.requests) != 10 {
		t.Errorf("Run: %v after %d requests, want %q", err, len(s.requests), want)
	}
	two, second := candidate("two", 1, says("Done."))
	if end, err := loop.Run(t.Context(), new(inputOf(t, j, 12, c, two))); err != nil || end.Reason != loop.Answered ||
		len(second.requests) != 1 {
		t.Errorf("with a second model: %+v, %v; want its answer", end, err)
	}
}
