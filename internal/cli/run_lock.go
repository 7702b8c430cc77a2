package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// errHeld means that another process runs the Turn with the same journal.
var errHeld = errors.New("another capstan runs it with the same --data-dir: wait for that one, or use another folder")

// hold takes a Turn of a folder for this process, until release is called or the process is dead. It returns errHeld if
// another one has it. A journal alone cannot tell a run that goes on from one that was killed, and would give the Turn away.
func hold(dir, uid string) (release func() error, err error) {
	path := filepath.Join(dir, "capstan-run-"+uid+".lock")
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // because the folder is what the user names
		if err != nil {
			return nil, fmt.Errorf("failed to take the Turn for this run: %w", err)
		}
		current, err := lock(f, path)
		if current {
			return func() error { return errors.Join(os.Remove(path), f.Close()) }, nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// lock locks a file, and reports whether that is still the one of the path: who had it before has removed it.
func lock(f *os.File, path string) (current bool, err error) {
	if taken, err := flock(f); err != nil {
		return false, fmt.Errorf("failed to lock %s: %w", path, err)
	} else if !taken {
		return false, errHeld
	}
	held, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("failed to look at %s: %w", path, err)
	}
	there, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("failed to look at %s: %w", path, err)
	}
	return err == nil && os.SameFile(held, there), nil
}
