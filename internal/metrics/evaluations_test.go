package metrics

import (
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

func TestEvaluationsAreCounted(t *testing.T) {
	const namespace = "evaluated"
	for _, e := range []turnrecord.Evaluation{
		{Judge: "polite", Verdict: "Passed", Score: "0.9", Usage: model.Usage{InputTokens: 100, OutputTokens: 10}},
		{Judge: "polite", Verdict: "BelowThreshold", Score: "0.1"},
		{Judge: "polite", Verdict: "Failed"},
	} {
		Evaluated(namespace, "desk", &e)
	}
	// The result of BelowThreshold is Failed. The result of Failed, which has no score, is Error.
	for _, result := range []string{"Passed", "Failed", "Error"} {
		if n := valueOf(t, evaluations.WithLabelValues(namespace, "desk", "polite", result)); n != 1 {
			t.Errorf("%v evaluations are %s, want 1", n, result)
		}
	}
	if got := observations(t, evaluationScore, namespace, "desk", "polite"); got != [2]float64{2, 1} {
		t.Errorf("scores: number and sum %v, want 2 and 1", got)
	}
	if n := valueOf(t, evaluationTokens.WithLabelValues(namespace, "input")); n != 100 {
		t.Errorf("%v input tokens, want 100", n)
	}
}

// TestJudgesAreBounded checks the bound of judges, whose names the authors of profiles choose.
func TestJudgesAreBounded(t *testing.T) {
	const namespace = "inventive"
	for i := range 100 {
		Evaluated(namespace, "desk", &turnrecord.Evaluation{Judge: fmt.Sprint("judge-", i), Score: "1", Verdict: "Passed"})
	}
	known.mu.Lock()
	judges := len(known.namespaces[namespace].judges)
	known.mu.Unlock()
	if judges != mostJudges {
		t.Errorf("%d judges have their own series, want %d", judges, mostJudges)
	}
	if n := valueOf(t, evaluations.WithLabelValues(namespace, Other, Other, "Passed")); n != 100-mostJudges {
		t.Errorf("%v evaluations count as other, want %d", n, 100-mostJudges)
	}
	live := Live{namespace: Names{Agents: map[string]bool{}}}
	for range keepGone {
		Sweep(live)
	}
	known.mu.Lock()
	judges = len(known.namespaces[namespace].judges)
	known.mu.Unlock()
	if judges != 0 {
		t.Errorf("%d judges of a deleted Agent have their own series, want none", judges)
	}
}
