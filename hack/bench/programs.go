package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// The names of this program's processes in a report.
const (
	selfName    = "benchmark"
	hostileName = "attacker's servers"
)

// programTimes are the CPU times of this process and of the processes that it has started, such as kube-apiserver, etcd
// and the manager, by process ID.
type programTimes map[int]programTime

// programTime is the CPU time of a process so far.
type programTime struct {
	name    string
	seconds float64
}

// readProgramTimes reads the CPU times. It returns nil if they are not available.
func readProgramTimes() programTimes {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	times := programTimes{}
	self := os.Getpid()
	for _, process := range all {
		stat, err := process.Stat() // a process that has just exited does not count
		if err != nil || process.PID != self && stat.PPID != self {
			continue
		}
		name := stat.Comm
		switch {
		case process.PID == self:
			name = selfName
		case strings.HasPrefix(name, "bench"):
			name = hostileName
		}
		times[process.PID] = programTime{name, stat.CPUTime()}
	}
	return times
}

// since returns how much CPU time each program has used since an earlier reading, in percent of one CPU. It does not
// count a process that has exited since then.
func (t programTimes) since(earlier programTimes, passed time.Duration) map[string]float64 {
	used := map[string]float64{}
	for id, now := range t {
		if before := earlier[id]; passed > 0 && now.seconds >= before.seconds {
			used[now.name] += 100 * (now.seconds - before.seconds) / passed.Seconds()
		}
	}
	return used
}

// cpuLine compares the CPU times of two windows.
func cpuLine(without, with map[string]float64) string {
	names := map[string]float64{}
	maps.Copy(names, without)
	maps.Copy(names, with)
	parts := make([]string, 0, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		parts = append(parts, fmt.Sprintf("%s %.0f > %.0f", name, without[name], with[name]))
	}
	return strings.Join(parts, ", ")
}
