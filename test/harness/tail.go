package harness

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	// tailLines and tailBytes bound the part of a log that an error shows.
	tailLines = 15
	tailBytes = 8 << 10
)

// Tail returns the last lines of a log, at most 8 KiB, or an empty string if the log cannot be read.
func Tail(path string, lines int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	// The first Seek fails if the log is shorter than tailBytes. Read it from its beginning then.
	_, seekErr := f.Seek(-tailBytes, io.SeekEnd)
	if seekErr != nil {
		_, seekErr = f.Seek(0, io.SeekStart)
	}
	content, readErr := io.ReadAll(io.LimitReader(f, tailBytes))
	if errors.Join(seekErr, readErr, f.Close()) != nil {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// withTail returns the end of a log, formatted as the end of an error message.
func withTail(path string) string {
	tail := Tail(path, tailLines)
	if tail == "" {
		return "; " + filepath.Base(path) + " is empty"
	}
	return "; the end of " + path + ":\n    " + strings.ReplaceAll(tail, "\n", "\n    ")
}
