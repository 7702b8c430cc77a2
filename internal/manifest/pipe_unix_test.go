//go:build unix

package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/capstan-dev/capstan/internal/manifest"
)

// TestPipeInADirectory checks that a named pipe in a directory is refused. To read it would take for ever.
func TestPipeInADirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "turn.yaml"), []byte(turn), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "x.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := manifest.Load(t.Context(), []string{dir}, manifest.Options{})
	if want := dir + `: failed to read "x.yaml": it is not a file`; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Load: %v, want an error that begins with %q", err, want)
	}
}
