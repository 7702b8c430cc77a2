package judge_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// script is a model that answers each request with its next answer, and then repeats the last one.
type script struct {
	answers  []any // texts and errors; anything else panics
	requests []model.Request
	released int
}

func (s *script) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	s.requests = append(s.requests, *r)
	switch a := s.answers[min(len(s.requests), len(s.answers))-1].(type) {
	case string:
		return &model.Reply{Text: a, Usage: model.Usage{InputTokens: 100, OutputTokens: 10}, Release: func() { s.released++ }}, nil
	case error:
		return nil, a
	}
	panic("a bug in the adapter")
}

// candidate returns a model with prices and two attempts.
func candidate(name string, s *script) loop.Candidate {
	return loop.Candidate{
		ProviderName: "main", Model: name, Provider: s, Parameters: model.Parameters{Stop: []string{"}"}, Effort: "low"},
		Retry:   loop.Retry{MaxAttempts: 2, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Pricing: &model.Pricing{Currency: "USD", Input: decimal.NewFromInt(10), Output: decimal.NewFromInt(100)},
	}
}

func TestAsk(t *testing.T) {
	const good, bad = `{"score": 90, "reason": "It is."}`, `{"score": 69, "reason": "It is not."}`
	const nonsense = "the judge gave no usable verdict: its reply must be JSON with a score and a reason"
	overloaded := &model.Error{Kind: model.Overloaded, Message: "the endpoint is overloaded"}
	for name, tc := range map[string]struct {
		reason        string
		first, second []any
		verdict       judge.Verdict
		score         judge.Score
		why, model    string
		asked         [2]int
		cost          string
	}{
		"passed": {"the score is high enough", []any{good}, nil, judge.Passed, 90, "It is.", "first", [2]int{1, 0}, "0.002"},
		"below": {
			"the score is below the threshold", []any{bad}, nil, judge.BelowThreshold, 69, "It is not.", "first", [2]int{1, 0}, "0.002",
		},
		"limit": {"the threshold itself passes", []any{`{"score": 70}`}, nil, judge.Passed, 70, "", "first", [2]int{1, 0}, "0.002"},
		"unusable, then good": {
			"an unusable reply is requested once more",
			[]any{"Good!", good},
			nil, judge.Passed, 90, "It is.", "first",
			[2]int{2, 0},
			"0.004",
		},
		"nonsense": {
			"no other model is paid for the same question",
			[]any{"Good!"},
			[]any{good},
			judge.Failed, 0,
			nonsense, "first",
			[2]int{2, 0},
			"0.004",
		},
		"repeats the prompt": {
			"the form in the instruction is no verdict",
			[]any{`Reply only with JSON of this form: {"score": 100, "reason": "x"}`},
			nil,
			judge.Failed, 0, nonsense, "first",
			[2]int{2, 0},
			"0.004",
		},
		"retried": {
			"an overloaded endpoint is asked again",
			[]any{overloaded, good},
			nil, judge.Passed, 90, "It is.", "first",
			[2]int{2, 0},
			"0.002",
		},
		"fallback": {
			"the next model of the chain is asked",
			[]any{overloaded},
			[]any{bad},
			judge.BelowThreshold, 69, "It is not.", "second",
			[2]int{2, 1},
			"0.002",
		},
		"all fail": {
			"the evaluation has failed, with a reason",
			[]any{overloaded},
			[]any{&model.Error{Kind: model.Auth, Message: "the key is refused"}},
			judge.Failed, 0, "the key is refused", "second",
			[2]int{2, 1},
			"",
		},
		"filtered": {
			"no other model may bypass a filter",
			[]any{&model.Error{Kind: model.ContentFiltered, Message: "the filter"}},
			[]any{good},
			judge.Failed, 0, "the filter", "first",
			[2]int{1, 0},
			"",
		},
		"billed": {
			"a request that may be billed is not repeated",
			[]any{&model.Error{
				Kind: model.Timeout, Message: "too slow", MayBeBilled: true, Usage: model.Usage{InputTokens: 100, OutputTokens: 10},
			}},
			[]any{good},
			judge.Passed, 90, "It is.", "second",
			[2]int{1, 1},
			"0.004",
		},
		"panic": {
			"a bug in an adapter is a failed request", []any{42}, []any{good}, judge.Passed, 90, "It is.", "second", [2]int{1, 1}, "0.002",
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := &script{answers: tc.first}, &script{answers: tc.second}
			a := judge.Asker{Chain: []loop.Candidate{candidate("first", first)}}
			if tc.second != nil {
				a.Chain = append(a.Chain, candidate("second", second))
			}
			got := a.Ask(t.Context(), relevance(), subject("40 EUR."))
			asked := [2]int{len(first.requests), len(second.requests)}
			cost := ""
			if got.Cost != nil {
				cost = got.Cost.Amount.String()
			}
			score := judge.Score(0)
			if got.Score != nil {
				score = *got.Score
			}
			if got.Verdict != tc.verdict || score != tc.score || got.Reason != tc.why || got.Model != tc.model || asked != tc.asked ||
				cost != tc.cost {
				t.Errorf("evaluation %+v, score %s, cost %q, requests %v; want %s, %s, %q, %s, %v, %q: %s",
					got, score, cost, asked, tc.verdict, tc.score, tc.why, tc.model, tc.asked, tc.cost, tc.reason)
			}
			if (got.Score == nil) != (tc.verdict == judge.Failed) {
				t.Errorf("score %v, want a score unless the evaluation failed", got.Score)
			}
			for _, r := range first.requests {
				if len(r.Parameters.Stop) > 0 || r.Parameters.Effort != "low" || r.Model != "first" {
					t.Errorf("the request has %+v for %s, want the parameters of the model without stop sequences", r.Parameters, r.Model)
				}
			}
			if first.released+second.released == 0 && got.Score != nil {
				t.Error("the memory of the replies was not released")
			}
		})
	}
}

// TestAskWithoutAModel checks evaluations for which no request can be sent.
func TestAskWithoutAModel(t *testing.T) {
	want := judge.Evaluation{
		Judge: "to-the-point", Kind: judge.Relevance, Verdict: judge.Failed, Threshold: 70, Reason: "there is no model to ask",
	}
	if diff := cmp.Diff(want, (&judge.Asker{}).Ask(t.Context(), relevance(), subject("x"))); diff != "" {
		t.Errorf("without models: -want +got:\n%s", diff)
	}
	c := candidate("first", &script{answers: []any{&model.Error{
		Kind: model.Unusable, Unsent: true, Message: `provider "main": the ModelProvider does not exist`,
	}}})
	c.Unusable = true
	want.Provider, want.Model, want.Reason = "main", "first", `provider "main": the ModelProvider does not exist`
	if diff := cmp.Diff(want, (&judge.Asker{Chain: []loop.Candidate{c}}).Ask(t.Context(), relevance(), subject("x"))); diff != "" {
		t.Errorf("with an unusable model: -want +got:\n%s", diff)
	}
}

// TestAskRedacts checks that the reason of a failure has no credential.
func TestAskRedacts(t *testing.T) {
	s := &script{answers: []any{&model.Error{Kind: model.Auth, Message: "the endpoint refuses key-1"}}}
	a := judge.Asker{
		Chain:  []loop.Candidate{candidate("first", s)},
		Redact: func(text string) string { return strings.ReplaceAll(text, "key-1", "[redacted]") },
	}
	if got := a.Ask(t.Context(), relevance(), subject("x")); got.Reason != "the endpoint refuses [redacted]" {
		t.Errorf("the reason is %q, want it without the key", got.Reason)
	}
}

// TestAskUnknownCost checks that the cost is absent if the price of one request is not known.
func TestAskUnknownCost(t *testing.T) {
	first, second := &script{answers: []any{"Good!"}}, &script{answers: []any{`{"score": 90}`}}
	c := candidate("second", second)
	c.Pricing = nil
	first.answers = []any{&model.Error{
		Kind: model.Timeout, Message: "slow", MayBeBilled: true, Usage: model.Usage{InputTokens: 1, OutputTokens: 1},
	}}
	got := (&judge.Asker{Chain: []loop.Candidate{candidate("first", first), c}}).Ask(t.Context(), relevance(), subject("x"))
	if got.Cost != nil || got.Usage.InputTokens != 101 {
		t.Errorf("cost %v and usage %+v, want no cost and the tokens of both requests", got.Cost, got.Usage)
	}
}

// TestAskEndsWithItsContext checks that an evaluation ends when its context ends during the wait between two attempts.
func TestAskEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{answers: []any{&model.Error{Kind: model.Overloaded, Message: "busy", RetryAfter: time.Minute}}}
		time.AfterFunc(10*time.Millisecond, cancel)
		c := candidate("first", s)
		got := (&judge.Asker{Chain: []loop.Candidate{c, candidate("second", s)}}).Ask(ctx, relevance(), subject("x"))
		if got.Verdict != judge.Failed || !strings.Contains(got.Reason, "busy") || len(s.requests) != 1 {
			t.Errorf("the evaluation is %+v after %d requests, want Failed after one", got, len(s.requests))
		}
	})
}

func TestFailureWithoutACostMayBeRetried(t *testing.T) {
	failure := func(kind model.ErrorKind, unsent bool) error {
		return &model.Error{Kind: kind, Message: "no", Unsent: unsent}
	}
	for name, tc := range map[string]struct {
		reason        string
		first, second []any
		want          bool
	}{
		"limited": {"the endpoint accepted no request in time", []any{failure(model.RateLimited, true)}, nil, true},
		"refused": {"the endpoint refused the request", []any{failure(model.RateLimited, false)}, nil, true},
		"busy":    {"the endpoint refused the request", []any{failure(model.Overloaded, false)}, nil, true},
		"later": {
			"the endpoint refused the first request, and accepted no further request in time",
			[]any{failure(model.Overloaded, false), failure(model.Overloaded, true)},
			nil, true,
		},
		"paid": {
			"the first request may have been paid for",
			[]any{&model.Error{Kind: model.Timeout, Message: "no", MayBeBilled: true}},
			[]any{failure(model.RateLimited, false)},
			false,
		},
		"used": {
			"the first request has used tokens",
			[]any{&model.Error{Kind: model.Overloaded, Message: "no", Usage: model.Usage{InputTokens: 1}}},
			nil, false,
		},
		"broken":      {"the endpoint has not refused the request", []any{failure(model.Malformed, false)}, nil, false},
		"other model": {"no request was sent", []any{failure(model.RateLimited, true)}, []any{failure(model.RateLimited, true)}, true},
		"limited, then unusable": {
			"the first model may answer later", []any{failure(model.RateLimited, false)}, []any{failure(model.Unusable, true)}, true,
		},
		"busy, then a refused key": {
			"the first model may answer later", []any{failure(model.Overloaded, false)}, []any{failure(model.Auth, false)}, true,
		},
		"limited, then over the Budget": {
			"the first model may answer later", []any{failure(model.RateLimited, true)}, []any{failure(model.OverBudget, true)}, true,
		},
		"a refused key, then busy": {
			"the second model may answer later", []any{failure(model.Auth, false)}, []any{failure(model.Overloaded, false)}, true,
		},
		"limited, then unreachable": {
			"the first model may answer later", []any{failure(model.RateLimited, false)}, []any{failure(model.Network, false)}, true,
		},
		"limited, then broken": {
			"the first model may answer later", []any{failure(model.RateLimited, false)}, []any{failure(model.Malformed, false)}, true,
		},
		"broken, then limited": {
			"the second model may answer later", []any{failure(model.Malformed, false)}, []any{failure(model.RateLimited, false)}, true,
		},
		"broken and paid, then limited": {
			"the first request may have been paid for",
			[]any{&model.Error{Kind: model.Malformed, Message: "no", MayBeBilled: true}},
			[]any{failure(model.RateLimited, false)},
			false,
		},
		"limited, then nonsense": {"the second model has replied", []any{failure(model.RateLimited, false)}, []any{"Good!"}, false},
		"unusable":               {"a later request cannot be sent either", []any{failure(model.Unusable, true)}, nil, false},
		"nonsense":               {"the model has replied", []any{"Good!"}, nil, false},
		"passed":                 {"there is a score", []any{`{"score": 90}`}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &judge.Asker{Chain: []loop.Candidate{candidate("first", &script{answers: tc.first})}}
			if tc.second != nil {
				a.Chain = append(a.Chain, candidate("second", &script{answers: tc.second}))
			}
			e := a.Ask(t.Context(), &judge.Judge{Name: "relevant", Kind: judge.Relevance}, &judge.Subject{Answer: "Yes."})
			if e.MayRetry != tc.want {
				t.Errorf("MayRetry is %t, want %t: %s (%s)", e.MayRetry, tc.want, tc.reason, e.Reason)
			}
		})
	}
}
