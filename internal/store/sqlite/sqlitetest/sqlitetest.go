// Package sqlitetest opens stores in SQLite files for the tests of other packages.
package sqlitetest

import (
	"path/filepath"
	"testing"

	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// Open opens a new store in a directory of the test. The store is closed at the end of the test, which fails if it
// cannot be opened or closed.
func Open(t testing.TB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
