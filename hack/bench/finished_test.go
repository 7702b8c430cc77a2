package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestFinishedTurnsLookLikeThoseOfAManager(t *testing.T) {
	const count = 40
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	expiring := 0
	names, answers := map[string]bool{}, map[string]bool{}
	for i := range count {
		turn := finishedTurn(i, now)
		if !turn.IsFinished() || turn.StateReason() != v1alpha1.TurnReasonCompleted {
			t.Errorf("Turn %d has not completed: %v", i, turn.Status.Conditions)
		}
		status, err := json.Marshal(turn.Status)
		if err != nil {
			t.Fatal(err)
		}
		if len(status) < 3<<10 || len(status) > 5<<10 {
			t.Errorf("the status of Turn %d has %d bytes, want from 3 to 5 KiB", i, len(status))
		}
		if at, expires := turn.ExpiryTime(); expires {
			expiring++
			if want := now.Add(24 * time.Hour); !at.Equal(want) {
				t.Errorf("Turn %d expires at %s, want %s, which is after the measurement", i, at, want)
			}
		}
		names[turn.Name], answers[turn.Status.Result.Text] = true, true
	}
	if expiring != count/4 {
		t.Errorf("%d of %d Turns expire, want a quarter", expiring, count)
	}
	if len(names) != count || len(answers) != count {
		t.Errorf("%d names and %d answers of %d Turns, want unique names and answers", len(names), len(answers), count)
	}
}

func TestMedian(t *testing.T) {
	for name, tc := range map[string]struct {
		values []float64
		want   float64
	}{
		"none": {nil, 0},
		"one":  {[]float64{7}, 7},
		"odd":  {[]float64{9, 1, 2}, 2},
		"even": {[]float64{4, 1, 9, 2}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := median(tc.values); got != tc.want {
				t.Errorf("median %v, want %v", got, tc.want)
			}
		})
	}
}

func TestRatiosAreMediansOfPairs(t *testing.T) {
	// The machine was slow in the second pair. The ratio of the medians, 2 and 10, would be 5 for the time.
	few := []Cost{{CPU: 1, Requests: 3, Time: 2}, {CPU: 1, Requests: 3, Time: 10}, {CPU: 1, Requests: 3, Time: 1}}
	many := []Cost{{CPU: 1, Requests: 6, Time: 10}, {CPU: 2, Requests: 3, Time: 11}, {CPU: 1.5, Requests: 3, Time: 1}}
	if diff := cmp.Diff(Cost{CPU: 1.5, Requests: 1, Time: 1.1}, medianRatios(few, many)); diff != "" {
		t.Errorf("ratios (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Cost{CPU: 1, Requests: 3, Time: 2}, medianCost(few)); diff != "" {
		t.Errorf("median cost (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Cost{}, medianRatios([]Cost{{}}, []Cost{{CPU: 1}})); diff != "" {
		t.Errorf("ratios to bursts without a cost (-want +got):\n%s", diff)
	}
}

func TestManagersMetricsAreRead(t *testing.T) {
	const requests = `# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="127.0.0.1:1",method="GET"} 20
rest_client_requests_total{code="200",host="127.0.0.1:1",method="PUT"} 300
`
	const memory = `# TYPE go_gc_cycles_total_gc_cycles_total counter
go_gc_cycles_total_gc_cycles_total 12
# TYPE go_gc_heap_live_bytes gauge
go_gc_heap_live_bytes 8.388608e+06
`
	got, err := parseScraped(strings.NewReader(memory + requests))
	if err != nil {
		t.Fatal(err)
	}
	if want := (scraped{collections: 12, liveHeap: 8 << 20, requests: 320}); got != want {
		t.Errorf("metrics %+v, want %+v", got, want)
	}
	for name, bad := range map[string]string{
		"not metrics":        "<html>",
		"without a metric":   memory,
		"without any at all": "",
	} {
		if _, err := parseScraped(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMemoryIsStableWhenItHasHardlyChanged(t *testing.T) {
	m := Memory{ResidentMiB: 100, HeapMiB: 10}
	for name, tc := range map[string]struct {
		earlier Memory
		want    bool
	}{
		"the same":           {m, true},
		"a little":           {Memory{ResidentMiB: 101, HeapMiB: 9.9}, true},
		"more resident":      {Memory{ResidentMiB: 95, HeapMiB: 10}, false},
		"a heap that shrank": {Memory{ResidentMiB: 100, HeapMiB: 12}, false},
		"the first sample":   {Memory{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := m.isNear(tc.earlier); got != tc.want {
				t.Errorf("isNear(%+v) = %t, want %t", tc.earlier, got, tc.want)
			}
		})
	}
}

func exampleFinished() *FinishedReport {
	return &FinishedReport{
		MakingSeconds: 61,
		Few: Load{
			Finished: 100, ReadySeconds: 0.25, StartCPUSeconds: 0.5, StartPeakMiB: 80, Cost: Cost{CPU: 4, Requests: 3.01, Time: 8},
			Idle: Memory{ResidentMiB: 70, HeapMiB: 8}, After: Memory{ResidentMiB: 80, HeapMiB: 10}, Bursts: make([]Cost, 5),
		},
		Many: Load{
			Finished: 20000, ReadySeconds: 0.5, StartCPUSeconds: 2, StartPeakMiB: 160, Cost: Cost{CPU: 5, Requests: 3.02, Time: 10},
			Idle: Memory{ResidentMiB: 77, HeapMiB: 10.4}, After: Memory{ResidentMiB: 88, HeapMiB: 11}, Bursts: make([]Cost, 5),
		},
		Ratios: Cost{CPU: 1.2, Requests: 1, Time: 1.304},
	}
}

func TestFinishedTableMarksExceededLimits(t *testing.T) {
	r := exampleFinished()
	r.Many.Idle.HeapMiB = 12
	want := "A manager with finished Turns: 5 bursts of 300 Turns at the same time, model latency 2s, answers of 400 characters, " +
		`no facts in the Turns' context, 2 CPUs

finished Turns                           100     20000   ratio     limit
memory when idle, MiB                   70.0      77.0    1.10      1.30
  live heap, MiB                        8.00      12.0    1.50      1.30  EXCEEDED
memory when idle again, MiB             80.0      88.0    1.10      1.30
  live heap, MiB                        10.0      11.0    1.10      1.30
CPU per Turn, ms                        4.00      5.00    1.20      1.30
API requests per Turn                   3.01      3.02    1.00      1.30
time per Turn, ms                       8.00      10.0    1.30      1.30
start: until ready, s                   0.25      0.50    2.00         -
start: CPU until idle, s                0.50      2.00    4.00         -
start: peak memory, MiB                 80.0       160    2.00         -

Memory is measured right after a garbage collection, once it is stable. Costs per Turn are medians of the bursts; the ratios
are the medians of the ratios of paired bursts. The time per Turn is the duration of a burst minus the model's latency,
divided by the number of Turns. The creation of the finished Turns took 61 s.
`
	if diff := cmp.Diff(want, r.table(exampleReport().Setup)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestRatiosAboveTheirLimitAreAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*FinishedReport)
		want   string
	}{
		"no limit exceeded":        {func(*FinishedReport) {}, ""},
		"the limit after rounding": {func(r *FinishedReport) { r.Ratios.Time = 1.3049 }, ""},
		"memory": {
			func(r *FinishedReport) { r.Many.Idle.ResidentMiB = 200 },
			"memory when idle, MiB: 70.0 with 100 finished Turns, 200 with 20000, 2.86 times",
		},
		"the heap": {func(r *FinishedReport) { r.Many.After.HeapMiB = 20 }, "live heap, MiB"},
		"CPU":      {func(r *FinishedReport) { r.Ratios.CPU = 1.31 }, "CPU per Turn, ms"},
		"requests": {func(r *FinishedReport) { r.Ratios.Requests = 2 }, "API requests per Turn"},
		"time":     {func(r *FinishedReport) { r.Ratios.Time = 2 }, "time per Turn, ms"},
		"failed Turns": {
			func(r *FinishedReport) { r.Many.FailedTurns = map[string]int{v1alpha1.TurnReasonModelFailed: 3} },
			"with 20000 finished Turns map[ModelFailed:3]",
		},
		"a slow start": {func(r *FinishedReport) { r.Many.ReadySeconds, r.Many.StartPeakMiB = 100, 1000 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			finished := exampleFinished()
			tc.change(finished)
			err := (&Report{Finished: finished}).failure()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
