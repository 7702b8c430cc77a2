package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// hasLocks reports whether flock locks files.
const hasLocks = true

// lockedByte is the high half of the position of the byte that flock locks. Locks of Windows also keep other processes
// from reading, so the byte is far behind the name of the owner.
const lockedByte = 1 << 30

// flock locks a file until the file is closed. It returns false if another process has locked it.
func flock(f *os.File) (taken bool, err error) {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err = windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{OffsetHigh: lockedByte})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}
