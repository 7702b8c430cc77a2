package postgres

import (
	"context"
	"io/fs"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/capstan-dev/capstan/internal/store"
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

// OpenTraced opens a database as OpenWith does, and traces its queries.
func OpenTraced(ctx context.Context, databaseURL string, dir fs.FS, tracer pgx.QueryTracer) (*Store, error) {
	config, err := configure(databaseURL)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Tracer = tracer
	return openConfig(ctx, config, dir)
}

// OpenDialing opens a database as Open does, but connects with dial.
func OpenDialing(ctx context.Context, databaseURL string, dial pgconn.DialFunc) (*Store, error) {
	config, err := configure(databaseURL)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DialFunc = dial
	dir, err := Migrations()
	if err != nil {
		return nil, err
	}
	return openConfig(ctx, config, dir)
}

// CloseIdle closes the idle connections that were established before a time.
func (s *Store) CloseIdle(before time.Time) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	s.closeIdle(ended, before)
}

// Ping gets a connection within a time limit, and executes a statement. If it gets none, the server counts as one that
// does not respond.
func (s *Store) Ping(ctx context.Context, timeout time.Duration) error {
	return s.call(ctx, timeout, func(ctx context.Context) error {
		*ctx.Value(serverWaitKey{}).(*serverWait) = serverWait{}
		return s.pool.Ping(ctx)
	})
}

// MaxConns returns the maximum number of connections.
func (s *Store) MaxConns() int { return int(s.pool.Config().MaxConns) }

// Busy makes a call of a list that waits for a connection for only a millisecond.
func (s *Store) Busy(ctx context.Context) error {
	return s.call(store.OfLists(ctx), time.Millisecond, func(context.Context) error { return nil })
}

// Versions is the table of the applied migrations.
const Versions = versions

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
