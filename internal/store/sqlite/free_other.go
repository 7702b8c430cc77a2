//go:build !linux && !darwin

package sqlite

import "errors"

// available returns an error, because the free space of a volume cannot be found on this system.
func available(string) (int64, error) { return 0, errors.ErrUnsupported }
