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

// ErrInUse is returned by Open for a journal that another process uses.
var ErrInUse = errors.New("another process uses it")

// IsInUse reports whether an error of Open means that another process uses the journal, so that it may be of use to try again.
func IsInUse(err error) bool { return errors.Is(err, ErrInUse) }

const (
	// lockSuffix is what the name of the lock file has more than that of the journal.
	lockSuffix = ".lock"
	// lockFor bounds the wait of Open for a process that is about to end, or that opens the journal for a moment.
	lockFor = 2 * time.Second
	// lockInterval is the time between two attempts.
	lockInterval = 20 * time.Millisecond
)

// acquire locks the journal of a path for this process, until the file it returns is closed or the process is dead, in
// whatever way. SQLite's own locks do not do for that: they last for a transaction, and admit several processes. The lock is
// on a file beside the journal, because some file systems (NFS) mix the two kinds of locks. That file stays: a process that removed
// it could remove the one that its successor has locked.
func acquire(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // because whoever runs the process names the file
	if err != nil {
		return nil, fmt.Errorf("failed to make the lock file of the journal %q: let the user of this process own both the file and its folder: %w", path, err)
	}
	taken, err := await(ctx, f)
	switch {
	case err != nil:
		err = fmt.Errorf("failed to lock the journal %q with the file %q; the file system must support locks: %w", path, f.Name(), err)
	case !taken && ctx.Err() != nil:
		err = context.Cause(ctx)
	case !taken:
		err = fmt.Errorf("failed to open the journal %q: %w%s: wait for that process or stop it, or use another file", path, ErrInUse, owner(f))
	default:
		_ = sign(f) // a full disk must not keep the process from its journal
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// await locks a file as soon as no other process has it. It waits for as long as ctx and lockFor allow.
func await(ctx context.Context, f *os.File) (taken bool, err error) {
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

// sign writes into the lock file which process has it, for the error that another one gets.
func sign(f *os.File) error {
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

// maxOwner bounds what is shown of a lock file, in bytes.
const maxOwner = 300

// owner says which process has the lock, in parentheses; empty if it has not said so yet.
func owner(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxOwner))
	if line, _, whole := strings.Cut(string(text), "\n"); err == nil && whole {
		return " (" + line + ")"
	}
	return ""
}
