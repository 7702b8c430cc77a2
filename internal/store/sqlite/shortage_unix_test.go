//go:build unix

package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
)

// TestShortageOfFiles checks that an error names the limit of open files while this process has no free file
// descriptor for another connection, and that the store works afterwards.
func TestShortageOfFiles(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Append(t.Context(), "turn", entry(1)); err != nil {
		t.Fatal(err)
	}
	restore := shortagetest.NoFiles(t)
	err := s.Check(t.Context())
	restore()
	wantErrorText(t, "Check", err, "the file cannot be opened", "ulimit -n")
	checkWorks(t, s, "turn", 1)
}
