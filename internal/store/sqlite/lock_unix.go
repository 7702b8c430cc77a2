//go:build unix && !aix && !solaris

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// hasLocks reports whether flock locks files.
const hasLocks = true

// flock locks a file until the file is closed. It returns false if another process has locked it.
func flock(f *os.File) (taken bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return err == nil, err
		}
	}
}
