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

// workspace is the folder of a demo. One demo runs in it at a time: it holds a lock as long as its process lives,
// however that ends, so that nothing here depends on process ids that may be somebody else's by now.
type workspace struct{ dir string }

// state is what a running demo says about itself.
type state struct {
	// PID of the process that holds the lock, and that stops everything when it gets SIGTERM.
	PID int `json:"pid"`
	// Kept is true when the demo has succeeded and stays.
	Kept bool `json:"kept"`
	// Kubeconfig is the path of the kubeconfig, when it is kept.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

func (w workspace) path(name string) string { return filepath.Join(w.dir, name) }

// lock takes the workspace; busy is true when another demo has it.
func (w workspace) lock() (release func(), busy bool, err error) {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, false, fmt.Errorf("failed to make the demo's folder: %w", err)
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
	return func() { _ = f.Close() }, false, nil // closing releases it, and so does the end of the process
}

// claim takes the workspace for a new demo, or says who has it.
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
		_ = os.Remove(w.path("state.json")) // nobody trusts it without the lock
		unlock()
	}, nil
}

func (w workspace) explainBusy() error {
	s, err := w.read()
	switch {
	case err != nil:
		return err
	case s.Kept:
		return fmt.Errorf("a demo is running already: use it with \"export KUBECONFIG=%s\", or stop it with \"make demo-stop\"", s.Kubeconfig)
	default:
		return fmt.Errorf("another demo is under way (process %d): wait for its end, or stop it with \"make demo-stop\"", s.PID)
	}
}

// clear removes what an earlier demo left.
func (w workspace) clear() error {
	for _, name := range []string{"logs", "data", "kubeconfig"} {
		if err := os.RemoveAll(w.path(name)); err != nil {
			return fmt.Errorf("failed to clear the demo's folder: %w", err)
		}
	}
	if err := os.MkdirAll(w.path("data"), 0o700); err != nil {
		return fmt.Errorf("failed to make the demo's folder: %w", err)
	}
	if err := os.WriteFile(w.path(".gitignore"), []byte("*\n"), 0o600); err != nil {
		return fmt.Errorf("failed to make the demo's folder: %w", err)
	}
	return nil
}

func (w workspace) write(s state) error {
	content, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("failed to encode the demo's state: %w", err)
	}
	// Readers see the old file or the new one, never a part.
	next := w.path("state.json.new")
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return fmt.Errorf("failed to write the demo's state: %w", err)
	}
	if err := os.Rename(next, w.path("state.json")); err != nil {
		return fmt.Errorf("failed to write the demo's state: %w", err)
	}
	return nil
}

// read returns the state, an empty one where there is none.
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

// ignore returns no error for one that is expected.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
