//go:build linux || darwin

package sqlite

import "syscall"

// available returns the number of bytes that this user can still write on the volume of a directory.
func available(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:gosec,unconvert // because no volume has 8 EiB, and other systems have other types
}
