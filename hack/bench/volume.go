package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// inMemory is the directory for the images of volumes, if it exists. A loop device on a disk needs up to 70
// milliseconds for a write that takes one millisecond on the disk itself, and the benchmark should not measure that.
const inMemory = "/dev/shm"

// mountVolume creates a volume with the given size, mounts it at the directory parent/volume, and returns this
// directory. In a cluster, a journal has such a volume. mountVolume needs Linux, root and loop devices.
func mountVolume(ctx context.Context, parent string, mebibytes int) (dir string, unmount func() error, err error) {
	dir = filepath.Join(parent, "volume")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("failed to make a volume: %w", err)
	}
	image, err := newImage(parent, int64(mebibytes)<<20)
	if err != nil {
		return "", nil, fmt.Errorf("failed to make a volume: %w", err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if err := runQuietly(ctx, command...); err != nil {
			return "", nil, errors.Join(err, os.Remove(image))
		}
	}
	return dir, func() error {
		return errors.Join(runQuietly(context.WithoutCancel(ctx), "umount", dir), os.Remove(image))
	}, nil
}

// newImage creates an image file with the given size in bytes. It allocates the whole image in advance, so that the
// memory is charged to this process and not to the manager, which has a memory limit.
func newImage(parent string, size int64) (path string, err error) {
	if info, err := os.Stat(inMemory); err == nil && info.IsDir() {
		parent = inMemory
	}
	image, err := os.CreateTemp(parent, "capstan-bench-*.img")
	if err != nil {
		return "", err
	}
	if err := errors.Join(allocate(image, size), image.Close()); err != nil {
		return "", errors.Join(err, os.Remove(image.Name()))
	}
	return image.Name(), nil
}

// allocate fills a file with zeros.
func allocate(file *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for ; size > 0; size -= int64(len(zeros)) {
		if _, err := file.Write(zeros[:min(size, int64(len(zeros)))]); err != nil {
			return err
		}
	}
	return nil
}

// runQuietly runs a program. If the program fails, the error contains its output.
func runQuietly(ctx context.Context, command ...string) error {
	if output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("failed to run %v: %w: %s", command, err, output)
	}
	return nil
}
