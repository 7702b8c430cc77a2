package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// breaks is a request that fails after so many bytes of a reply, for which the endpoint has reported a usage, or none.
func breaks(received int64, usage model.Usage) answer {
	return answer{err: &model.Error{Kind: model.Network, Message: "it broke", Received: received, Usage: usage}}
}

// tooLong is a reply that was cut off because it is too long.
func tooLong(text string, received int64, usage model.Usage) answer {
	return answer{reply: model.Reply{Text: text, FinishReason: model.FinishLength, TooLong: true, Received: received, Usage: usage}}
}

// whole is a reply of two tokens that came whole, for which the endpoint has reported a usage, or a part of one.
func whole(usage model.Usage) answer {
	return answer{reply: model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: usage}}
}

// TestWhatNobodyReported is estimated, counted and marked, also of a whole reply: the prompt has 6 tokens, and 4 bytes are one.
func TestWhatNobodyReported(t *testing.T) {
	reported := model.Usage{InputTokens: 9, OutputTokens: 4}
	for name, tc := range map[string]struct {
		reason string
		answer answer
		want   model.Usage
		cost   string
	}{
		"failed":             {"the prompt, and what came", breaks(401, model.Usage{}), model.Usage{InputTokens: 6, OutputTokens: 101, Estimated: true}, "0.001016"},
		"failed, reported":   {"the endpoint knows best", breaks(401, reported), reported, "0.000049"},
		"failed, nothing":    {"an endpoint that has sent nothing asks for nothing", breaks(0, model.Usage{}), model.Usage{}, "0"},
		"failed, rubbish":    {"an adapter may say anything", breaks(-1, model.Usage{}), model.Usage{}, "0"},
		"too long":           {"what came, kept or not", tooLong("half", 401, model.Usage{}), model.Usage{InputTokens: 6, OutputTokens: 101, Estimated: true}, "0.001016"},
		"too long, reported": {"the endpoint knows best", tooLong("half", 401, reported), reported, "0.000049"},
		"too long, not said": {"what was kept at least", tooLong(strings.Repeat("word ", 100), 0, model.Usage{}), model.Usage{InputTokens: 6, OutputTokens: 101, Estimated: true}, "0.001016"},
		"failed, half":       {"what is reported stays", breaks(401, model.Usage{InputTokens: 9}), model.Usage{InputTokens: 9, OutputTokens: 101, Estimated: true}, "0.001019"},
		"whole":              {"an endpoint that reports nothing", whole(model.Usage{}), model.Usage{InputTokens: 6, OutputTokens: 2, Estimated: true}, "0.000026"},
		"whole, reported":    {"the endpoint knows best", whole(reported), reported, "0.000049"},
		"whole, input only":  {"the output has words", whole(model.Usage{InputTokens: 9, CacheReadTokens: 3}), model.Usage{InputTokens: 9, CacheReadTokens: 3, OutputTokens: 2, Estimated: true}, "0.000029"},
		"whole, output only": {"a prompt has words", whole(model.Usage{OutputTokens: 4}), model.Usage{InputTokens: 6, OutputTokens: 4, Estimated: true}, "0.000046"},
		"whole, rubbish":     {"an endpoint may report anything", whole(model.Usage{InputTokens: -5, OutputTokens: -1}), model.Usage{InputTokens: 6, OutputTokens: 2, Estimated: true}, "0.000026"},
		"whole, thoughts":    {"which are output", answer{reply: model.Reply{Text: "Done.", Reasoning: "Done.", FinishReason: model.FinishStop}}, model.Usage{InputTokens: 6, OutputTokens: 4, Estimated: true}, "0.000046"},
		"nothing to say":     {"an empty reply has no tokens", answer{reply: model.Reply{FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 9}}}, model.Usage{InputTokens: 9}, "0.000009"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("one", 1, tc.answer)
			c.Pricing = pricing(1, 10)
			in := input(t, c)
			end, err := loop.Run(t.Context(), in)
			if failed := tc.answer.err != nil; failed != (err != nil) {
				t.Fatalf("Run = %+v, %v; want a failure: %t", end, err, failed)
			}
			var got []string
			for one := range in.State.Spendings {
				got = append(got, fmt.Sprintf("%+v for %s", one.Usage, one.Cost.Amount))
			}
			if want := fmt.Sprintf("%+v for %s", tc.want, tc.cost); len(got) != 1 || got[0] != want {
				t.Errorf("spent %s, want %s: %s", got, want, tc.reason)
			}
		})
	}
}

// TestWhatNobodyReportedIsOfTheBudget, in each run.
func TestWhatNobodyReportedIsOfTheBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		limits loop.Limits
		want   string
	}{
		"tokens": {loop.Limits{MaxTokens: 219}, "the turn has taken 214 tokens and the next request would take about 6: that is more than its budget of 219 tokens"},
		"cost":   {loop.Limits{MaxCost: decimal.RequireFromString("0.002037")}, "the turn has cost 0.002032 and the next request would cost about 0.000006: that is more than its budget of 0.002037"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journaltest.Memory{}
				for epoch, asked := range []int{2, 0} {
					c, s := candidate("one", 5, breaks(401, model.Usage{}))
					c.Pricing = pricing(1, 10)
					in := inputOf(t, j, int64(epoch)+1, c)
					in.Limits.MaxTokens, in.Limits.MaxCost = tc.limits.MaxTokens, tc.limits.MaxCost
					end, err := loop.Run(t.Context(), in)
					if err != nil || end.Reason != loop.OverBudget || end.Message != tc.want || len(s.asked) != asked {
						t.Errorf("run %d = %+v, %v after %d requests; want %q after %d", epoch+1, end, err, len(s.asked), tc.want, asked)
					}
				}
			})
		})
	}
}
