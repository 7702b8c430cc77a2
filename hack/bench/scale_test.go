package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLimitsOfARealManagerAreMeasured runs the measurement with a few Turns. It does not check their times.
func TestLimitsOfARealManagerAreMeasured(t *testing.T) {
	o, err := parse([]string{
		"--only", "scale", "--manager", builtManager(t), "--scale-namespaces", "2", "--scale-turns", "3", "--scale-latency", "50ms",
		"--scale-in-flight", "4", "--scale-calls", "10", "--warmup", "1", "--reply-chars", "40",
		"--crds", filepath.Join("..", "..", "config", "crd", "bases"),
	}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	report, err := measure(t.Context(), o, contenders{}, t.Output())
	if newTestGroup(t, 64<<20, 0.5) == nil {
		if !errors.Is(err, errNoCgroups) {
			t.Errorf("error %v without cgroups, want %q", err, errNoCgroups)
		}
		return
	}
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	if err := report.failure(); err != nil {
		t.Error(err)
	}
	r := report.Scale
	if c := r.Crowd; c.Turns != 6 || c.Namespaces != 2 || c.PeakInFlight < 1 || c.PeakMiB < c.IdleMiB ||
		c.PeakAnonymousMiB <= 0 || c.PeakAnonymousMiB >= c.PeakMiB || c.CPUPerTurn <= 0 ||
		c.WritesPerTurn < 3 || c.Journal.Bytes < 6*1000 || c.Journal.FileBytes < c.Journal.Bytes {
		t.Errorf("the measurement of the namespaces is implausible: %+v", c)
	}
	if r.Held.InFlight != 4 || r.Held.PeakMiB < 20 {
		t.Errorf("the measurement of Turns in flight is implausible: %+v", r.Held)
	}
	for name, c := range map[string]LongCost{"unlimited": r.Long.Unlimited, "limited": r.Long.Limited} {
		// The results of 10 calls, and the prompt.
		if c.LastTokens < 10*pageChars/4 || c.InputTokens < 2*c.LastTokens || c.ResumeSeconds <= 0 || c.Journal.Bytes < 10*pageChars {
			t.Errorf("the measurement of the long Turn (%s) is implausible: %+v", name, c)
		}
	}
}

func TestLongServersDelayOneRequestAndCountAll(t *testing.T) {
	s, err := newLongServers(20)
	if err != nil {
		t.Fatal(err)
	}
	if s.killAt != 18 {
		t.Fatalf("the manager is killed after %d calls, want 18 of 20", s.killAt)
	}
	if s.countAndDelay(16) || !s.countAndDelay(18) {
		t.Error("want only the request with 18 results to stay open")
	}
	<-s.delayed
	if s.countAndDelay(18) || len(s.resumed) != 1 {
		t.Error("want the next request with 18 results to be answered, and its time recorded")
	}
	s.pages = map[string]int{"0-a": 1, "0-b": 3}
	var got LongCost
	s.count(&got)
	if diff := cmp.Diff(LongCost{ModelRequests: 3, RepeatedCalls: 2}, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// scaleReport returns a report in which every value is correct.
func scaleReport() *ScaleReport {
	long := LongCost{
		ResumeSeconds: 1.25, Restarts: 1, ModelRequests: 52, ToolCalls: 100, LastTokens: 200_000, Journal: JournalUse{Bytes: 1_000_000},
	}
	return &ScaleReport{
		MemoryMiB: 128, LimitCPUs: 0.5, Bound: "cgroup v2", StolenPercent: 3.4,
		Crowd: &CrowdReport{
			Namespaces: 51, Turns: 5100, LatencyMilliseconds: 20_000, WallSeconds: 255, TurnsPerSecond: 20, ModelRequests: 5100,
			WritesPerTurnByKind: map[string]float64{"PUT turns/status": 2}, Journal: JournalUse{Bytes: 5_100_000},
		},
		Held: &HeldReport{InFlight: 10_000, PeakMiB: 2048, BoundMiB: 2048},
		Long: &LongReport{Calls: 100, Unlimited: long, Limited: long},
	}
}

func TestScaleReportChecksItsNumbers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*ScaleReport)
		want   string
	}{
		"all correct": {"every value is correct", func(*ScaleReport) {}, ""},
		"parts only":  {"parts that did not run have no numbers", func(r *ScaleReport) { r.Held, r.Long = nil, nil }, ""},
		"a restart": {
			"the memory must suffice", func(r *ScaleReport) { r.Crowd.Restarts, r.Crowd.OutOfMemoryKills = 4, 3 },
			"restarted 4 times, 3 of them after an OOM kill",
		},
		"too many": {"no request is repeated", func(r *ScaleReport) { r.Crowd.ModelRequests++ }, "5101 model requests for 5100 Turns"},
		"too few":  {"each Turn sends a request", func(r *ScaleReport) { r.Crowd.ModelRequests-- }, "5099 model requests for 5100 Turns"},
		"failed Turns": {
			"all Turns must succeed", func(r *ScaleReport) { r.Crowd.FailedTurns = map[string]int{"QueueFull": 2} },
			"not all Turns succeeded: map[QueueFull:2]",
		},
		"in flight": {
			"the memory exceeds its limit", func(r *ScaleReport) { r.Held.PeakMiB = 2049 },
			"peak memory: 2049 MiB until all of the 10000 Turns",
		},
		"no kill": {
			"the kill must restart the manager", func(r *ScaleReport) { r.Long.Unlimited.Restarts = 0 },
			"without limits: the manager restarted 0 times, want 1, after the kill",
		},
		"a repeated call": {
			"calls are in the journal", func(r *ScaleReport) { r.Long.Limited.RepeatedCalls = 1 },
			"of the small manager: 100 tool calls, 1 of them repeated",
		},
		"a repeated step": {
			"replies are in the journal", func(r *ScaleReport) { r.Long.Unlimited.ModelRequests = 53 },
			"53 model requests, want 52",
		},
		"a failed long Turn": {
			"the Turn must succeed after the kill",
			func(r *ScaleReport) { r.Long.Unlimited.FailedTurns = map[string]int{"Interrupted": 1} },
			"did not succeed: map[Interrupted:1]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := scaleReport()
			tc.change(r)
			err := r.failure()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q: %s", err, tc.want, tc.reason)
			}
			table := r.table(Setup{})
			if marked := strings.Contains(table, "VIOLATED") || strings.Contains(table, "EXCEEDED"); marked != (tc.want != "") {
				t.Errorf("VIOLATED or EXCEEDED in the table: %t, want %t", marked, !marked)
			}
		})
	}
}

func TestScaleTableShowsAllParts(t *testing.T) {
	r := scaleReport()
	r.Long.Limited.FailedTurns = map[string]int{"Interrupted": 1, "Deadline": 2}
	got := strings.Join(strings.Fields(r.table(Setup{CPUs: 2})), " ")
	for _, want := range []string{
		"A manager with 128 MiB, 0.5 CPU (cgroup v2) for 51 namespaces, 5100 Turns at the same time: model latency 20 s",
		"model requests 5100 5100", "Turns per second 20.0 -", "journal bytes per Turn 1000 -", "PUT turns/status 2.00 -",
		"A manager with 10000 Turns in flight",
		"limits of the manager none 128 MiB, 0.5 CPU must be", "repeated 0 0 0", "model requests 52 52 52", "failed Turns 0 3 0 VIOLATED",
		"per call 10000 10000 -",
		"time to resume, s 1.25 1.25 -", "The steal time was 3 % of the CPU time",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
}
