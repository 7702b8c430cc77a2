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

// brokenRequest returns the failure of a request after this number of bytes of a reply. usage may be zero.
func brokenRequest(received int64, usage model.Usage) answer {
	return answer{err: &model.Error{Kind: model.Network, Message: "it broke", Received: received, Usage: usage}}
}

// longReply returns a reply that was cut off because it is too long.
func longReply(text string, received int64, usage model.Usage) answer {
	return answer{reply: model.Reply{Text: text, FinishReason: model.FinishLength, TooLong: true, Received: received, Usage: usage}}
}

// wholeReply returns a complete reply of two tokens. usage may be incomplete or zero.
func wholeReply(usage model.Usage) answer {
	return answer{reply: model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: usage}}
}

// TestUnreportedUsage checks that missing usage is estimated, counted and marked, even for a complete reply. The
// prompt has 6 tokens, and 4 bytes count as one token.
func TestUnreportedUsage(t *testing.T) {
	reported := model.Usage{InputTokens: 9, OutputTokens: 4}
	for name, tc := range map[string]struct {
		reason string
		answer answer
		want   model.Usage
		cost   string
	}{
		"failed": {
			"the prompt and the received bytes are estimated", brokenRequest(401, model.Usage{}),
			model.Usage{InputTokens: 6, OutputTokens: 101, Estimated: true},
			"0.001016",
		},
		"failed, reported": {"the reported usage counts", brokenRequest(0, reported), reported, "0.000049"},
		"failed, reported early": {
			"more has arrived since", brokenRequest(401, reported),
			model.Usage{InputTokens: 9, OutputTokens: 101, Estimated: true},
			"0.001019",
		},
		"failed, reported late": {"less has arrived", brokenRequest(16, reported), reported, "0.000049"},
		"may be billed": {
			"the endpoint has read the prompt",
			answer{err: &model.Error{Kind: model.Timeout, Message: "it is slow", MayBeBilled: true}},
			model.Usage{InputTokens: 6, Estimated: true},
			"0.000006",
		},
		"may be billed, reported": {
			"the reported usage counts",
			answer{err: &model.Error{Kind: model.Timeout, Message: "it is slow", MayBeBilled: true, Usage: reported}},
			reported, "0.000049",
		},
		"failed, nothing": {"nothing received costs nothing", brokenRequest(0, model.Usage{}), model.Usage{}, "0"},
		"failed, rubbish": {"a negative number counts as 0", brokenRequest(-1, model.Usage{}), model.Usage{}, "0"},
		"too long": {
			"all received bytes count", longReply("half", 401, model.Usage{}),
			model.Usage{InputTokens: 6, OutputTokens: 101, Estimated: true},
			"0.001016",
		},
		"too long, reported": {"the reported usage counts", longReply("half", 0, reported), reported, "0.000049"},
		"too long, reported early": {
			"more has arrived since", longReply("half", 401, reported),
			model.Usage{InputTokens: 9, OutputTokens: 101, Estimated: true},
			"0.001019",
		},
		"too long, bytes unknown": {
			"at least the kept text counts", longReply(strings.Repeat("word ", 100), 0, model.Usage{}),
			model.Usage{InputTokens: 6, OutputTokens: 101, Estimated: true},
			"0.001016",
		},
		"failed, input reported": {
			"the reported part stays", brokenRequest(401, model.Usage{InputTokens: 9}),
			model.Usage{InputTokens: 9, OutputTokens: 101, Estimated: true},
			"0.001019",
		},
		"whole": {
			"prompt and reply are estimated", wholeReply(model.Usage{}),
			model.Usage{InputTokens: 6, OutputTokens: 2, Estimated: true},
			"0.000026",
		},
		"whole, reported": {"the reported usage counts", wholeReply(reported), reported, "0.000049"},
		"whole, input only": {
			"only the output is estimated", wholeReply(model.Usage{InputTokens: 9, CacheReadTokens: 3}),
			model.Usage{InputTokens: 9, CacheReadTokens: 3, OutputTokens: 2, Estimated: true},
			"0.000029",
		},
		"whole, output only": {
			"only the prompt is estimated", wholeReply(model.Usage{OutputTokens: 4}),
			model.Usage{InputTokens: 6, OutputTokens: 4, Estimated: true},
			"0.000046",
		},
		"whole, rubbish": {
			"negative numbers are replaced by estimates", wholeReply(model.Usage{InputTokens: -5, OutputTokens: -1}),
			model.Usage{InputTokens: 6, OutputTokens: 2, Estimated: true},
			"0.000026",
		},
		"whole, thoughts": {"reasoning counts as output", answer{reply: model.Reply{
			Text: "Done.", Reasoning: "Done.",
			FinishReason: model.FinishStop,
		}}, model.Usage{InputTokens: 6, OutputTokens: 4, Estimated: true}, "0.000046"},
		"nothing to say": {"an empty reply has no tokens", answer{reply: model.Reply{
			FinishReason: model.FinishStop,
			Usage:        model.Usage{InputTokens: 9},
		}}, model.Usage{InputTokens: 9}, "0.000009"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("one", 1, tc.answer)
			c.Pricing = pricing(1, 10)
			in := input(t, c)
			end, err := loop.Run(t.Context(), &in)
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

// TestUnreportedUsageCounts checks that estimated usage counts against the budget in each run.
func TestUnreportedUsageCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		limits loop.Limits
		want   string
	}{
		"tokens": {
			loop.Limits{MaxTokens: 219},
			"the turn used 214 tokens and the next request would use about 6 more: together they exceed its budget of 219 tokens",
		},
		"cost": {
			loop.Limits{MaxCost: decimal.RequireFromString("0.002037")},
			"the turn cost 0.002032 and the next request would cost about 0.000006 more: together they exceed its budget of 0.002037",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journaltest.Store{}
				for epoch, asked := range []int{2, 0} {
					c, s := candidate("one", 5, brokenRequest(401, model.Usage{}))
					c.Pricing = pricing(1, 10)
					in := inputOf(t, j, int64(epoch)+1, c)
					in.Limits.MaxTokens, in.Limits.MaxCost = tc.limits.MaxTokens, tc.limits.MaxCost
					end, err := loop.Run(t.Context(), &in)
					if err != nil || end.Reason != loop.OverBudget || end.Message != tc.want || len(s.asked) != asked {
						t.Errorf("run %d = %+v, %v after %d requests; want %q after %d", epoch+1, end, err, len(s.asked), tc.want, asked)
					}
				}
			})
		})
	}
}
