package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// TemporaryDir is a directory for temporary journals. A process that is killed cannot remove its directory, so the next
// process that needs one does.
type TemporaryDir struct {
	// Path is the path of the directory. Only the user of this process can read it.
	Path string
	lock *os.File
}

const (
	// ownerFile is the name, without lockSuffix, of the file that a process locks while it uses a TemporaryDir.
	ownerFile = "owner"
	// unlockedFor is the age below which a directory is not removed: its process may not have locked it yet.
	unlockedFor = time.Minute
)

// NewTemporaryDir creates a directory with this prefix, and removes those of processes that were killed. The caller
// must call Remove.
func NewTemporaryDir(ctx context.Context, prefix string) (*TemporaryDir, error) {
	removeAbandoned(prefix)
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, fmt.Errorf("failed to create a directory for temporary files: %w", err)
	}
	lock, err := acquire(ctx, filepath.Join(path, ownerFile))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &TemporaryDir{Path: path, lock: lock}, nil
}

// Remove removes the directory with its content.
func (t *TemporaryDir) Remove() error {
	return errors.Join(t.lock.Close(), os.RemoveAll(t.Path))
}

// removeAbandoned removes the directories with a prefix that no process uses. It ignores errors: the directories of
// other users cannot be removed, and the next call tries again.
func removeAbandoned(prefix string) {
	all, err := os.ReadDir(os.TempDir())
	if err != nil || !hasLocks {
		return
	}
	for _, d := range all {
		if path := filepath.Join(os.TempDir(), d.Name()); strings.HasPrefix(d.Name(), prefix) && isAbandoned(path) {
			_ = os.RemoveAll(path)
		}
	}
}

// isAbandoned reports whether the path is that of a TemporaryDir that no process uses. Other users can create files
// with any name, so isAbandoned follows no link to another directory.
func isAbandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || time.Since(info.ModTime()) < unlockedFor {
		return false
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.OpenFile(ownerFile+lockSuffix, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // before the removal, because Windows cannot remove an open file
	taken, err := flock(f)
	return taken && err == nil && isOfThisHost(f)
}

// isOfThisHost reports whether the last owner of a lock file was a process of this host, or is unknown. Locks of some
// network file systems exclude only processes of the same host.
func isOfThisHost(f *os.File) bool {
	last := owner(f)
	if last == "" {
		return true
	}
	host, err := os.Hostname()
	return err == nil && strings.HasSuffix(last, " on "+host+")")
}
