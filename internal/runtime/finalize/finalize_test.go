package finalize

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func cost(amount, currency string) *model.Cost {
	return &model.Cost{Amount: decimal.RequireFromString(amount), Currency: currency}
}

func complete(in *Input) *Record {
	r, steps := &Record{}, &Steps{}
	r.Complete(steps, in)
	r.Failures = steps.Failures
	return r
}

func TestCost(t *testing.T) {
	used, idle := model.Usage{InputTokens: 1}, model.Usage{}
	for name, tc := range map[string]struct {
		reason    string
		spendings []Spending
		want      *Cost
		known     string
		failures  []string
	}{
		"nothing": {"without a model there is no cost", nil, nil, "0", nil},
		"one": {
			"the cost of one model is the total", []Spending{{used, cost("0.0035", "USD")}}, &Cost{"0.0035", "USD"}, "0", nil,
		},
		"decimal": {
			"three times 0.1 is exactly 0.3",
			[]Spending{{used, cost("0.1", "USD")}, {used, cost("0.1", "USD")}, {used, cost("0.1", "USD")}},
			&Cost{"0.3", "USD"}, "0", nil,
		},
		"exact": {
			"no digit is lost",
			[]Spending{{used, cost("999999999.999999999", "USD")}, {used, cost("0.000000000000001", "USD")}},
			&Cost{"999999999.999999999000001", "USD"}, "0", nil,
		},
		"free": {"a cost of zero is a cost", []Spending{{used, cost("0", "EUR")}}, &Cost{"0", "EUR"}, "0", nil},
		"unpriced": {
			"the total is unknown if one cost is unknown, and the known part is kept",
			[]Spending{{used, cost("1", "USD")}, {used, nil}, {used, cost("0.5", "USD")}},
			nil, "1.5", nil,
		},
		"unpriced, idle": {
			"a model without usage needs no price",
			[]Spending{{idle, nil}, {used, cost("1", "USD")}},
			&Cost{"1", "USD"},
			"0", nil,
		},
		"two currencies": {
			"costs in two currencies have no sum",
			[]Spending{{used, cost("1", "USD")}, {used, cost("1", "EUR")}},
			nil,
			"2",
			[]string{"cost: the used models have prices in different currencies, USD and EUR"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := complete(&Input{Spendings: tc.spendings})
			if diff := cmp.Diff(tc.want, got.Cost); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got.KnownCost.String() != tc.known {
				t.Errorf("%s: the known part of the cost is %s, want %s", tc.reason, got.KnownCost, tc.known)
			}
			if diff := cmp.Diff(tc.failures, got.Failures); diff != "" {
				t.Errorf("failures: -want +got:\n%s", diff)
			}
		})
	}
}

func TestFailedStepDoesNotAffectOtherSteps(t *testing.T) {
	got := complete(&Input{
		Answered: true, DecisionKey: "support.chat.turn",
		Report: prepare.Report{Report: prompt.Report{RenderHash: "r"}, ContextHash: "c"},
		Spendings: []Spending{
			{model.Usage{InputTokens: 1, OutputTokens: 2, ReasoningTokens: 1}, cost("1", "USD")},
			{model.Usage{InputTokens: 3, CacheReadTokens: 2}, cost("1", "EUR")},
		},
	})
	want := &Record{
		Usage:     model.Usage{InputTokens: 4, OutputTokens: 2, ReasoningTokens: 1, CacheReadTokens: 2},
		KnownCost: decimal.NewFromInt(2),
		Decision:  &Decision{Key: "support.chat.turn", Strategy: "DirectAnswer", PromptRenderHash: "r", ContextHash: "c"},
		Failures:  []string{"cost: the used models have prices in different currencies, USD and EUR"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSteps(t *testing.T) {
	secret := errors.New("a part of the conversation")
	ran := 0
	s := &Steps{}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"works", func() error { return nil }},
		{"fails", func() error { return errors.New("no such thing") }},
		{"panics", func() error { panic(secret) }},
		{"has a nil pointer", func() error { var r *Record; r.Cost.Amount = "1"; return nil }},
		{"panics below", func() error { return Guard(func() error { panic(secret) }) }},
	} {
		if ok := s.Do(step.name, func() error { ran++; return step.do() }); ok != (step.name == "works") {
			t.Errorf("the step that %s succeeded: %t", step.name, ok)
		}
	}
	got := strings.Join(s.Failures, "\n")
	want := regexp.MustCompile(`^fails: no such thing
panics: a bug in Capstan, in finalize\.TestSteps\.func3, line \d+
has a nil pointer: a bug in Capstan, in finalize\.TestSteps\.func4, line \d+
panics below: a bug in Capstan, in finalize\.TestSteps\.func5\.1, line \d+$`)
	if ran != 5 || !want.MatchString(got) {
		t.Errorf("%d steps ran, and the failures are\n%s\nwant 5 and\n%s", ran, got, want)
	}
}

func TestBeforeFailsSteps(t *testing.T) {
	ran := ""
	s := &Steps{Before: func(step string) error {
		switch step {
		case "a":
			return errors.New("out of order")
		case "b":
			panic("a bug")
		}
		return nil
	}}
	for _, name := range []string{"a", "b", "c"} {
		s.Do(name, func() error { ran += name; return nil })
	}
	if ran != "c" || len(s.Failures) != 2 || s.Failures[0] != "a: out of order" ||
		!strings.HasPrefix(s.Failures[1], "b: a bug in Capstan") {
		t.Errorf("the steps %q ran with the failures %q, want only c to run", ran, s.Failures)
	}
}

func TestStrategy(t *testing.T) {
	called := func(roles ...tool.Role) []Called {
		var all []Called
		for i, r := range roles {
			all = append(all, Called{Name: fmt.Sprintf("t%d", i), Role: r})
		}
		return all
	}
	for name, tc := range map[string]struct {
		reason string
		called []Called
		want   string
	}{
		"none":    {"the answer comes from the prompt alone", nil, StrategyDirectAnswer},
		"other":   {"the answer comes with the help of tools", called(tool.Other), StrategyToolAssisted},
		"no role": {"a tool without a role counts as Other", called(""), StrategyToolAssisted},
		"local": {
			"the answer uses the organization's data", called(tool.Other, tool.LocalSearch), StrategyRetrievalAugmented,
		},
		"a context pack": {
			"a context pack counts, although it was called before the model was asked", called(tool.ContextPack),
			StrategyRetrievalAugmented,
		},
		"web search": {
			"a web search has precedence over all other tools",
			called(tool.ContextPack, tool.LocalSearch, tool.Other, tool.WebSearch), StrategyWebAugmented,
		},
		"web search before another tool": {
			"the order of the calls does not matter", called(tool.WebSearch, tool.Other), StrategyWebAugmented,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := complete(&Input{Answered: true, Called: tc.called}).Decision.Strategy; got != tc.want {
				t.Errorf("the strategy is %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestToolsUsed(t *testing.T) {
	got := complete(&Input{Answered: true, Called: []Called{{Name: "b"}, {Name: "a"}, {Name: "b"}}}).Decision.ToolsUsed
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Errorf("the tools must be sorted, each once: -want +got:\n%s", diff)
	}
	var many []Called
	for i := range 100 {
		many = append(many, Called{Name: fmt.Sprintf("t%02d", i)})
	}
	if got := complete(&Input{Answered: true, Called: many}).Decision.ToolsUsed; len(got) != MaxToolsUsed || got[0] != "t00" {
		t.Errorf("the decision lists %v, want the first %d", got, MaxToolsUsed)
	}
}

func TestDecisionWithoutAnAnswer(t *testing.T) {
	got := complete(&Input{
		DecisionKey: "k", Called: []Called{{Name: "close"}},
		Report: prepare.Report{Report: prompt.Report{RenderHash: "r"}, ContextHash: "c"},
	}).Decision
	want := &Decision{Key: "k", ToolsUsed: []string{"close"}, PromptRenderHash: "r", ContextHash: "c"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the decision must have no strategy, but the called tool: -want +got:\n%s", diff)
	}
}
