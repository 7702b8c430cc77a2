// Package harness starts and stops a local environment for Capstan: a real etcd and kube-apiserver, other programs such
// as the manager, and servers in this process such as the fake model. The demo, the benchmark, the kill test and
// other tests use it. Package harnesstest wraps it for tests.
//
// One deferred call stops everything in the reverse order of its start:
//
//	h := harness.New(dir, cancel)
//	defer h.Stop()
//	cluster, err := h.StartControlPlane(ctx, harness.Install{CRDs: "config/crd/bases", Policy: "config/policy"})
//	manager, err := h.StartProgram(ctx, harness.Program{Name: "manager", Path: "bin/manager", ...})
package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Harness is a control plane and programs that are stopped together. A Harness is safe for concurrent use.
type Harness struct {
	dir    string
	onExit func(error)

	mu      sync.Mutex
	running []stopper
}

// stopper is a part that was started. stop may be called repeatedly; only the first call has an effect.
type stopper interface{ stop() error }

// New returns an empty harness that keeps its kubeconfig and logs in dir, which it creates when it first writes
// a file. If a program exits without being stopped, the harness calls onExit with an error that contains the end of the
// program's log. onExit may be nil. The cancel function of a context is a suitable value.
func New(dir string, onExit func(error)) *Harness {
	if onExit == nil {
		onExit = func(error) {}
	}
	return &Harness{dir: dir, onExit: onExit}
}

// Stop stops everything in the reverse order of its start. It waits until each program has exited, and kills a program
// after its StopTimeout. A second call does nothing and returns nil.
func (h *Harness) Stop() error {
	h.mu.Lock()
	running := h.running
	h.running = nil
	h.mu.Unlock()

	var errs []error
	for _, r := range slices.Backward(running) {
		errs = append(errs, r.stop())
	}
	return errors.Join(errs...)
}

// OnStop registers a function that Stop calls once, after it has stopped everything that was started later than this
// call. Use it for parts that the harness has not started itself, such as a database.
func (h *Harness) OnStop(stop func() error) { h.push(stopFunc(stop)) }

// stopFunc is a function as a stopper. Only Stop calls it, at most once.
type stopFunc func() error

func (f stopFunc) stop() error { return f() }

// Logs returns the paths of all logs in the harness's directory, including those of an earlier harness.
func (h *Harness) Logs() []string {
	logs, err := filepath.Glob(filepath.Join(h.logDir(), "*.log"))
	if err != nil {
		return nil // the name of the directory contains a malformed pattern
	}
	return logs
}

func (h *Harness) push(r stopper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = append(h.running, r)
}

func (h *Harness) logDir() string { return filepath.Join(h.dir, "logs") }

// openLog creates an empty log with this name. Child processes write to the file directly, so that they do not depend
// on a pipe or a goroutine of this process.
func (h *Harness) openLog(name string) (*os.File, error) {
	if err := os.MkdirAll(h.logDir(), 0o700); err != nil {
		return nil, fmt.Errorf("failed to create the directory for logs: %w", err)
	}
	path := filepath.Join(h.logDir(), name+".log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open the log of %s: %w", name, err)
	}
	return f, nil
}
