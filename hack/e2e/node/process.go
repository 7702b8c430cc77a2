package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// stopPatience is the time between SIGTERM and SIGKILL.
	stopPatience = 10 * time.Second
	pollInterval = 100 * time.Millisecond
)

// start starts a program in a new session, so that Ctrl-C does not reach it, and records its process ID for Down.
func (c *Cluster) start(name, program string, args ...string) error {
	if err := os.MkdirAll(c.config.Logs, 0o755); err != nil { //nolint:gosec // because logs hold nothing secret
		return err
	}
	log, err := os.Create(filepath.Join(c.config.Logs, name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()    // the program has its own descriptor
	cmd := exec.Command(program, args...) //nolint:noctx // because Down stops the processes in the right order
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, c.path()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to start %s: %w", name, err)
	}
	go func() { _ = cmd.Wait() }() // reap the process; a zombie would count as running
	_, err = c.write(strconv.Itoa(cmd.Process.Pid), "pids", name)
	return err
}

// processes returns the running processes of the cluster, by name. It ignores a process whose arguments do not
// contain the state directory, because that process has reused the ID of a process that exited.
func (c *Cluster) processes() map[string]int {
	found := map[string]int{}
	files, _ := filepath.Glob(c.path("pids", "*"))
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(string(data))
		if err == nil && strings.Contains(arguments(pid), c.path()+"/") {
			found[filepath.Base(path)] = pid
		}
	}
	return found
}

// arguments returns the arguments of a running process, separated by spaces.
func arguments(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(data), "\x00", " ")
}

// stop stops one process.
func (c *Cluster) stop(name string) error {
	pid, ok := c.processes()[name]
	if ok {
		if err := end(pid); err != nil {
			return fmt.Errorf("failed to stop %s: %w", name, err)
		}
	}
	return ignoreMissing(os.Remove(c.path("pids", name)))
}

// end sends SIGTERM to a process and waits until it has exited. After stopPatience it sends SIGKILL.
func end(pid int) error {
	_ = syscall.Kill(pid, syscall.SIGTERM)
	for deadline := time.Now().Add(stopPatience); arguments(pid) != ""; time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(deadline.Add(stopPatience)) {
			return fmt.Errorf("process %d does not exit", pid)
		}
	}
	return nil
}

// wait polls until check returns nil. It returns an error after startPatience, or if a process of the cluster has
// exited.
func (c *Cluster) wait(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	files, err := filepath.Glob(c.path("pids", "*"))
	if err != nil {
		return err
	}
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if len(c.processes()) < len(files) {
			for _, path := range files {
				if name := filepath.Base(path); c.processes()[name] == 0 {
					return fmt.Errorf("%s has exited during the wait for %s; see %s", name, what, filepath.Join(c.config.Logs, name+".log"))
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready within %s; see %s: %w", what, startPatience, c.config.Logs, err)
		case <-time.After(pollInterval):
		}
	}
}

// run runs a program to its end and returns its output.
func run(ctx context.Context, stdin []byte, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(string(stdin))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err,
			strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
