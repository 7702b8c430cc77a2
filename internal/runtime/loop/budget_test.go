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
	return &model.Pricing{Currency: "USD", Input: decimal.NewFromInt(in), Output: decimal.NewFromInt(out), CacheRead: decimal.NewFromInt(in)}
}

// used is an answer for which an endpoint reports a usage.
func used(a answer, in, out int64) answer {
	a.reply.Usage = model.Usage{InputTokens: in, OutputTokens: out}
	return a
}

// reasoned is one that has spent a part of its output on reasoning.
func reasoned(a answer, in, out, reasoning int64) answer {
	a = used(a, in, out)
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
		"none":            {"no bound, no stop", []answer{used(look, 1e6, 1e6), says("Done.")}, 0, "0", pricing(1, 10), 2, ""},
		"tokens suffice":  {"to the last: 1100, and 1101", []answer{used(look, 1000, 100), says("Done.")}, 2201, "0", nil, 2, ""},
		"tokens":          {"the next prompt has what the last one had, its reply and what was found", []answer{used(look, 1000, 100), says("Done.")}, 2200, "0", nil, 1, "the turn has taken 1100 tokens and the next request would take about 1101: that is more than its budget of 2200 tokens"},
		"reasoning":       {"it is taken, but not sent back", []answer{reasoned(look, 1000, 5100, 5000), says("Done.")}, 7201, "0", nil, 2, ""},
		"reasoned enough": {"to the last", []answer{reasoned(look, 1000, 5100, 5000), says("Done.")}, 7200, "0", nil, 1, "the turn has taken 6100 tokens and the next request would take about 1101: that is more than its budget of 7200 tokens"},
		"wild reasoning":  {"a reply has no less than nothing", []answer{reasoned(look, 1000, 100, 500), says("Done.")}, 2100, "0", nil, 1, "the turn has taken 1100 tokens and the next request would take about 1001: that is more than its budget of 2100 tokens"},
		"first request":   {"which is estimated: 6 tokens of messages and 23 of a tool", []answer{says("Done.")}, 29, "0", nil, 1, ""},
		"first too long":  {"it is not sent", []answer{says("Done.")}, 28, "0", nil, 0, "the turn has taken 0 tokens and the next request would take about 29: that is more than its budget of 28 tokens"},
		"cost suffices":   {"to the last: 0.002 and 0.001101", []answer{used(look, 1000, 100), says("Done.")}, 0, "0.003101", pricing(1, 10), 2, ""},
		"cost":            {"of the next request the prompt alone is known", []answer{used(look, 1000, 100), says("Done.")}, 0, "0.0031", pricing(1, 10), 1, "the turn has cost 0.002 and the next request would cost about 0.001101: that is more than its budget of 0.0031"},
		"unpriced":        {"a model without a price costs nothing", []answer{used(look, 1000, 100), says("Done.")}, 0, "0.0000000001", nil, 2, ""},
		"no usage":        {"what no endpoint reports is estimated, and added up", []answer{used(look, 0, 0), says("Done.")}, 40, "0", nil, 1, "the turn has taken 31 tokens and the next request would take about 32: that is more than its budget of 40 tokens"},
		"wild":            {"an endpoint may report anything: it ends the Turn and not the count", []answer{used(look, math.MaxInt64, math.MaxInt64), says("Done.")}, 1e9, "0", nil, 1, "the turn has taken 2251799813685248 tokens, which is more than its budget of 1000000000 tokens: no more tools were called"},
		"wild and priced": {"nor the cost", []answer{used(look, math.MaxInt64, math.MinInt64), says("Done.")}, 0, "1", pricing(1, 10), 1, "the turn has cost 1125899906.842644, which is more than its budget of 1: no more tools were called"},
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
	if err != nil || end.Reason != loop.OverBudget || len(second.requests) != 0 || !strings.HasPrefix(end.Message, "the turn has taken 7 tokens and the next request would take about 6:") {
		t.Errorf("Run = %+v, %v; want the budget used up by the request that failed", end, err)
	}
	one, _ = candidate("one", 1, fails(model.Auth))
	two, second = candidate("two", 1, says("Done."))
	two.Pricing = pricing(1_000_000, 1)
	in = input(t, one, two)
	in.Limits.MaxCost = decimal.NewFromInt(3)
	end, err = loop.Run(t.Context(), in)
	if err != nil || end.Reason != loop.OverBudget || len(second.requests) != 0 {
		t.Errorf("Run = %+v, %v; want the fallback not to be asked: it would cost about 6", end, err)
	}
}

// TestEachAttemptIsWithinTheBudget, as those that fail are paid for, too.
func TestEachAttemptIsWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := candidate("one", 5, fails(model.Overloaded)) // which takes 7 tokens
		in := input(t, c)
		in.Limits.MaxTokens = 20
		end, err := loop.Run(t.Context(), in)
		want := loop.End{
			Reason: loop.OverBudget, Message: "the turn has taken 21 tokens and the next request would take about 6: that is more than its budget of 20 tokens",
		}
		if err != nil || *end != want || len(s.asked) != 3 {
			t.Errorf("Run = %+v, %v after %d requests; want %+v after 3: 14 and 6 are within the budget, 21 and 6 are not", end, err, len(s.asked), want)
		}
	})
}

// TestNoCallBeyondTheBudget looks at a Turn whose reply has used up all: nobody could be told of the calls it asks for.
func TestNoCallBeyondTheBudget(t *testing.T) {
	look := asksFor("I look.", call("c1", "find", `{}`), call("c2", "find", `{}`))
	for name, tc := range map[string]struct {
		reason string
		tokens int64
		cost   string
		calls  int
		why    string
	}{
		"tokens":      {"1100 are more", 1099, "0", 0, "the turn has taken 1100 tokens, which is more than its budget of 1099 tokens: no more tools were called"},
		"just so":     {"no request fits in, but a call takes no tokens", 1100, "0", 2, "the turn has taken 1100 tokens and the next request would take about 1102: that is more than its budget of 1100 tokens"},
		"cost":        {"0.002 is more", 0, "0.0019", 0, "the turn has cost 0.002, which is more than its budget of 0.0019: no more tools were called"},
		"cost so far": {"nor does it cost any", 0, "0.002", 2, "the turn has cost 0.002 and the next request would cost about 0.001102: that is more than its budget of 0.002"},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Memory{}
			for epoch := range int64(2) {
				c, s := candidate("one", 1, used(look, 1000, 100))
				c.Pricing = pricing(1, 10)
				find, found := toolOf("find", tool.Destructive, result{content: "found"})
				in := with(inputOf(t, j, epoch+1, c), find)
				in.Limits.MaxTokens, in.Limits.MaxCost = tc.tokens, decimal.RequireFromString(tc.cost)
				end, err := loop.Run(t.Context(), in)
				if want := (loop.End{Reason: loop.OverBudget, Message: tc.why}); err != nil || *end != want {
					t.Fatalf("run %d: %+v, %v; want %+v: %s", epoch+1, end, err, want, tc.reason)
				}
				if epoch > 0 && len(found.calls)+len(s.requests) > 0 || in.State.ToolCalls() != tc.calls || in.State.UnknownOutcomes() != 0 {
					t.Errorf("run %d: %d calls in all, want %d in the first: %s", epoch+1, in.State.ToolCalls(), tc.calls, tc.reason)
				}
				messages := in.State.Messages()
				if len(messages) != 1+tc.calls || messages[0].Content != "I look." || len(messages[0].ToolCalls) != tc.calls {
					t.Errorf("the messages are %+v, want what was said with the %d calls that have an answer", messages, tc.calls)
				}
			}
		})
	}
}

// TestACallOnceMoreIsNotANewOne: one that was under way is made again whatever was spent since.
func TestACallOnceMoreIsNotANewOne(t *testing.T) {
	c, _ := candidate("one", 1, says("Done."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := with(inputOf(t, left(t, tool.ReadOnly), 2, c), find)
	in.Limits.MaxTokens = 1 // of 6 that are used
	if end, err := loop.Run(t.Context(), in); err != nil || end.Reason != loop.OverBudget || len(found.calls) != 1 {
		t.Errorf("Run = %+v, %v after %d calls; want the call to have an end, and then the loop", end, err, len(found.calls))
	}
}

// cutOff is a run that dies with a request under way.
func cutOff(t *testing.T, j journal.Journal, epoch int64, limits loop.Limits, c loop.Candidate) (loop.Input, error) {
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
	end, err := loop.Run(t.Context(), in)
	if err == nil {
		err = errors.New(end.Message)
	}
	return in, err
}

var errCutOff = errors.New("the run was cut off")

// TestRequestsThatWereCutOff are of the budget, at what is known of them, and not of what is reported.
func TestRequestsThatWereCutOff(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		limits loop.Limits
		want   string
	}{
		"tokens": {"6 for each", loop.Limits{MaxTokens: 15}, "the turn has taken 12 tokens and the next request would take about 6: that is more than its budget of 15 tokens"},
		"cost": {
			"at the prices of the time",
			loop.Limits{MaxCost: decimal.NewFromInt(15)},
			"the turn has cost 12 and the next request would cost about 6: that is more than its budget of 15",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Memory{}
			c, s := candidate("one", 2, says("never kept"))
			c.Pricing = pricing(1_000_000, 1)
			for epoch := range int64(2) {
				if _, err := cutOff(t, j, epoch+1, tc.limits, c); !errors.Is(err, errCutOff) {
					t.Fatalf("run %d: %v, want it cut off", epoch+1, err)
				}
			}
			in, err := cutOff(t, j, 3, tc.limits, c)
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

// TestARequestWithAnEndIsCountedOnce, by what it has used, also where others before were cut off.
func TestARequestWithAnEndIsCountedOnce(t *testing.T) {
	j := &journaltest.Memory{}
	c, _ := candidate("one", 1, says("never kept"))
	if _, err := cutOff(t, j, 1, loop.Limits{}, c); !errors.Is(err, errCutOff) {
		t.Fatal(err)
	}
	one, _ := candidate("one", 1, fails(model.Auth)) // which takes 7 tokens
	two, second := candidate("two", 1, says("Done."))
	in := inputOf(t, j, 2, one, two)
	in.Limits.MaxTokens = 14
	end, err := loop.Run(t.Context(), in)
	want := "the turn has taken 13 tokens and the next request would take about 6: that is more than its budget of 14 tokens"
	if err != nil || end.Message != want || len(second.requests) != 0 {
		t.Errorf("Run = %+v, %v; want %q: 6 of the request that was cut off and 7 of the one that failed", end, err, want)
	}
}

// TestARequestThatEndsEachRun is not sent for ever.
func TestARequestThatEndsEachRun(t *testing.T) {
	j := &journaltest.Memory{}
	c, s := candidate("one", 2, says("never kept"))
	for epoch := range int64(10) {
		if _, err := cutOff(t, j, epoch+1, loop.Limits{}, c); !errors.Is(err, errCutOff) {
			t.Fatalf("run %d: %v, want a request that is cut off", epoch+1, err)
		}
	}
	_, err := cutOff(t, j, 11, loop.Limits{}, c)
	failure, ok := errors.AsType[*loop.Error](err)
	const want = "gave up after 10 requests for one step, 10 of which were cut off because their run ended: find out in the logs of the executor what ends it"
	if !ok || failure.Kind != model.Network || failure.Message != want || len(s.requests) != 10 {
		t.Errorf("Run: %v after %d requests, want %q", err, len(s.requests), want)
	}
	two, second := candidate("two", 1, says("Done."))
	if end, err := loop.Run(t.Context(), inputOf(t, j, 12, c, two)); err != nil || end.Reason != loop.Answered || len(second.requests) != 1 {
		t.Errorf("with a second model: %+v, %v; want its answer", end, err)
	}
}
