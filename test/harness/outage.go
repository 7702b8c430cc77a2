package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// KillAPIServer ends kube-apiserver with SIGKILL, like a crash. etcd keeps running, so that no write is lost. restart
// starts kube-apiserver again, at the same address and with the same certificates, and returns when it is ready.
// KillAPIServer requires Linux and must not be called after the control plane has stopped.
func (c *ControlPlane) KillAPIServer() (restart func() error, err error) {
	if _, err := c.signalAPIServer(syscall.SIGKILL); err != nil {
		return nil, err
	}
	c.certificates = c.env.ControlPlane.GetAPIServer().CertDir
	return func() error {
		if err := c.env.ControlPlane.GetAPIServer().Start(); err != nil {
			return fmt.Errorf("failed to start kube-apiserver again: %w", err)
		}
		return nil
	}, nil
}

// PauseAPIServer stops kube-apiserver with SIGSTOP: connections stay open, but get no answer. resume continues
// kube-apiserver. PauseAPIServer requires Linux.
func (c *ControlPlane) PauseAPIServer(ctx context.Context) (resume func() error, err error) {
	pid, err := c.signalAPIServer(syscall.SIGSTOP)
	if err != nil {
		return nil, err
	}
	// A thread that runs on another processor stops a little later, and could still answer a request.
	err = wait.PollUntilContextTimeout(ctx, time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return isStopped(pid)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gave up waiting until kube-apiserver has stopped: %w", err), c.resumeAPIServer())
	}
	return c.resumeAPIServer, nil
}

func (c *ControlPlane) resumeAPIServer() error {
	_, err := c.signalAPIServer(syscall.SIGCONT)
	return err
}

// isStopped reports whether all threads of a process are stopped.
func isStopped(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false, fmt.Errorf("failed to find the threads of process %d: %w", pid, cmp.Or(err, os.ErrNotExist))
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			return false, nil //nolint:nilerr // because the thread has exited meanwhile
		}
		_, after, _ := strings.Cut(string(stat), ") ") // the name of the program is in parentheses
		if !strings.HasPrefix(after, "T") {
			return false, nil
		}
	}
	return true, nil
}

// signalAPIServer sends a signal to kube-apiserver, and returns its process ID.
func (c *ControlPlane) signalAPIServer(sig syscall.Signal) (pid int, err error) {
	const program = "kube-apiserver"
	if pid, err = childOf(os.Getpid(), program, "--secure-port="+c.env.ControlPlane.GetAPIServer().Port); err == nil {
		err = syscall.Kill(pid, sig)
	}
	if err != nil {
		return 0, fmt.Errorf("failed to send %s the signal %q: %w", program, sig, err)
	}
	return pid, nil
}

// childOf returns the process ID of the child of parent that runs this program with this argument.
func childOf(parent int, program, argument string) (int, error) {
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, directory := range directories {
		command, err := os.ReadFile(filepath.Join(directory, "cmdline"))
		if err != nil {
			continue // the process has exited meanwhile
		}
		args := bytes.Split(bytes.TrimRight(command, "\x00"), []byte{0})
		if filepath.Base(string(args[0])) != program || !contains(args, argument) || !isChild(directory, parent) {
			continue
		}
		return strconv.Atoi(filepath.Base(directory))
	}
	return 0, errors.New("this process has no such child in /proc")
}

func contains(args [][]byte, argument string) bool {
	for _, a := range args {
		if string(a) == argument {
			return true
		}
	}
	return false
}

// isChild reports whether the process with this directory in /proc is a child of parent and has not exited.
func isChild(directory string, parent int) bool {
	stat, err := os.ReadFile(filepath.Join(directory, "stat"))
	if err != nil {
		return false
	}
	// The format is PID (NAME) STATE PARENT ..., where the name may contain any character, even a parenthesis.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(parent)
}
