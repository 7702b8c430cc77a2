package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// workspace is the directory of a demo. Only one demo at a time runs in it: the demo's process holds a file lock
// until it exits, even if it is killed. So a process ID that was reused does no harm.
type workspace struct{ dir string }

// state is the state that a running demo publishes.
type state struct {
	// PID is the process that holds the lock. This process stops everything when it receives SIGTERM.
	PID int `json:"pid"`
	// Kept is true if the demo has succeeded and keeps running.
	Kept bool `json:"kept"`
	// Kubeconfig is the path of the kubeconfig of a kept demo.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

func (w workspace) path(name string) string { return filepath.Join(w.dir, name) }

// lock takes the lock of the workspace. busy is true if another demo holds it.
func (w workspace) lock() (release func(), busy bool, err error) {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, false, fmt.Errorf("failed to make the demo's directory: %w", err)
	}
	f, err := os.OpenFile(w.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("failed to open the demo's lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		err = errors.Join(ignore(err, syscall.EWOULDBLOCK), f.Close())
		return nil, true, err
	}
	// The lock is released when the file is closed, or when the process exits.
	return func() { _ = f.Close() }, false, nil
}

// claim locks the workspace for a new demo. If another demo has locked it, the error describes that demo.
func (w workspace) claim() (release func(), err error) {
	unlock, busy, err := w.lock()
	if err != nil {
		return nil, err
	}
	if busy {
		return nil, w.explainBusy()
	}
	if err := w.write(state{PID: os.Getpid()}); err != nil {
		unlock()
		return nil, err
	}
	return func() {
		_ = os.Remove(w.path("state.json")) // an error does not matter: without the lock, readers ignore the file
		unlock()
	}, nil
}

func (w workspace) explainBusy() error {
	s, err := w.read()
	switch {
	case err != nil:
		return err
	case s.Kept:
		return fmt.Errorf("a demo is running already: use it with \"export KUBECONFIG=%s\", or stop it with \"make demo-stop\"",
			s.Kubeconfig)
	default:
		return fmt.Errorf("another demo is running (process %d): wait for its end, or stop it with \"make demo-stop\"", s.PID)
	}
}

// clear removes the files of an earlier demo.
func (w workspace) clear() error {
	for _, name := range []string{"logs", "data", "cache", "kubeconfig"} {
		if err := os.RemoveAll(w.path(name)); err != nil {
			return fmt.Errorf("failed to clear the demo's directory: %w", err)
		}
	}
	if err := os.MkdirAll(w.path("data"), 0o700); err != nil {
		return fmt.Errorf("failed to make the demo's directory: %w", err)
	}
	if err := os.WriteFile(w.path(".gitignore"), []byte("*\n"), 0o600); err != nil {
		return fmt.Errorf("failed to make the demo's directory: %w", err)
	}
	return nil
}

func (w workspace) write(s state) error {
	content, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("failed to encode the demo's state: %w", err)
	}
	// Readers see either the old file or the new one, never a part of it.
	next := w.path("state.json.new")
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return fmt.Errorf("failed to write the demo's state: %w", err)
	}
	if err := os.Rename(next, w.path("state.json")); err != nil {
		return fmt.Errorf("failed to write the demo's state: %w", err)
	}
	return nil
}

// read returns the state, or an empty state if the file does not exist.
func (w workspace) read() (state, error) {
	var s state
	content, err := os.ReadFile(w.path("state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil {
		return s, fmt.Errorf("failed to read the demo's state: %w", err)
	}
	return s, nil
}

// ignore returns nil for an expected error.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
