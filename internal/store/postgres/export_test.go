package postgres

import (
	"context"
	"io/fs"
	"testing"
)

// OpenAt opens a store that is closed when the test ends.
func OpenAt(tb testing.TB, databaseURL string) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), databaseURL)
	if err != nil {
		tb.Fatalf("Open: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return s
}

// OpenWith opens a database as Open does, but with the migrations in dir.
func OpenWith(ctx context.Context, databaseURL string, dir fs.FS) (*Store, error) {
	return open(ctx, databaseURL, dir)
}

// MaxConns returns the maximum number of connections.
func (s *Store) MaxConns() int { return int(s.pool.Config().MaxConns) }

// Versions is the table of the applied migrations.
const Versions = versions

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
