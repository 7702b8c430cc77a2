package main

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProgramTimesSince(t *testing.T) {
	before := programTimes{1: {"manager", 10}, 2: {"etcd", 3}, 3: {"kube-apiserver", 8}}
	now := programTimes{1: {"manager", 15}, 2: {"etcd", 3}, 4: {"manager", 1}}
	got := now.since(before, 10*time.Second)
	if diff := cmp.Diff(map[string]float64{"manager": 60, "etcd": 0}, got); diff != "" {
		t.Errorf("the use of CPU time (-want +got):\n%s", diff)
	}
	if got := now.since(before, 0); len(got) != 0 {
		t.Errorf("no time has passed, and since returns %v", got)
	}
	if all := readProgramTimes(); all[os.Getpid()].name != selfName {
		t.Errorf("readProgramTimes = %v, want this process, %d, as %q", all, os.Getpid(), selfName)
	}
}

func TestCPULine(t *testing.T) {
	got := cpuLine(map[string]float64{"manager": 20.4, "etcd": 3}, map[string]float64{"manager": 80, "kube-apiserver": 70})
	if want := "etcd 3 > 0, kube-apiserver 0 > 70, manager 20 > 80"; got != want {
		t.Errorf("cpuLine = %q, want %q", got, want)
	}
}
