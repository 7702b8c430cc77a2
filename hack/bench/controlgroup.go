package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// cgroupRoot is the directory in which the cgroup hierarchies are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// errNoCgroups reports that this machine, or the user of this process, cannot create a cgroup with limits.
var errNoCgroups = errors.New("limits need Linux, root, and a machine or container that may create cgroups")

// cpuPeriod is the period of a CPU limit in microseconds. Kubernetes uses the same one.
const cpuPeriod = 100_000

// controlGroup is a cgroup that limits the memory and the CPU time of its processes, like the cgroup of a
// container.
type controlGroup struct {
	// dirs are the directories of the group: one in each hierarchy of version 1, or one in the only hierarchy of
	// version 2. The first directory limits the memory. If the group limits the CPU time, the last directory does so.
	dirs []string
	// version is the version of cgroups on this machine, 1 or 2.
	version int
	events  string // the file that counts the OOM kills
}

// newControlGroup creates a cgroup with a memory limit in bytes, and a limit on the CPU time as a number of
// CPUs, such as 0.5. 0 CPUs mean no limit on the CPU time. With version 2, the group gets no swap. The error is
// errNoCgroups if nothing can limit a process here. The caller must call remove.
func newControlGroup(memory int, cpus float64) (g *controlGroup, err error) {
	defer func() {
		if err != nil {
			g, err = nil, errors.Join(fmt.Errorf("failed to set up a cgroup: %w", err), g.remove())
		}
	}()
	version, err := cgroupVersion()
	if err != nil {
		return nil, err
	}
	bytes, quota := strconv.Itoa(memory), strconv.Itoa(int(cpus*cpuPeriod))
	if version == 1 {
		g = &controlGroup{version: 1, events: "memory.oom_control"}
		if err := g.add("memory", map[string]string{"memory.limit_in_bytes": bytes}); err != nil || cpus == 0 {
			return g, err
		}
		return g, g.add("cpu", map[string]string{"cpu.cfs_period_us": strconv.Itoa(cpuPeriod), "cpu.cfs_quota_us": quota})
	}
	g = &controlGroup{version: 2, events: "memory.events"}
	limits := map[string]string{"memory.max": bytes}
	if cpus > 0 {
		limits["cpu.max"] = fmt.Sprintf("%s %d", quota, cpuPeriod)
	}
	if err := g.add("", limits); err != nil {
		return g, err
	}
	_ = writeExisting(filepath.Join(g.dirs[0], "memory.swap.max"), "0") // the file is absent on a machine without swap
	return g, nil
}

// cgroupVersion returns the version of the cgroups in which this process can limit memory and CPU time, or
// errNoCgroups. With version 2, it enables both limits for the groups below the root group.
func cgroupVersion() (int, error) {
	version, hierarchies := 1, []string{"memory", "cpu"}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		version, hierarchies = 2, []string{""}
		enabled := filepath.Join(cgroupRoot, "cgroup.subtree_control")
		for _, controller := range []string{"memory", "cpu"} {
			// The write fails without root, or if processes of this container are in the root group.
			_ = writeExisting(enabled, "+"+controller)
			if text, err := os.ReadFile(enabled); err != nil || !slices.Contains(strings.Fields(string(text)), controller) {
				return 0, fmt.Errorf("%w: %s does not enable %s", errNoCgroups, enabled, controller)
			}
		}
	}
	for _, hierarchy := range hierarchies {
		dir, err := os.MkdirTemp(filepath.Join(cgroupRoot, hierarchy), "capstan-bench-probe-")
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errNoCgroups, err)
		}
		if err := os.Remove(dir); err != nil {
			return 0, err
		}
	}
	return version, nil
}

// add creates a directory of the group in a hierarchy, and sets limits there. The keys of limits are names of files.
func (g *controlGroup) add(hierarchy string, limits map[string]string) error {
	dir, err := os.MkdirTemp(filepath.Join(cgroupRoot, hierarchy), "capstan-bench-")
	if err != nil {
		return err
	}
	g.dirs = append(g.dirs, dir)
	for file, value := range limits {
		// The files of a cgroup already exist. A missing file must not be created.
		if err := writeExisting(filepath.Join(dir, file), value); err != nil {
			return err
		}
	}
	return nil
}

func writeExisting(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// command returns the command that runs a program in the group from its first instruction on. A shell enters the group
// and then becomes the program, so the process ID does not change. If the group is nil, command returns the program
// unchanged.
func (g *controlGroup) command(path string, args []string) (program string, arguments []string) {
	if g == nil {
		return path, args
	}
	const enter = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"`
	return "/bin/sh", slices.Concat([]string{"-c", enter, "enter"}, g.dirs, []string{"--", path}, args)
}

// kills returns the number of OOM kills in the group. It returns 0 if the group is nil.
func (g *controlGroup) kills() (int, error) {
	if g == nil {
		return 0, nil
	}
	counts, err := countsOf(filepath.Join(g.dirs[0], g.events), "oom_kill")
	return counts["oom_kill"], err
}

// throttled returns the number of CPU periods in which the processes ran, and the number of periods in which the CPU
// limit throttled them.
func (g *controlGroup) throttled() (periods, throttled int, err error) {
	counts, err := countsOf(filepath.Join(g.dirs[len(g.dirs)-1], "cpu.stat"), "nr_periods", "nr_throttled")
	return counts["nr_periods"], counts["nr_throttled"], err
}

// countsOf reads numbers from a file whose lines each have a name and a number. It returns an error if one of the names
// is missing.
func countsOf(path string, names ...string) (map[string]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read the cgroup: %w", err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if name, count, ok := strings.Cut(strings.TrimSpace(line), " "); ok && slices.Contains(names, name) {
			if counts[name], err = strconv.Atoi(count); err != nil {
				return nil, fmt.Errorf("failed to read %s in %s: %w", name, path, err)
			}
		}
	}
	if len(counts) < len(names) {
		return nil, fmt.Errorf("failed to find %v in %s", names, path)
	}
	return counts, nil
}

// remove removes the group. It retries for a while, because the processes of the group may still be exiting.
func (g *controlGroup) remove() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, dir := range g.dirs {
		backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 8}
		var err error
		_ = wait.ExponentialBackoff(backoff, func() (bool, error) { // after the last attempt, err has the reason
			err = os.Remove(dir)
			return err == nil, nil
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// String describes, for the report, the mechanism that limits the memory.
func (g *controlGroup) String() string {
	if g == nil {
		return "no cgroup: the report compares the peak with the limit"
	}
	return fmt.Sprintf("cgroup v%d", g.version)
}
