package finalize

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

func pricing(currency, in, out, cached string) *Pricing {
	return &Pricing{
		Currency: currency, Input: decimal.RequireFromString(in), Output: decimal.RequireFromString(out), CacheRead: decimal.RequireFromString(cached),
	}
}

func TestCitations(t *testing.T) {
	ten := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	for name, tc := range map[string]struct {
		reason string
		in     Input
		want   []string
	}{
		"order":      {"in the order of the facts, each once, blank ones left out", Input{Answered: true, ShowCitations: true, Sources: []string{"b", "", "a", "b", "a"}}, []string{"b", "a"}},
		"cap":        {"at most eight", Input{Answered: true, ShowCitations: true, Sources: ten}, ten[:8]},
		"hidden":     {"none if they are to be hidden", Input{Answered: true, Sources: ten}, nil},
		"unanswered": {"none without an answer", Input{ShowCitations: true, Sources: ten}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Make(tc.in).Citations); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestCost(t *testing.T) {
	usage := func(in, out, cached int64) model.Usage {
		return model.Usage{InputTokens: in, OutputTokens: out, CacheReadTokens: cached}
	}
	usd := pricing("USD", "2.50", "10", "1.25")
	for name, tc := range map[string]struct {
		reason    string
		spendings []Spending
		want      *Cost
		failures  []string
	}{
		"nothing":        {"no model, no cost", nil, nil, nil},
		"plain":          {"prices are per million", []Spending{{usage(1000, 100, 0), usd}}, &Cost{"0.0035", "USD"}, nil},
		"cached":         {"tokens from the cache have their own price", []Spending{{usage(1000, 0, 400), usd}}, &Cost{"0.002", "USD"}, nil},
		"only cached":    {"more cached than sent costs the cached ones", []Spending{{usage(10, 0, 1000), usd}}, &Cost{"0.00125", "USD"}, nil},
		"exact":          {"no digit is lost", []Spending{{usage(1, 1, 0), pricing("USD", "0.000000001", "999999999.999999999", "0")}}, &Cost{"1000", "USD"}, nil},
		"smallest":       {"down to the last", []Spending{{usage(1, 0, 0), pricing("USD", "0.000000001", "0", "0")}}, &Cost{"0.000000000000001", "USD"}, nil},
		"no float":       {"0.1 three times is 0.3", []Spending{{usage(1e6, 0, 0), pricing("USD", "0.1", "0", "0")}, {usage(2e6, 0, 0), pricing("USD", "0.1", "0", "0")}}, &Cost{"0.3", "USD"}, nil},
		"free":           {"a price of zero is a price", []Spending{{usage(5, 5, 0), pricing("EUR", "0", "0", "0")}}, &Cost{"0", "EUR"}, nil},
		"two models":     {"each at its own price", []Spending{{usage(1000, 0, 0), usd}, {usage(1000, 0, 0), pricing("USD", "1", "1", "1")}}, &Cost{"0.0035", "USD"}, nil},
		"unpriced":       {"a cost that is not whole is none", []Spending{{usage(1000, 0, 0), usd}, {usage(1, 0, 0), nil}}, nil, nil},
		"unpriced, idle": {"a model that used nothing needs no price", []Spending{{usage(0, 0, 0), nil}, {usage(1000, 100, 0), usd}}, &Cost{"0.0035", "USD"}, nil},
		"two currencies": {
			"amounts of two currencies have no sum",
			[]Spending{{usage(1, 0, 0), usd}, {usage(1, 0, 0), pricing("EUR", "1", "1", "1")}},
			nil,
			[]string{"cost: the models that were used have prices in USD and EUR"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Make(Input{Spendings: tc.spendings})
			if diff := cmp.Diff(tc.want, got.Cost); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.failures, got.Failures); diff != "" {
				t.Errorf("failures: -want +got:\n%s", diff)
			}
		})
	}
}

func TestOneFailureLeavesTheRestWhole(t *testing.T) {
	got := Make(Input{
		Answered: true, ShowCitations: true, Sources: []string{"a"}, DecisionKey: "support.chat.turn",
		Report: prepare.Report{Report: prompt.Report{RenderHash: "r"}, ContextHash: "c"},
		Spendings: []Spending{
			{model.Usage{InputTokens: 1, OutputTokens: 2, ReasoningTokens: 1}, pricing("USD", "1", "1", "1")},
			{model.Usage{InputTokens: 3, CacheReadTokens: 2}, pricing("EUR", "1", "1", "1")},
		},
	})
	want := Record{
		Citations: []string{"a"}, Usage: model.Usage{InputTokens: 4, OutputTokens: 2, ReasoningTokens: 1, CacheReadTokens: 2},
		Decision: &Decision{Key: "support.chat.turn", Strategy: "DirectAnswer", PromptRenderHash: "r", ContextHash: "c"},
		Failures: []string{"cost: the models that were used have prices in USD and EUR"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestStepsAreGuarded(t *testing.T) {
	failure := errors.New("failed")
	for name, tc := range map[string]struct {
		step func(Input, *Record) error
		want string
	}{
		"done":       {func(Input, *Record) error { return nil }, "<nil>"},
		"failed":     {func(Input, *Record) error { return failure }, "failed"},
		"panics":     {func(Input, *Record) error { panic("no such thing") }, "panic: no such thing"},
		"nil access": {func(_ Input, r *Record) error { r.Cost.Amount = "1"; return nil }, "panic: runtime error: invalid memory address or nil pointer dereference"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(guarded(tc.step, Input{}, &Record{})); got != tc.want {
				t.Errorf("guarded = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNoDecisionWithoutAnAnswer(t *testing.T) {
	if got := Make(Input{DecisionKey: "k"}).Decision; got != nil {
		t.Errorf("decision %+v, want none: nothing was decided", got)
	}
}
