package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// evaluationsReport returns a report in which no limit is exceeded.
func evaluationsReport() *EvaluationsReport {
	return &EvaluationsReport{
		TurnsPerBurst: 200, Rounds: 5, WithoutEvaluations: Percentiles{P50: 2000, P95: 3000},
		WithEvaluations:       Percentiles{P50: 2200, P95: 3300},
		SecondsUntilEvaluated: 4.21, EvaluatedTurns: 2000,
	}
}

func TestEvaluationsReport(t *testing.T) {
	r := evaluationsReport()
	if err := r.failure(); err != nil {
		t.Errorf("failure = %v, want none", err)
	}
	const want = `200 Turns at the same time, during the evaluations of 200 others, model latency 2s, 2 CPUs, medians of 5 rounds

evaluations                             none       all   ratio     limit
creation to completion, p50, ms         2000      2200    1.10      1.30
creation to completion, p95, ms         3000      3300    1.10      1.30

All 2000 Turns with judges were evaluated. The 400 Turns of a round were evaluated 4.2 s after its last answer.
`
	if diff := cmp.Diff(want, r.table(Setup{LatencyMilliseconds: 2000, CPUs: 2})); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		change func(*EvaluationsReport)
		want   string
	}{
		"delay": {
			func(r *EvaluationsReport) { r.WithEvaluations.P95 = 4000 },
			"p95: 4000 ms with evaluations, 3000 ms without, 1.33 times as long, more than 1.30",
		},
		"failed":     {func(r *EvaluationsReport) { r.FailedEvaluations = 1 }, "the evaluation of 1 Turns failed, want 0"},
		"missing":    {func(r *EvaluationsReport) { r.EvaluatedTurns = 1999 }, "1999 Turns were evaluated, want 2000"},
		"failedTurn": {func(r *EvaluationsReport) { r.FailedTurns = map[string]int{"Timeout": 2} }, "map[Timeout:2]"},
	} {
		t.Run(name, func(t *testing.T) {
			r := evaluationsReport()
			tc.change(r)
			if err := r.failure(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("failure = %v, want %q", err, tc.want)
			}
		})
	}
	if data, err := json.Marshal(r); err != nil || !strings.Contains(string(data), `"evaluatedTurns":2000`) {
		t.Errorf("Marshal = %s, %v; want the number of evaluated Turns", data, err)
	}
	r.WithEvaluations.P95 = 4000
	if table := r.table(Setup{}); !strings.Contains(table, "1.33      1.30  EXCEEDED") {
		t.Errorf("want EXCEEDED in the table, have:\n%s", table)
	}
}
