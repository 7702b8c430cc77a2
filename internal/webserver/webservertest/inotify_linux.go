package webservertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// NoInotify fails the test if this process uses an inotify instance. The processes of a node share a small number of
// them, so a server must also work when it gets none.
func NoInotify(tb testing.TB) {
	tb.Helper()
	const descriptors = "/proc/self/fd"
	all, err := os.ReadDir(descriptors)
	if err != nil {
		tb.Fatal(err)
	}
	for _, d := range all {
		// A descriptor may be closed meanwhile.
		if target, err := os.Readlink(filepath.Join(descriptors, d.Name())); err == nil && strings.Contains(target, "inotify") {
			tb.Errorf("file descriptor %s is %s, want none of inotify", d.Name(), target)
		}
	}
}
