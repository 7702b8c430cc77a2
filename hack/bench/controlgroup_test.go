package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newTestGroup creates a cgroup, which the end of the test removes. It returns nil if nothing can limit a process here,
// and fails the test if a cgroup was possible.
func newTestGroup(t *testing.T, memory int, cpus float64) *controlGroup {
	t.Helper()
	g, err := newControlGroup(memory, cpus)
	if err != nil && !errors.Is(err, errNoCgroups) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	return g
}

// TestCgroupLimitsMemory checks that a program that needs too much memory is killed. Where nothing can limit a process,
// the same program must reach its end.
func TestCgroupLimitsMemory(t *testing.T) {
	g := newTestGroup(t, 32<<20, 0)
	// tail keeps an unfinished line in memory.
	path, args := g.command("/bin/sh", []string{"-c", "echo started; head -c 200000000 /dev/zero | tail -n 1 >/dev/null; exit 1"})
	k, started := keepRunning(t, "greedy", path, args)
	started(2)
	k.close()
	kills, err := g.kills()
	if err != nil || g != nil && kills < 1 || g == nil && kills != 0 {
		t.Errorf("%d OOM kills (%v) with %s, want at least one in a cgroup", kills, err, g)
	}
	if exits, _ := k.counts(); exits < 1 {
		t.Error("no unexpected exit, want at least one")
	}
	if bound := g.String(); strings.Contains(bound, "no cgroup") != (g == nil) {
		t.Errorf("the report has %q, want \"no cgroup\": %t", bound, g == nil)
	}
}

func TestCgroupLimitsCPUTime(t *testing.T) {
	g := newTestGroup(t, 64<<20, 0.1)
	path, args := g.command("/bin/sh", []string{"-c", "echo started; while :; do :; done"})
	k, started := keepRunning(t, "busy", path, args)
	started(1)
	for throttled := 0; g != nil && throttled == 0; {
		var err error
		if _, throttled, err = g.throttled(); err != nil || t.Context().Err() != nil {
			t.Fatalf("want a throttled CPU period of a process that uses a whole CPU: %v", err)
		}
	}
	k.close()
}

// TestProgramEntersEachDirectoryOfItsGroup needs no permission, because the directories are ordinary ones: the program
// that is started writes its process ID to each of them first, and keeps this ID.
func TestProgramEntersEachDirectoryOfItsGroup(t *testing.T) {
	g := &controlGroup{dirs: []string{t.TempDir(), t.TempDir()}}
	mark := filepath.Join(t.TempDir(), "mark")
	path, args := g.command("/bin/sh", []string{"-c", `echo $$ >"$0"; echo started; exec sleep 60`, mark})
	k, started := keepRunning(t, "member", path, args)
	started(1)
	k.close()
	want, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range g.dirs {
		if got, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || string(got) != string(want) {
			t.Errorf("the process ID in the group is %q (%v), want that of the program, %q", got, err, want)
		}
	}
}

// TestCountsOfAGroup needs no permission, because the files are ordinary ones, with the text of real ones.
func TestCountsOfAGroup(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"memory.events": "low 0\nhigh 0\nmax 41\noom 3\noom_kill 2\noom_group_kill 0\n",
		"cpu.stat":      "usage_usec 731\nuser_usec 500\nsystem_usec 231\nnr_periods 70\nnr_throttled 9\nthrottled_usec 12\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &controlGroup{dirs: []string{dir}, version: 2, events: "memory.events"}
	if kills, err := g.kills(); kills != 2 || err != nil {
		t.Errorf("kills = %d, %v; want 2", kills, err)
	}
	if periods, throttled, err := g.throttled(); periods != 70 || throttled != 9 || err != nil {
		t.Errorf("throttled = %d and %d, %v; want 70 and 9", periods, throttled, err)
	}
	if counts, err := countsOf(filepath.Join(dir, "cpu.stat"), "nr_periods", "nr_bursts"); err == nil {
		t.Errorf("countsOf = %v without one of the names, want an error", slices.Sorted(maps.Keys(counts)))
	}
}
