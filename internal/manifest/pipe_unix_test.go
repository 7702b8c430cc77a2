//go:build unix

package manifest_test

import (
	"os"
	"path/filepath"
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
	want := dir + `: failed to read "x.yaml": it is not a file; to read from it, give its own path instead of the directory`
	if err == nil || err.Error() != want {
		t.Errorf("Load: %v, want %q", err, want)
	}
}
