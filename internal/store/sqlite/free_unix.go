//go:build linux || darwin

package sqlite

import "syscall"

// available returns the number of free bytes on the volume of a folder for this user.
func available(folder string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:gosec,unconvert // because no volume has 8 EiB, and other systems have other types
}
