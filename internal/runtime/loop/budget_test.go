package loop_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func pricing(in, out int64) *model.Pricing {
	return &model.Pricing{Currency: "USD", Input: decimal.NewFromInt(in), Output: decimal.NewFromInt(out), CacheRead: decimal.NewFromInt(in)}
}

// used is an answer for which an endpoint reports a usage.
func used(a answer, in, out int64) answer {
	a.reply.Usage = model.Usage{InputTokens: in, OutputTokens: out}
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
		"none":            {"no bound, no stop", []answer{used(look, 1e6, 1e6), says("Done.")}, 0, "0", pricing(1, 10), 2, ""},
		"tokens suffice":  {"to the last", []answer{used(look, 1000, 100), says("Done.")}, 2200, "0", nil, 2, ""},
		"tokens":          {"the next prompt has at least what the last one had, with its reply", []answer{used(look, 1000, 100), says("Done.")}, 2199, "0", nil, 1, "the turn has taken 1100 tokens and the next request would take about 1100: that is more than its budget of 2199 tokens"},
		"first request":   {"which is estimated by its length: 19 characters", []answer{says("Done.")}, 4, "0", nil, 1, ""},
		"first too long":  {"it is not sent", []answer{says("Done.")}, 3, "0", nil, 0, "the turn has taken 0 tokens and the next request would take about 4: that is more than its budget of 3 tokens"},
		"cost suffices":   {"to the last: 0.002 and 0.0011", []answer{used(look, 1000, 100), says("Done.")}, 0, "0.0031", pricing(1, 10), 2, ""},
		"cost":            {"of the next request the prompt alone is known", []answer{used(look, 1000, 100), says("Done.")}, 0, "0.0030", pricing(1, 10), 1, "the turn has cost 0.002 and the next request would cost about 0.0011: that is more than its budget of 0.003"},
		"unpriced":        {"a model without a price costs nothing", []answer{used(look, 1000, 100), says("Done.")}, 0, "0.0000000001", nil, 2, ""},
		"no usage":        {"what no endpoint reports is estimated, but not added up", []answer{used(look, 0, 0), says("Done.")}, 6, "0", nil, 2, ""},
		"wild":            {"an endpoint may report anything: it ends the Turn and not the count", []answer{used(look, math.MaxInt64, math.MaxInt64), says("Done.")}, 1e9, "0", nil, 1, "the turn has taken 2251799813685248 tokens and the next request would take about 2251799813685248: that is more than its budget of 1000000000 tokens"},
		"wild and priced": {"nor the cost", []answer{used(look, math.MaxInt64, math.MinInt64), says("Done.")}, 0, "1", pricing(1, 10), 1, "the turn has cost 1125899906.842624 and the next request would cost about 1125899906.842624: that is more than its budget of 1"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				j := &journaltest.Memory{}
				c, s := candidate("one", 1, tc.answers...)
				c.Pricing = tc.pricing
				find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
				run := func(epoch int64) (*loop.End, error) {
					in := with(inputOf(t, j, epoch, c), find)
					in.Limits.MaxTokens, in.Limits.MaxCost = tc.tokens, decimal.RequireFromString(tc.cost)
					if restart && epoch == 1 { // after the call
						stop := make(chan struct{})
						find.Caller.(*server).results[0].do = func() { close(stop) }
						in.Interrupt = stop
					}
					return loop.Run(t.Context(), in)
				}
				end, err := run(1)
				if restart {
					find.Caller.(*server).results[0].do = nil
					c.Pricing = nil // prices are those of the time of the reply
					if tc.pricing != nil {
						c.Pricing = tc.pricing
					}
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

// TestFailedRequestsAreOfTheBudget, and a fallback is judged by its own price.
func TestFailedRequestsAreOfTheBudget(t *testing.T) {
	one, _ := candidate("one", 1, fails(model.Auth)) // which takes 7 tokens
	two, second := candidate("two", 1, says("Done."))
	in := input(t, one, two)
	in.Limits.MaxTokens = 10
	end, err := loop.Run(t.Context(), in)
	if err != nil || end.Reason != loop.OverBudget || len(second.requests) != 0 || !strings.HasPrefix(end.Message, "the turn has taken 7 tokens and the next request would take about 4:") {
		t.Errorf("Run = %+v, %v; want the budget used up by the request that failed", end, err)
	}
	one, _ = candidate("one", 1, fails(model.Auth))
	two, second = candidate("two", 1, says("Done."))
	two.Pricing = pricing(1_000_000, 1)
	in = input(t, one, two)
	in.Limits.MaxCost = decimal.NewFromInt(3)
	end, err = loop.Run(t.Context(), in)
	if err != nil || end.Reason != loop.OverBudget || len(second.requests) != 0 {
		t.Errorf("Run = %+v, %v; want the fallback not to be asked: it would cost about 4", end, err)
	}
}
