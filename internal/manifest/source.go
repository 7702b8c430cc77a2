package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Both limits are far higher than manifests need. Without them, a wrong path, such as a disk image or the root
// directory, could fill the memory.
const (
	// maxFileBytes is the maximum size of a manifest.
	maxFileBytes = 8 << 20
	// maxFiles is the maximum number of manifests in a directory and its subdirectories.
	maxFiles = 1000
)

// standardInput is the path of standard input.
const standardInput = "-"

// files returns the files for a path: the file itself or, for a directory, all manifests in it and in its
// subdirectories, in lexical order. It leaves out names that begin with a period, and kustomization files, which are
// not objects.
func files(path string) ([]string, error) {
	if path == standardInput {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("failed to find it: %w", withoutPath(err))
	}
	if !info.IsDir() {
		return []string{filepath.Clean(path)}, nil
	}
	var found []string
	// os.DirFS reads the directory even if path is a symbolic link; filepath.WalkDir would not.
	err = fs.WalkDir(os.DirFS(path), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("failed to read %q: %w", name, withoutPath(err))
		case name != "." && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case entry.IsDir() || !isManifest(entry.Name()):
			return nil
		case entry.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0: // reading a pipe may never end
			return fmt.Errorf("failed to read %q: it is not a file; to read from it, give its own path instead of the directory", name)
		case len(found) == maxFiles:
			return fmt.Errorf("failed to read the directory: it and its subdirectories must hold at most %d manifests", maxFiles)
		}
		found = append(found, filepath.Join(path, filepath.FromSlash(name)))
		return nil
	})
	if err == nil && len(found) == 0 {
		err = errors.New("failed to find a manifest in the directory or its subdirectories: a manifest is a *.yaml, *.yml or " +
			"*.json file, except kustomization files and names that begin with a period")
	}
	return found, err
}

func isManifest(name string) bool {
	extension := strings.ToLower(filepath.Ext(name))
	base := strings.ToLower(strings.TrimSuffix(name, filepath.Ext(name)))
	return base != "kustomization" && slices.Contains([]string{".yaml", ".yml", ".json"}, extension)
}

// read returns the content of a file or of standard input. It returns an error if the content is longer than
// maxFileBytes.
func read(path string, stdin io.Reader) ([]byte, error) {
	if path == standardInput {
		if stdin == nil {
			return nil, errors.New("failed to read standard input: there is none")
		}
		return readBounded(stdin)
	}
	file, err := os.Open(path) //nolint:gosec // because the caller chooses the files
	if err != nil {
		return nil, fmt.Errorf("failed to open it: %w", withoutPath(err))
	}
	text, err := readBounded(file)
	return text, errors.Join(err, file.Close())
}

func readBounded(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("failed to read it: %w", withoutPath(err))
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("failed to read it: it must be at most %d MiB", maxFileBytes>>20)
	}
	return text, nil
}

// withoutPath removes the path from an error of the file system, because the caller's message names the path already.
func withoutPath(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	return err
}
