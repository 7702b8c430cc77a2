package main

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestRealManagersAreMeasuredInAllRoles runs the measurement with a few Turns. It does not check ratios, because they
// are meaningless for so few Turns.
func TestRealManagersAreMeasuredInAllRoles(t *testing.T) {
	o, err := parse([]string{
		"--only", "executors,finished", "--manager", builtManager(t), "--turns", "8", "--warmup", "1", "--latency",
		"20ms", "--reply-chars", "40",
		"--capacity", "4", "--finished", "130", "--bursts", "1", "--quiet", "50ms", "--crds",
		filepath.Join("..", "..", "config", "crd", "bases"),
	}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	o.settle = 100 * time.Millisecond
	r, err := measure(t.Context(), o, contenders{}, t.Output())
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	if r.Manager != nil || r.Floor != nil {
		t.Error("want no result of the phase \"floor\", which --only does not name")
	}
	for name, tc := range map[string]struct {
		got       *Measurement
		processes []string
	}{
		"one":  {r.Executors.One, []string{"one"}},
		"half": {r.Executors.HalfCapacity, []string{"controller", "executor-1", "executor-2"}},
		"full": {r.Executors.FullCapacity, []string{"controller", "executor-1", "executor-2"}},
	} {
		var names []string
		turns, memory := 0, 0.0
		for _, p := range tc.got.Processes {
			names = append(names, p.Name)
			memory += p.PeakMemoryMiB
			if p.Turns != nil {
				turns += *p.Turns
			}
		}
		if diff := cmp.Diff(tc.processes, names); diff != "" {
			t.Errorf("%s: processes (-want +got):\n%s", name, diff)
		}
		if turns != 8 || memory != tc.got.PeakMemoryMiB || tc.got.ModelRequestsPerTurn != 1 || len(tc.got.FailedTurns) > 0 {
			t.Errorf("%s: measurement is implausible, its executors ran %d Turns: %+v", name, turns, tc.got)
		}
	}
	for _, l := range []Load{r.Finished.Few, r.Finished.Many} {
		if len(l.Bursts) == 0 || len(l.FailedTurns) > 0 || l.Cost.Requests < 2 || l.Cost.Requests > 10 || l.ReadySeconds <= 0 ||
			l.Idle.HeapMiB < 1 || l.After.HeapMiB < 1 || l.Idle.ResidentMiB < l.Idle.HeapMiB || l.StartPeakMiB < l.Idle.HeapMiB {
			t.Errorf("measurement with %d finished Turns is implausible: %+v", l.Finished, l)
		}
	}
}

func TestExecutorsPhaseIsSkippedWithoutPostgreSQL(t *testing.T) {
	t.Setenv(serverVariable, "")
	t.Setenv(programsVariable, "")
	var log bytes.Buffer
	b := &bench{progress: &log}
	if r, err := b.compareExecutors(t.Context()); r != nil || err != nil {
		t.Errorf("report %v, error %v; want neither", r, err)
	}
	for _, variable := range []string{serverVariable, programsVariable} {
		if !strings.Contains(log.String(), variable) {
			t.Errorf("%q does not name %s", log.String(), variable)
		}
	}
	b.only = []string{phaseExecutors}
	if _, err := b.compareExecutors(t.Context()); !errors.Is(err, errNoPostgres) {
		t.Errorf("error %v, want %v", err, errNoPostgres)
	}
}

func exampleExecutors() *ExecutorsReport {
	two := func(first, second int) []Process {
		return []Process{
			{Name: "controller", CPUPerTurn: 4, PeakMemoryMiB: 70},
			{Name: "executor-1", Turns: new(first), CPUPerTurn: 3, PeakMemoryMiB: 60},
			{Name: "executor-2", Turns: new(second), CPUPerTurn: 2, PeakMemoryMiB: 50},
		}
	}
	return &ExecutorsReport{
		Capacity: 50,
		One: &Measurement{
			TurnsPerSecond: 20, WallSeconds: 15, Completion: Percentiles{8000, 14000}, WritesPerTurn: 3.8, CPUPerTurn: 8, PeakMemoryMiB: 80,
			Processes: []Process{{Name: "one", Turns: new(300), CPUPerTurn: 8, PeakMemoryMiB: 80}},
		},
		HalfCapacity: &Measurement{
			TurnsPerSecond: 19, WallSeconds: 15.75, Completion: Percentiles{8000, 14000}, WritesPerTurn: 3.8,
			CPUPerTurn: 9, PeakMemoryMiB: 180,
			Processes: two(150, 150),
		},
		FullCapacity: &Measurement{
			TurnsPerSecond: 38, WallSeconds: 7.5, Completion: Percentiles{4000, 7000}, WritesPerTurn: 3.8, CPUPerTurn: 9,
			PeakMemoryMiB: 180,
			Processes:     two(200, 100),
		},
	}
}

func TestExecutorsTableShowsEachProcess(t *testing.T) {
	want := "Two executors on PostgreSQL: 300 Turns at the same time, model latency 2s, answers of 400 characters, " +
		`no facts in the Turns' context, 2 CPUs

                                            1 x 50    2 x 25   ratio    2 x 50   ratio
Turns per second                              20.0      19.0    0.95      38.0    1.90
wall time, s                                  15.0      15.8    1.05      7.50    0.50
creation to completion, p50, ms               8000      8000    1.00      4000    0.50
creation to completion, p95, ms              14000     14000    1.00      7000    0.50
API writes per Turn                           3.80      3.80    1.00      3.80    1.00
CPU per Turn, ms                              8.00      9.00    1.12      9.00    1.12
  controller                                     -      4.00       -      4.00       -
  executor-1                                     -      3.00       -      3.00       -
  executor-2                                     -      2.00       -      2.00       -
peak memory, MiB                              80.0       180    2.25       180    2.25
  controller                                     -      70.0       -      70.0       -
  executor-1                                     -      60.0       -      60.0       -
  executor-2                                     -      50.0       -      50.0       -
Turns of busiest / least busy executor           -      1.00       -      2.00       -
  executor-1                                     -       150       -       200       -
  executor-2                                     -       150       -       100       -

1 x 50 is one process with both roles and 50 slots. 2 x 25 is a controller and two executors with 25 slots each;
2 x 50 is the same with 50 slots each. If CPUs were not the limit, the ratio of Turns per second would be 1 for 2 x 25,
and at most 2 for 2 x 50.
`
	if diff := cmp.Diff(want, exampleExecutors().table(exampleReport().Setup)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestSpreadComparesExecutors(t *testing.T) {
	for name, tc := range map[string]struct {
		processes []Process
		want      float64
	}{
		"one executor":                   {[]Process{{Turns: new(300)}}, math.NaN()},
		"a controller and two executors": {[]Process{{}, {Turns: new(100)}, {Turns: new(200)}}, 2},
		"an executor without Turns":      {[]Process{{Turns: new(0)}, {Turns: new(300)}}, math.Inf(1)},
		"three executors":                {[]Process{{Turns: new(10)}, {Turns: new(5)}, {Turns: new(30)}}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&Measurement{Processes: tc.processes}).spread()
			if got != tc.want && !(math.IsNaN(got) && math.IsNaN(tc.want)) {
				t.Errorf("spread %v, want %v", got, tc.want)
			}
		})
	}
}

func TestReportContainsThePhasesThatRan(t *testing.T) {
	r := &Report{Setup: exampleReport().Setup, Executors: exampleExecutors(), Finished: exampleFinished()}
	var out bytes.Buffer
	if err := r.write(&out, outputTable); err != nil {
		t.Fatal(err)
	}
	if want := r.Executors.table(r.Setup) + "\n" + r.Finished.table(r.Setup); out.String() != want {
		t.Errorf("report (-want +got):\n%s", cmp.Diff(want, out.String()))
	}
	if err := r.failure(); err != nil {
		t.Errorf("error %v, want none", err)
	}
	r.Executors.HalfCapacity.FailedTurns = map[string]int{v1alpha1.TurnReasonModelFailed: 3}
	if err := r.failure(); err == nil || !strings.Contains(err.Error(), "two executors with half of the slots each: map[ModelFailed:3]") {
		t.Errorf("error %v, want one that names the contender, the reason and the number", err)
	}
}
