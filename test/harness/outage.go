package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// KillAPIServer ends kube-apiserver with SIGKILL, like a crash. restart starts it again, at the same address and
// with the same certificates, and returns when it answers. etcd keeps running, so that no write is lost.
// KillAPIServer needs Linux and must not be called while the control plane is stopped.
func (c *ControlPlane) KillAPIServer() (restart func() error, err error) {
	if err := c.signalAPIServer(syscall.SIGKILL); err != nil {
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

// PauseAPIServer stops kube-apiserver with SIGSTOP: connections stay open, but nothing answers. resume continues
// it. PauseAPIServer needs Linux.
func (c *ControlPlane) PauseAPIServer() (resume func() error, err error) {
	if err := c.signalAPIServer(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() error { return c.signalAPIServer(syscall.SIGCONT) }, nil
}

func (c *ControlPlane) signalAPIServer(sig syscall.Signal) error {
	const program = "kube-apiserver"
	pid, err := childOf(os.Getpid(), program, "--secure-port="+c.env.ControlPlane.GetAPIServer().Port)
	if err == nil {
		err = syscall.Kill(pid, sig)
	}
	if err != nil {
		return fmt.Errorf("failed to send %s the signal %q: %w", program, sig, err)
	}
	return nil
}

// childOf returns the running child of a process with this program and argument.
func childOf(parent int, program, argument string) (int, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, folder := range folders {
		command, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err != nil {
			continue // the process has ended meanwhile
		}
		args := bytes.Split(bytes.TrimRight(command, "\x00"), []byte{0})
		if filepath.Base(string(args[0])) != program || !contains(args, argument) || !isChild(folder, parent) {
			continue
		}
		return strconv.Atoi(filepath.Base(folder))
	}
	return 0, errors.New("there is no such process of ours in /proc")
}

func contains(args [][]byte, argument string) bool {
	for _, a := range args {
		if string(a) == argument {
			return true
		}
	}
	return false
}

// isChild reports whether a process is a child of parent and has not ended.
func isChild(folder string, parent int) bool {
	stat, err := os.ReadFile(filepath.Join(folder, "stat"))
	if err != nil {
		return false
	}
	// The format is PID (NAME) STATE PARENT ..., where the name may contain any character, even a parenthesis.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(parent)
}
