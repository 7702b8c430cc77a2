// Package stack starts and stops what Capstan runs against on one machine: a real etcd and kube-apiserver, and
// programs beside them such as the manager and the fake model server. The demo and the benchmark are built on it.
//
// Everything is stopped in the reverse order of its start, by one call that is meant to be deferred:
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

// Stack is a control plane and programs that are stopped together. Its methods may be called from several goroutines.
type Stack struct {
	dir    string
	onExit func(error)

	mu      sync.Mutex
	running []stopper
}

// stopper is something that was started; stop is called any number of times, and acts once.
type stopper interface{ stop() error }

// New returns an empty stack that keeps its kubeconfig and logs in a folder, made when it is first needed. When a
// program ends although nobody stopped it, onExit gets an error that says so, with the end of the program's log; a
// context's cancel function fits. It may be nil.
func New(dir string, onExit func(error)) *Stack {
	if onExit == nil {
		onExit = func(error) {}
	}
	return &Stack{dir: dir, onExit: onExit}
}

// Stop stops all that was started, the youngest first, and waits for its end: for each program at most the
// StopTimeout it was given. It returns what went wrong on the way, and nil when called again.
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

// OnStop lets Stop call a function too, once, after all that is started from now on has stopped: for what was started in
// another way, such as a database.
func (s *Stack) OnStop(stop func() error) { s.push(stopFunc(stop)) }

// stopFunc is a function as a stopper. Stop is the only one to call it, and forgets what it has called.
type stopFunc func() error

func (f stopFunc) stop() error { return f() }

// Logs returns the paths of the logs of all that was started with this stack, or of an earlier one in its folder.
func (s *Stack) Logs() []string {
	logs, err := filepath.Glob(filepath.Join(s.logDir(), "*.log"))
	if err != nil {
		return nil // the folder's name holds a pattern of Glob that is malformed
	}
	return logs
}

func (s *Stack) push(r stopper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = append(s.running, r)
}

func (s *Stack) logDir() string { return filepath.Join(s.dir, "logs") }

// openLog makes an empty log of that name. Children write to the file themselves, so they outlive neither a pipe nor
// a goroutine of this process.
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
