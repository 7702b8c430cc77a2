package main

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestCgroupLimitsMemory(t *testing.T) {
	g, err := newControlGroup(32<<20, 0)
	if err != nil {
		// A cgroup needs root and a mounted hierarchy. Without a cgroup, the report must say so.
		if os.Geteuid() == 0 && !errors.Is(err, os.ErrPermission) && !strings.Contains(err.Error(), "cgroup") {
			t.Errorf("error %q, want one about the cgroup", err)
		}
		if got := (*controlGroup)(nil).String(); !strings.Contains(got, "no cgroup") {
			t.Errorf("without a group, the report has %q, want \"no cgroup\"", got)
		}
		return
	}
	t.Cleanup(func() {
		if err := g.remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	// tail keeps an unfinished line in memory.
	path, args := g.command("/bin/sh", []string{"-c", "echo started; head -c 200000000 /dev/zero | tail -n 1 >/dev/null; exit 1"})
	k, started := keepRunning(t, "greedy", path, args)
	started(2)
	k.close()
	if kills, err := g.kills(); err != nil || kills < 1 {
		t.Errorf("%d OOM kills (%v), want at least one", kills, err)
	}
	if exits, _ := k.counts(); exits < 1 {
		t.Error("no unexpected exit, want at least one")
	}
}

func TestCgroupLimitsCPUTime(t *testing.T) {
	g, err := newControlGroup(64<<20, 0.1)
	if err != nil {
		t.Skip(err) // TestCgroupLimitsMemory checks the error
	}
	path, args := g.command("/bin/sh", []string{"-c", "echo started; while :; do :; done"})
	k, started := keepRunning(t, "busy", path, args)
	started(1)
	for throttled := 0; throttled == 0; {
		if _, throttled, err = g.throttled(); err != nil || t.Context().Err() != nil {
			t.Fatalf("want a throttled CPU period of a process that uses a whole CPU: %v", err)
		}
	}
	k.close()
	if err := g.remove(); err != nil {
		t.Errorf("remove: %v", err)
	}
}
