package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
)

// TestMain lets the executable of the test also run as the floor (the bare client-go program) and as the servers of an
// attacker, as the executable of the benchmark does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == floorCommand || os.Args[1] == hostileCommand) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ctrllog.SetLogger(logr.Discard()) // as the benchmark does
	code := m.Run()
	if err := os.RemoveAll(programs); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// programs is the directory of the programs that the tests build. It is empty before the first build.
var programs string

var buildManager = sync.OnceValues(func() (path string, err error) {
	if programs, err = os.MkdirTemp("", "capstan-bench-test-"); err != nil {
		return "", err
	}
	return harness.Build(context.Background(), "../..", programs, "manager")
})

// builtManager returns the path of the manager. The first test that needs the manager builds it.
func builtManager(t *testing.T) string {
	t.Helper()
	path, err := buildManager()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBenchmarkMeasuresTurnsOfRealProcesses measures a few Turns of each contender. The floor, which needs no build,
// also stands in for the manager.
func TestBenchmarkMeasuresTurnsOfRealProcesses(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := contendersOf("", self)
	all.manager = floorContender(self, "manager", v1alpha1.GroupVersion.Group)
	o, err := parse([]string{
		"--only", "floor", "--turns", "5", "--warmup", "1", "--latency", "20ms", "--reply-chars", "40", "--payload", "5000",
		"--crds", filepath.Join("..", "..", "config", "crd", "bases"),
	}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	report, err := measure(t.Context(), o, all, t.Output())
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	if err := report.failure(); err != nil {
		t.Error(err)
	}
	for name, m := range map[string]*Measurement{"manager": report.Manager, "floor": report.Floor, "minimal": report.Minimal} {
		if diff := cmp.Diff(map[string]float64{"PUT turns/status": 2}, m.WritesPerTurnByKind); diff != "" {
			t.Errorf("writes per Turn of the %s (-want +got):\n%s", name, diff)
		}
		if m.ModelRequestsPerTurn != 1 || m.TurnsPerSecond <= 0 || m.PeakMemoryMiB <= 0 || m.Completion.P95 < 20 ||
			m.ServerCPUPerTurn <= 0 || m.Single.P50 <= 0 {
			t.Errorf("measurement of the %s is implausible: %+v", name, m)
		}
		// A single Turn cannot take longer than the whole burst, unless a Turn of the warm-up was counted by mistake.
		if m.Completion.P95 > 1000*m.WallSeconds {
			t.Errorf("a Turn of the %s takes %v ms, which is longer than the %v s of all Turns", name, m.Completion.P95, m.WallSeconds)
		}
	}
	if diff := cmp.Diff(Setup{Turns: 5, LatencyMilliseconds: 20, ReplyChars: 40, PayloadChars: 5000, CPUs: report.Setup.CPUs},
		report.Setup); diff != "" {
		t.Errorf("setup (-want +got):\n%s", diff)
	}
}

func TestErrorShowsTheLogOfAContenderThatExits(t *testing.T) {
	broken := contender{name: "broken", members: []member{{name: "broken", path: "/bin/sh", ready: "/", args: func(site) []string {
		return []string{"-c", "echo no such flag; exit 2"}
	}}}}
	o, err := parse([]string{"--crds", filepath.Join("..", "..", "config", "crd", "bases")}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	_, err = measure(t.Context(), o, contenders{broken, broken, broken}, t.Output())
	if err == nil {
		t.Fatal("measure succeeded")
	}
	for _, want := range []string{"failed to measure the floor", "exit status 2", "no such flag", "the logs are in"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no Turns":       {[]string{"--turns", "0"}, "--turns must be at least 1"},
		"no reply":       {[]string{"--reply-chars", "0"}, "--reply-chars must be from 1"},
		"a huge payload": {[]string{"--payload", "262145"}, "--payload must be from 0 to 262144"},
		"unknown output": {[]string{"-o", "xml"}, "-o must be table or json"},
		"unknown phase": {
			[]string{"--only", "floor,chaos"},
			`--only: "chaos" must be one of floor, executors, tools, evaluations, scale, finished, neighbours`,
		},
		"an odd capacity":         {[]string{"--capacity", "51"}, "--capacity must be an even number"},
		"too few finished Turns":  {[]string{"--finished", "100"}, "--finished must be above 100"},
		"no bursts":               {[]string{"--bursts", "0"}, "--bursts at least 1"},
		"unknown attack":          {[]string{"--attacks", "burst,peace"}, `--attacks: "peace" must be one of listings, `},
		"a size without a number": {[]string{"--attack-sizes", "burst"}, `"burst" must be NAME=NUMBER`},
		"a short window":          {[]string{"--window", "10ms"}, "--window must be from 1s"},
		"a short victim interval": {[]string{"--victim-interval", "1ms"}, "--victim-interval must be from 10ms"},
		"a long victim wait":      {[]string{"--victim-wait", "1h"}, "--victim-wait must be from 1s"},
		"little memory":           {[]string{"--memory-mib", "1"}, "--memory-mib must be from 64"},
		"unknown part": {
			[]string{"--scale-parts", "long,short"}, `--scale-parts: "short" must be one of namespaces, in-flight, long`,
		},
		"no namespaces": {[]string{"--scale-namespaces", "0"}, "--scale-namespaces must be from 1 to 1000"},
		"no CPU":        {[]string{"--scale-cpus", "0"}, "--scale-cpus must be from 0.1 to 64"},
		"slots":         {[]string{"--scale-slots", "-1"}, "--scale-slots must be from 0 to 100000"},
		"little memory for Turns in flight": {
			[]string{"--scale-in-flight-memory-mib", "1"}, "--scale-in-flight-memory-mib must be from 64",
		},
		"odd calls":        {[]string{"--scale-calls", "99"}, "--scale-calls must be an even number from 4 to 198"},
		"unknown argument": {[]string{"now"}, `unknown argument "now"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(tc.args, t.Output()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestFactsContainThePayload(t *testing.T) {
	for payload, want := range map[int][]int{0: nil, 1: {1}, 4096: {4096}, 4097: {4096, 1}, 10000: {4096, 4096, 1808}} {
		var got []int
		if context := newTurn("t", payload).Spec.Context; context != nil {
			for _, fact := range context.Facts {
				got = append(got, len(fact.Text))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("facts for a payload of %d (-want +got):\n%s", payload, diff)
		}
	}
}

//go:embed testdata/apiserver-metrics.txt
var apiserverMetrics string

func TestWritesAreReadFromMetrics(t *testing.T) {
	counted, err := parseCounters(strings.NewReader(apiserverMetrics))
	if err != nil {
		t.Fatal(err)
	}
	if counted.serverCPU != 12500*time.Millisecond {
		t.Errorf("CPU time of the API server: %s, want 12.5s", counted.serverCPU)
	}
	got, leases := counted.writes, counted.leases
	want := writes{"PUT turns/status": 600, "PUT turns/status 409": 2, "POST turns": 305, "POST events.events.k8s.io": 300}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if leases != 8 {
		t.Errorf("writes of Leases: %v, want 8", leases)
	}
	earlier := writes{"PUT turns/status": 500, "POST turns": 305}
	want = writes{"PUT turns/status": 100, "PUT turns/status 409": 2, "POST events.events.k8s.io": 300}
	if diff := cmp.Diff(want, got.minus(earlier)); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	for name, bad := range map[string]string{"not metrics": "<html>", "without the metric": "workqueue_depth 3\n"} {
		if _, err := parseCounters(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestProcessUse(t *testing.T) {
	if u, err := useOf(os.Getpid()); err != nil || u.memory < 1<<20 || u.peakMemory < u.memory {
		t.Errorf("this process: %+v, error %v; want some memory, and at least as much at its peak", u, err)
	}
	if _, err := useOf(-1); err == nil {
		t.Error("want an error for a process that does not exist")
	}
}

func TestPercentilesUseTheNearestRank(t *testing.T) {
	hundred := make([]time.Duration, 0, 100)
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Millisecond)
	}
	for name, tc := range map[string]struct {
		values     []time.Duration
		subtracted time.Duration
		want       Percentiles
	}{
		"none":          {nil, 0, Percentiles{}},
		"one":           {[]time.Duration{7 * time.Millisecond}, 0, Percentiles{7, 7}},
		"two":           {[]time.Duration{9 * time.Millisecond, time.Millisecond}, 0, Percentiles{1, 9}},
		"unsorted":      {hundred, 0, Percentiles{50, 95}},
		"minus latency": {hundred, 60 * time.Millisecond, Percentiles{-10, 35}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, percentiles(tc.values, tc.subtracted)); diff != "" {
				t.Errorf("percentiles (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMeasurementIsPerTurnWithoutTheBenchmarksOwnWrites(t *testing.T) {
	result := &burstResult{
		wall: 2 * time.Second, failed: map[string]int{},
		durations: []time.Duration{time.Second, time.Second}, latencies: []time.Duration{time.Second, 2 * time.Second},
		byExecutor: map[string]int{"e": 2},
	}
	before := sample{
		counters: counters{writes: writes{"POST turns": 1, "PUT turns/status": 2}, leases: 3, serverCPU: time.Second}, modelRequests: 1,
		uses: []use{{cpu: time.Second}, {cpu: time.Minute}},
	}
	after := sample{
		counters: counters{
			writes: writes{"POST turns": 3, "PUT turns/status": 6, "POST events": 1}, leases: 5,
			serverCPU: time.Second + 8*time.Millisecond,
		},
		modelRequests: 4,
		uses: []use{
			{cpu: time.Second + 20*time.Millisecond, peakMemory: 1 << 20},
			{cpu: time.Minute + 10*time.Millisecond, peakMemory: 2 << 20},
		},
	}
	want := &Measurement{
		TurnsPerSecond: 1, WallSeconds: 2, Overhead: Percentiles{100, 100}, Completion: Percentiles{1000, 2000},
		WritesPerTurn: 2.5, WritesPerTurnByKind: map[string]float64{"PUT turns/status": 2, "POST events": 0.5}, LeaseWrites: 2,
		CPUPerTurn: 15, ServerCPUPerTurn: 4, PeakMemoryMiB: 3, ModelRequestsPerTurn: 1.5, FailedTurns: map[string]int{},
		Processes: []Process{
			{Name: "controller", CPUPerTurn: 10, PeakMemoryMiB: 1},
			{Name: "executor", Turns: new(2), CPUPerTurn: 5, PeakMemoryMiB: 2},
		},
	}
	both := team{{member: member{name: "controller"}}, {member: member{name: "executor", executor: "e"}}}
	if diff := cmp.Diff(want, newMeasurement(result, both, before, after, 900*time.Millisecond)); diff != "" {
		t.Errorf("measurement (-want +got):\n%s", diff)
	}
}

func exampleReport() *Report {
	return &Report{
		Setup: Setup{Turns: 300, LatencyMilliseconds: 2000, ReplyChars: 400, CPUs: 2},
		Manager: &Measurement{
			TurnsPerSecond: 80, WallSeconds: 3.75, Overhead: Percentiles{12.345, 150.4}, WritesPerTurn: 3,
			WritesPerTurnByKind: map[string]float64{"PUT turns/status": 2, "POST events": 1}, LeaseWrites: 4, CPUPerTurn: 6,
			Single: Percentiles{28, 30}, ServerCPUPerTurn: 8.8,
		},
		Floor: &Measurement{
			TurnsPerSecond: 100, WallSeconds: 3, Overhead: Percentiles{10, 0}, WritesPerTurn: 2,
			WritesPerTurnByKind: map[string]float64{"PUT turns/status": 2}, CPUPerTurn: 3,
		},
		Minimal: &Measurement{
			TurnsPerSecond: 120, WallSeconds: 2.5, WritesPerTurn: 2,
			WritesPerTurnByKind: map[string]float64{"PUT turns/status": 2}, CPUPerTurn: 2,
			Single: Percentiles{12, 13}, ServerCPUPerTurn: 4,
		},
	}
}

func TestTableShowsManagerFloorAndRatio(t *testing.T) {
	var out bytes.Buffer
	if err := exampleReport().write(&out, outputTable); err != nil {
		t.Fatal(err)
	}
	want := `300 Turns at the same time, model latency 2s, answers of 400 characters, no facts in the Turns' context, 2 CPUs

                                               manager     floor   ratio   minimal   ratio
Turns per second                                  80.0       100    0.80       120    0.67
wall time, s                                      3.75      3.00    1.25      2.50    1.50
duration minus model latency, p50, ms             12.3      10.0    1.23         0       -
duration minus model latency, p95, ms              150         0       -         0       -
creation to completion, p50, ms                      0         0       -         0       -
creation to completion, p95, ms                      0         0       -         0       -
single Turn minus model latency, p50, ms          28.0         0       -      12.0    2.33
CPU per Turn, ms                                  6.00      3.00    2.00      2.00    3.00
CPU of the API server per Turn, ms                8.80         0       -      4.00    2.20
peak memory, MiB                                     0         0       -         0       -
model requests per Turn                              0         0       -         0       -
API writes per Turn                               3.00      2.00    1.50      2.00    1.50
  POST events                                     1.00         0       -         0       -
  PUT turns/status                                2.00      2.00    1.00      2.00    1.00

The floor is a bare client-go program: watch, one status write, one model request, one status write. Minimal is the
same program with objects that have only the fields it needs.
API writes do not include the creation of the Turns and the writes of Leases (in total: manager 4, floor 0).
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestJSONContainsTheWholeReport(t *testing.T) {
	var out bytes.Buffer
	if err := exampleReport().write(&out, outputJSON); err != nil {
		t.Fatal(err)
	}
	got := &Report{}
	if err := json.Unmarshal(out.Bytes(), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleReport(), got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestFailedTurnsAreAnError(t *testing.T) {
	report := exampleReport()
	if err := report.failure(); err != nil {
		t.Errorf("error %v although all succeeded", err)
	}
	report.Manager.FailedTurns = map[string]int{v1alpha1.TurnReasonModelFailed: 3}
	if err := report.failure(); err == nil || !strings.Contains(err.Error(), "ModelFailed:3") {
		t.Errorf("error %v, want one that names reason and number", err)
	}
}
