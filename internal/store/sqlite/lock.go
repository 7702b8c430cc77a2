package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// ErrInUse is returned by Open if another process uses the journal.
var ErrInUse = errors.New("another process uses it")

// IsInUse reports whether an error of Open means that another process uses the journal, so that another attempt may
// succeed.
func IsInUse(err error) bool { return errors.Is(err, ErrInUse) }

const (
	// lockSuffix is appended to the name of the journal to get the name of the lock file.
	lockSuffix = ".lock"
	// lockFor limits how long Open waits for the lock of a process that is stopping, or that opens the journal briefly.
	lockFor = 5 * time.Second
	// lockInterval is the time between two attempts.
	lockInterval = 20 * time.Millisecond
)

// acquire locks the journal of a path until the returned file is closed or the process exits.
//
// 1. SQLite's own locks are not enough: they last for one transaction, so several processes could use the file.
// 2. The lock is on a separate file, because some file systems (NFS) do not distinguish the two kinds of locks.
// 3. The lock file is never removed: a process could remove the file that its successor has locked.
func acquire(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // because the operator names the file
	if err != nil {
		return nil, fmt.Errorf("failed to create the lock file of the journal %q: let the user of this process "+
			"own both the file and its directory: %w", path, err)
	}
	taken, err := lockWithin(ctx, f)
	switch {
	case err != nil:
		err = fmt.Errorf("failed to lock the journal %q with the file %q; the file system must support locks: %w", path, f.Name(), err)
	case !taken && ctx.Err() != nil:
		err = context.Cause(ctx)
	case !taken:
		err = fmt.Errorf("failed to open the journal %q: %w%s: wait for that process or stop it",
			path, ErrInUse, owner(f))
	default:
		_ = writeOwner(f) // an error is ignored, because a full disk must not prevent the process from reading its journal
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// lockWithin locks a file as soon as no other process has locked it. It waits as long as ctx and lockFor allow.
func lockWithin(ctx context.Context, f *os.File) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lockFor)
	defer cancel()
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for {
		if taken, err = flock(f); err != nil || taken {
			return taken, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// writeOwner writes the name of this process into the lock file. Other processes show it in their errors.
func writeOwner(f *os.File) error {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	text := fmt.Sprintf("process %d on %s\n", os.Getpid(), host)
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(text)))
}

// maxOwner is the maximum number of bytes of a lock file that an error shows.
const maxOwner = 300

// owner returns the name of the process that has the lock, in parentheses, or an empty string if the process has not
// written its name yet.
func owner(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxOwner))
	if line, _, whole := strings.Cut(string(text), "\n"); err == nil && whole {
		return " (" + line + ")"
	}
	return ""
}
