package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/test/harness"
)

// TestRealManagerIsAttacked runs the measurement with one small attack on a real manager. It does not check ratios,
// because they are meaningless for so few Turns. It waits long for all Turns, because a busy machine may run them more
// slowly than the victim creates them.
func TestRealManagerIsAttacked(t *testing.T) {
	o, err := parse([]string{
		"--only", "neighbours", "--manager", builtManager(t), "--attacks", "replies", "--attack-sizes", "replies=1", "--window", "2s",
		"--victim-interval", "1s", "--victim-wait", "10m", "--reply-chars", "40",
		"--crds", filepath.Join("..", "..", "config", "crd", "bases"),
	}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure(t.Context(), o, contenders{}, t.Output())
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	if r.Manager != nil || r.Finished != nil || len(r.Neighbours.Attacks) != 1 {
		t.Fatalf("want one attack and no other phase, have %+v", r)
	}
	a := r.Neighbours.Attacks[0]
	if a.Name != "replies" || a.Size != 1 || a.Requests == 0 || a.SentMiB < 0.9 || a.PeakMiB < 20 || a.Restarts != 0 ||
		a.Scrape.Bytes == 0 || a.Scrape.Reconciles == 0 {
		t.Errorf("the attack is implausible: %+v", a)
	}
	for name, l := range map[string]*VictimLoad{"without": a.Without, "with": a.With} {
		// A Turn makes two requests to a model that needs a quarter of a second to begin its answer.
		if l.Turns < 2 || l.failures() != 0 || l.Latency.P50 < 500 || l.Newcomer.P50 < 500 ||
			l.Latency.P95 > 1000*l.Seconds || l.TurnsPerSecond <= 0 {
			t.Errorf("the victim %s the attacker is implausible: %+v", name, l)
		}
	}
}

// attackReport returns a report in which every value is at its limit.
func attackReport() AttackReport {
	return AttackReport{
		Name: "burst", Size: 3, What: "3 Turns at the same time", Requests: 1, needsServer: true, PeakMiB: 512,
		Scrape: Scrape{Bytes: scrapeBound},
		Without: &VictimLoad{
			Turns: 10, Latency: Percentiles{P50: 500, P95: 600},
			Newcomer: Percentiles{P50: 550, P95: 700}, TurnsPerSecond: 5,
		},
		With: &VictimLoad{
			Turns: 10, Latency: Percentiles{P50: 1000, P95: 1200},
			Newcomer: Percentiles{P50: 1100, P95: 1400}, TurnsPerSecond: 2.5,
		},
	}
}

func TestAttackReportChecksItsLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*AttackReport)
		want   string
	}{
		"at the limits": {"the limits themselves are allowed", func(*AttackReport) {}, ""},
		"p50": {
			"more than twice as slow", func(r *AttackReport) { r.With.Latency.P50 = 1010 },
			"latency p50: 500 without the attacker, 1010 with it, 2.02 times as slow",
		},
		"p95": {
			"more than twice as slow", func(r *AttackReport) { r.With.Latency.P95 = 1800 },
			"latency p95: 600 without the attacker, 1800 with it, 3.00 times as slow",
		},
		"newcomer": {
			"Turns with new objects must not be slow either", func(r *AttackReport) { r.With.Newcomer.P95 = 2100 },
			"newcomer latency p95: 700 without",
		},
		"throughput": {
			"less than half", func(r *AttackReport) { r.With.TurnsPerSecond = 2 },
			"Turns per second: 5.00 without the attacker, 2.00 with it, 2.50 times as slow",
		},
		"nothing succeeds": {"a rate of 0 is infinitely slow", func(r *AttackReport) { r.With.TurnsPerSecond = 0 }, "+Inf times as slow"},
		"a failure": {
			"no Turn may fail", func(r *AttackReport) { r.With.Failed = map[string]int{"DeadlineExceeded": 1} },
			"1 of 10 Turns of the victim failed: map[DeadlineExceeded:1]",
		},
		"a failure before": {
			"the comparison would be meaningless", func(r *AttackReport) { r.Without.Failed = map[string]int{"NotCreated": 2} },
			"2 Turns of the victim failed without an attacker",
		},
		"a restart": {
			"no restart is allowed", func(r *AttackReport) { r.Restarts, r.OutOfMemoryKills = 3, 2 },
			"the manager restarted 3 times, 2 of them after an OOM kill",
		},
		"memory": {
			"without a cgroup, the peak is compared with the limit", func(r *AttackReport) { r.PeakMiB = 513 },
			"had 513 MiB resident, more than 512 MiB",
		},
		"memory with a cgroup": {"the cgroup has limited the memory", func(r *AttackReport) { r.PeakMiB, r.grouped = 513, true }, ""},
		"a large scrape": {
			"tenants must not be able to create series", func(r *AttackReport) { r.Scrape.Bytes++ },
			"a scrape of the manager's metrics has 1048577 bytes",
		},
		"no scrape": {"the manager does not answer", func(r *AttackReport) { r.Scrape = Scrape{} }, "could not be read"},
		"no attack": {"the attacker's server received no request", func(r *AttackReport) { r.Requests = 0 }, "nothing was measured"},
	} {
		t.Run(name, func(t *testing.T) {
			a := attackReport()
			a.Name = "flood"
			tc.change(&a)
			r := &NeighboursReport{MemoryMiB: 512, Attacks: []AttackReport{attackReport(), a}}
			err := r.failure()
			if tc.want == "" && err != nil {
				t.Errorf("error %v, want none: %s", err, tc.reason)
			}
			// Each exceeded limit is one line of the error.
			if tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "flood: ") || !strings.Contains(err.Error(), tc.want) ||
				strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %v, want one line about flood with %q: %s", err, tc.want, tc.reason)
			}
			var exceeded []string
			for line := range strings.Lines(r.table(Setup{})) {
				if strings.Contains(line, "EXCEEDED") {
					exceeded = append(exceeded, strings.Fields(line)[0])
				}
			}
			var want []string
			if tc.want != "" {
				want = []string{"flood"}
			}
			if diff := cmp.Diff(want, exceeded); diff != "" {
				t.Errorf("attacks with the mark EXCEEDED in the table: -want +got:\n%s", diff)
			}
		})
	}
}

func TestTableShowsTheVictimWithAndWithoutTheAttacker(t *testing.T) {
	a := attackReport()
	a.With.Newcomer.P95, a.Restarts, a.With.StolenPercent = 1500, 1, 3.4
	r := &NeighboursReport{
		MemoryMiB: 512, Bound: "cgroup v2", IntervalMilliseconds: 200, WindowSeconds: 15,
		Attacks: []AttackReport{a},
	}
	got := strings.Join(strings.Fields(r.table(Setup{CPUs: 2})), " ")
	for _, want := range []string{
		"each 200ms (open loop), a manager in 512 MiB (cgroup v2), 2 CPUs",
		"burst 500 > 1000 600 > 1200 700 > 1500 5.00 > 2.50 2.14 0 1 512 3 % EXCEEDED",
		"burst 3 Turns at the same time (1 requests,",
		"at least 15s each",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
}

func TestNewVictimLoad(t *testing.T) {
	var outcomes []victimOutcome
	for i := range 20 {
		outcomes = append(outcomes, victimOutcome{latency: time.Duration(i+1) * time.Second})
	}
	outcomes = append(outcomes,
		victimOutcome{newcomer: true, latency: 3 * time.Second},
		victimOutcome{newcomer: true, latency: 90 * time.Second, failed: reasonUnfinished})
	got := newVictimLoad(outcomes, 10*time.Second)
	want := &VictimLoad{
		Turns: 22, Seconds: 10, Latency: Percentiles{P50: 10_000, P95: 19_000}, Newcomer: Percentiles{P50: 3000, P95: 90_000},
		TurnsPerSecond: 2.1, Failed: map[string]int{reasonUnfinished: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("load (-want +got):\n%s", diff)
	}
}

func TestParseAttacks(t *testing.T) {
	all, err := parseAttacks(nil, map[string]int{"burst": 7})
	if err != nil || len(all) != len(attacks()) || all[len(all)-1].size != 7 {
		t.Errorf("all attacks: %d, the last of size %d (%v)", len(all), all[len(all)-1].size, err)
	}
	some, err := parseAttacks([]string{"names", "storm"}, nil)
	if err != nil || len(some) != 2 || some[0].name != "names" || some[1].name != "storm" {
		t.Errorf("two attacks: %v (%v)", namesOf(some), err)
	}
	_, err = parseAttacks([]string{"peace"}, map[string]int{"war": 1, "burst": 0})
	for _, want := range []string{
		`--attacks: "peace" must be one of listings,`, `--attack-sizes: "war" must be one of`,
		"the size of burst must be from 1 to 100000, not 0",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
}

// keepRunning keeps a program running, and returns a function that waits until it has started this many times.
func keepRunning(t *testing.T, program, path string, args []string) (k *keeper, started func(times int)) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	k = keep(ctx, dir, harness.Program{Name: program, Path: path, Args: args}, "", func(string, ...any) {})
	t.Cleanup(k.close)
	return k, func(times int) {
		t.Helper()
		log := filepath.Join(dir, "logs", fmt.Sprintf("%s-%d.log", program, times))
		for {
			if text, err := os.ReadFile(log); err == nil && strings.Contains(string(text), "started") {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("the program has not started %d times", times)
			}
		}
	}
}

func TestKeeperCountsUnexpectedExits(t *testing.T) {
	// The program exits by itself the first time, and keeps running the second time.
	mark := filepath.Join(t.TempDir(), "mark")
	k, started := keepRunning(t, "mortal", "/bin/sh", []string{"-c", `echo started; [ -e "$0" ] && exec sleep 60; : >"$0"; exit 3`, mark})
	started(2)
	if exits, _ := k.counts(); exits != 1 {
		t.Errorf("%d unexpected exits, want 1", exits)
	}
	if err := k.restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	started(3)
	k.close()
	if exits, _ := k.counts(); exits != 1 {
		t.Errorf("%d unexpected exits, want 1: requested restarts and the stop by close do not count", exits)
	}
}

func TestSlowdownIsRoundedAsPrinted(t *testing.T) {
	for _, tc := range []struct{ value, other, want float64 }{{10, 5, 2}, {2.004, 1, 2}, {2.006, 1, 2.01}, {1, 0, math.Inf(1)}} {
		if got := times(tc.value, tc.other); got != tc.want {
			t.Errorf("%v to %v: %v, want %v", tc.value, tc.other, got, tc.want)
		}
	}
}
