package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// mountVolume makes a volume of a size in a folder, as the volume of a journal is in a cluster, and returns where it is mounted.
// It takes Linux, root and loop devices.
func mountVolume(ctx context.Context, folder string, mebibytes int) (dir string, unmount func() error, err error) {
	image, dir := filepath.Join(folder, "volume.img"), filepath.Join(folder, "volume")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("failed to make a volume: %w", err)
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return "", nil, fmt.Errorf("failed to make a volume: %w", err)
	}
	if err := os.Truncate(image, int64(mebibytes)<<20); err != nil {
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

// runQuietly runs a program. Its output is in the error.
func runQuietly(ctx context.Context, command ...string) error {
	if said, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("failed to run %v: %w: %s", command, err, said)
	}
	return nil
}
