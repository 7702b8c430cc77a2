package evaluation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// unmet returns one line for each expectation that a Turn does not meet. It leaves out expectations about judges.
func (e *Expect) unmet(ctx context.Context, t *v1alpha1.Turn, r *turn.Result) []string {
	var problems []string
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if why := e.unexpectedEnd(t); why != "" {
		add("%s", why)
	}
	for _, text := range e.Contains {
		if !strings.Contains(r.Text, text) {
			add("the answer must contain %q", text)
		}
	}
	for _, text := range e.NotContains {
		if strings.Contains(r.Text, text) {
			add("the answer must not contain %q", text)
		}
	}
	for _, text := range e.Matches {
		if !matches(text, r.Text) {
			add("the answer must match %q", text)
		}
	}
	for _, text := range e.NotMatches {
		if matches(text, r.Text) {
			add("the answer must not match %q", text)
		}
	}
	o := outputOf(r)
	for _, text := range e.Expressions {
		p := outputpolicy.Policy{Expression: text}
		if holds, why := p.Holds(ctx, o); !holds {
			add("%s: %s", text, why)
		}
	}
	called := calledBy(r)
	for _, name := range e.Tools.Called {
		if !slices.Contains(called, name) {
			add("the tool %q must be called; the called tools are: %s", name, orNone(called))
		}
	}
	for _, name := range e.Tools.NotCalled {
		if slices.Contains(called, name) {
			add("the tool %q must not be called", name)
		}
	}
	return problems
}

// unexpectedEnd returns why the end of a Turn is not as expected, or "" if it is.
func (e *Expect) unexpectedEnd(t *v1alpha1.Turn) string {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	switch {
	case c == nil:
		return "the Turn has no result"
	case e.Reason != "" && c.Reason != e.Reason:
		return fmt.Sprintf("the Turn must end with reason %s, not %s: %s", e.Reason, c.Reason, c.Message)
	case e.Reason == "" && c.Status != metav1.ConditionTrue:
		return fmt.Sprintf("%s: %s", c.Reason, c.Message)
	}
	return ""
}

func matches(expression, text string) bool {
	p, err := pattern.Compile(expression)
	return err == nil && p.MatchString(text) // check has compiled it
}

// outputOf returns the variables that expressions can use, for a result.
func outputOf(r *turn.Result) *outputpolicy.Output {
	u := r.Record.Usage
	o := &outputpolicy.Output{
		Text: r.WithoutSources(), Citations: outputpolicy.Citations{Local: r.Record.Citations, Web: r.Record.WebCitations},
		Usage: outputpolicy.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, ReasoningTokens: u.ReasoningTokens,
			CacheReadTokens: u.CacheReadTokens, CacheCreationTokens: u.CacheCreationTokens,
		},
	}
	if data := r.Structured(); len(data) > 0 {
		_ = json.Unmarshal(data, &o.Data) // it is valid JSON
	}
	if c := r.Record.Cost; c != nil {
		if amount, err := decimal.NewFromString(c.Amount); err == nil {
			o.Usage.Cost = new(amount.InexactFloat64())
		}
	}
	return o
}

// calledBy returns the names of the tools that were called, sorted. Calls that were refused do not count.
func calledBy(r *turn.Result) []string {
	var names []string
	for _, c := range r.Calls {
		if c.Outcome != loop.Refused {
			names = append(names, c.Name)
		}
	}
	if d := r.Record.Decision; d != nil {
		names = append(names, d.ToolsUsed...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// refusal returns why an answer does not pass a judge, or "" if it passes.
func refusal(e *judge.Evaluation) string {
	switch e.Verdict {
	case judge.Passed:
		return ""
	case judge.BelowThreshold:
		why := fmt.Sprintf("judge %s: score %s is below %s", e.Judge, e.Score, e.Threshold)
		if e.Reason != "" {
			why += ": " + e.Reason
		}
		return why
	case judge.Failed:
	}
	return fmt.Sprintf("judge %s failed: %s", e.Judge, e.Reason)
}
