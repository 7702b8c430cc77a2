//go:build !linux && !darwin

package sqlite

import "errors"

// available returns an error: how much a volume has left is not known on this system.
func available(string) (int64, error) { return 0, errors.ErrUnsupported }
