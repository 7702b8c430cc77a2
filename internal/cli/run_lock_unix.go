//go:build unix && !aix && !solaris

package cli

import (
	"errors"
	"os"
	"syscall"
)

// flock locks a file for as long as it is open, and reports false if another process has it.
func flock(f *os.File) (taken bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
