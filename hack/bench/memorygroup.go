package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// memoryGroup is a control group that bounds the memory of its processes, as a container's does.
type memoryGroup struct {
	dir string
	// version is the version of the hierarchy, 1 or 2.
	version int
	events  string // the file that counts the processes killed for lack of memory
}

// newMemoryGroup creates a control group with a limit in bytes and without swap. It needs Linux and root.
func newMemoryGroup(limit int) (*memoryGroup, error) {
	root, g := "/sys/fs/cgroup", &memoryGroup{version: 2, events: "memory.events"}
	limits := map[string]string{"memory.max": strconv.Itoa(limit)}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root, g.version, g.events = filepath.Join(root, "memory"), 1, "memory.oom_control"
		limits = map[string]string{"memory.limit_in_bytes": strconv.Itoa(limit)}
	} else {
		// The write fails if processes of this container are in the same group. Then setting the limit fails as
		// well.
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0o600)
	}
	var err error
	if g.dir, err = os.MkdirTemp(root, "capstan-bench-"); err != nil {
		return nil, fmt.Errorf("failed to make a control group: %w", err)
	}
	for file, value := range limits {
		// The files of a control group already exist. A missing file must not be created.
		if err := writeExisting(filepath.Join(g.dir, file), value); err != nil {
			return nil, errors.Join(fmt.Errorf("failed to limit the memory of a control group: %w", err), os.Remove(g.dir))
		}
	}
	if g.version == 2 {
		_ = writeExisting(filepath.Join(g.dir, "memory.swap.max"), "0") // the file is absent on a machine without swap
	}
	return g, nil
}

func writeExisting(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// command returns the command that runs a program in the group from its first instruction. The process keeps its
// ID. A nil group returns the program unchanged.
func (g *memoryGroup) command(path string, args []string) (program string, arguments []string) {
	if g == nil {
		return path, args
	}
	const enter = `echo $$ >"$0" && exec "$@"`
	return "/bin/sh", append([]string{"-c", enter, filepath.Join(g.dir, "cgroup.procs"), path}, args...)
}

// kills returns the number of processes of the group that were killed for lack of memory, and 0 for a nil group.
func (g *memoryGroup) kills() (int, error) {
	if g == nil {
		return 0, nil
	}
	file, err := os.Open(filepath.Join(g.dir, g.events))
	if err != nil {
		return 0, fmt.Errorf("failed to read the control group: %w", err)
	}
	defer func() { _ = file.Close() }() // the file was only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, count, ok := strings.Cut(lines.Text(), " "); ok && name == "oom_kill" {
			return strconv.Atoi(count)
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("failed to find oom_kill in %s", file.Name()))
}

// remove removes the group once its processes have ended.
func (g *memoryGroup) remove() error {
	if g == nil {
		return nil
	}
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 8}
	var err error
	_ = wait.ExponentialBackoff(backoff, func() (bool, error) { // err says more than this error
		err = os.Remove(g.dir)
		return err == nil, nil
	})
	return err
}

// String returns the kind of the bound.
func (g *memoryGroup) String() string {
	if g == nil {
		return "no control group: the report compares the peak with the limit"
	}
	return fmt.Sprintf("control group v%d", g.version)
}
