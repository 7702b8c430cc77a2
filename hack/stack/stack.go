// Package stack starts and stops a local environment for Capstan: a real etcd and kube-apiserver, and programs
// beside them such as the manager and the fake model server. The demo, the benchmark, the kill test and test suites
// use it.
//
// One deferred call stops everything in the reverse order of its start:
//
//	s := stack.New(dir, cancel)
//	defer s.Stop()
//	cluster, err := s.StartControlPlane(ctx, "config/crd/bases")
//	manager, err := s.StartProgram(ctx, stack.Program{Name: "manager", Path: "bin/manager", ...})
package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Stack is a control plane and programs that are stopped together. A Stack is safe for concurrent use.
type Stack struct {
	dir    string
	onExit func(error)

	mu      sync.Mutex
	running []stopper
}

// stopper is a part that was started. stop may be called repeatedly; only the first call has an effect.
type stopper interface{ stop() error }

// New returns an empty stack that keeps its kubeconfig and logs in dir, which it creates when it first needs the
// folder. If a program ends without being stopped, the stack calls onExit with an error that contains the end of
// the program's log. onExit may be nil; the cancel function of a context is a suitable value.
func New(dir string, onExit func(error)) *Stack {
	if onExit == nil {
		onExit = func(error) {}
	}
	return &Stack{dir: dir, onExit: onExit}
}

// Stop stops everything in the reverse order of its start and waits for the ends, for each program at most for its
// StopTimeout. It returns the errors of this call. A second call returns nil.
func (s *Stack) Stop() error {
	s.mu.Lock()
	running := s.running
	s.running = nil
	s.mu.Unlock()

	var errs []error
	for _, r := range slices.Backward(running) {
		errs = append(errs, r.stop())
	}
	return errors.Join(errs...)
}

// OnStop registers a function that Stop calls once, after everything that is started from now on has stopped. Use
// it for parts that the stack has not started itself, such as a database.
func (s *Stack) OnStop(stop func() error) { s.push(stopFunc(stop)) }

// stopFunc is a function as a stopper. Only Stop calls it, at most once.
type stopFunc func() error

func (f stopFunc) stop() error { return f() }

// Logs returns the paths of all logs in the stack's folder, including those of an earlier stack.
func (s *Stack) Logs() []string {
	logs, err := filepath.Glob(filepath.Join(s.logDir(), "*.log"))
	if err != nil {
		return nil // the name of the folder contains a malformed pattern
	}
	return logs
}

func (s *Stack) push(r stopper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = append(s.running, r)
}

func (s *Stack) logDir() string { return filepath.Join(s.dir, "logs") }

// openLog creates an empty log with this name. Children write to the file directly, so that they depend on no pipe
// and on no goroutine of this process.
func (s *Stack) openLog(name string) (*os.File, error) {
	if err := os.MkdirAll(s.logDir(), 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the folder for logs: %w", err)
	}
	path := filepath.Join(s.logDir(), name+".log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open the log of %s: %w", name, err)
	}
	return f, nil
}
