package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func BenchmarkMemories(b *testing.B) {
	journaltest.BenchmarkMemories(b, func(b *testing.B) journaltest.MemoryStore {
		b.Helper()
		s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "journal.db"))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		return s
	})
}
