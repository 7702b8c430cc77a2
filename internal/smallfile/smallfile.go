// Package smallfile reads files of limited size, because a wrong path, such as a device, could fill the memory.
package smallfile

import (
	"errors"
	"io"
	"os"
)

// Read reads at most one byte more than most bytes of a file, so that the caller can reject a larger file with its own
// message. The error is that of the file system.
func Read(path string, most int64) (data []byte, err error) {
	f, err := os.Open(path) //nolint:gosec // because the caller chooses the file
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, most+1))
}
