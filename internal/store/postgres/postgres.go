// Package postgres keeps the journals in PostgreSQL, for several processes that share their Turns. The database, not the
// process, decides which of two appends to a journal comes first and whether an epoch is too old.
package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/capstan-dev/capstan/internal/store"
)

// ErrClosed is returned by calls on a store that was closed.
var ErrClosed = store.ErrClosed

const (
	// connectTimeout bounds one attempt to connect, unless the URL has a connect_timeout. Without TLS being asked for or
	// forbidden there are two attempts.
	connectTimeout = 4 * time.Second
	// appendTimeout bounds an append, with the wait for a connection.
	appendTimeout = 10 * time.Second
	// readTimeout bounds the read of a page and a step of a deletion, with the wait for a connection. Nothing of ours runs longer on the server.
	readTimeout = time.Minute
	// lockTimeout is how long a statement waits for another writer of the same journal.
	lockTimeout = 5 * time.Second
	// openTimeout bounds Open: others may be at the schema.
	openTimeout = 2 * time.Minute
)

// Store is a store of journals in a PostgreSQL database. It implements store.Store.
type Store struct {
	pool   *pgxpool.Pool
	closed atomic.Bool
	// unmarked is true while there may be appends since the last mark of this process, or of one before it.
	unmarked atomic.Bool
}

// Open opens the journals in the database that a URL names: postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full.
// The URL takes what libpq knows, and pool_max_conns; a password may as well come from PGPASSWORD or PGPASSFILE. Tables
// are made in the first schema of the search_path; their names begin with capstan_. It returns when they are of the newest
// schema, also if several processes open a new database at once, and fails if that is not possible within two minutes. It
// returns journal.ErrNewer for a schema that is newer than this program's.
// Neither the URL nor the password is in any error. Close must be called.
func Open(ctx context.Context, databaseURL string) (*Store, error) {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return open(ctx, databaseURL, dir)
}

// open opens the journals in a database with the schema that a folder of migrations makes.
func open(ctx context.Context, databaseURL string, dir fs.FS) (*Store, error) {
	config, err := configure(databaseURL)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal: %w", explain(err))
	}
	if err := migrate(ctx, pool, dir); err != nil {
		pool.Close()
		return nil, fmt.Errorf("failed to bring the journal to the newest schema: %w", explain(err))
	}
	s := &Store{pool: pool}
	s.unmarked.Store(true)
	return s, nil
}

// Close waits for the calls under way and closes the connections. Later calls get ErrClosed. It may be called more than
// once and never fails.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.pool.Close()
	return nil
}

// Check fails if the server does not answer, takes no writes or does not let this user change the journal. It changes
// nothing, and takes at most 10 s.
func (s *Store) Check(ctx context.Context) error {
	return s.again(ctx, appendTimeout, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `DELETE FROM capstan_turn WHERE false`)
		return err
	})
}

// again is call for what does no harm when it is done twice: a lost connection is tried once more on a new one.
func (s *Store) again(ctx context.Context, timeout time.Duration, do func(context.Context) error) error {
	return s.call(ctx, timeout, func(ctx context.Context) error {
		err := do(ctx)
		if s.dropLost(ctx, err) {
			err = do(ctx)
		}
		return err
	})
}

// call does something that takes no longer than a time-out, and explains its error.
func (s *Store) call(parent context.Context, timeout time.Duration, do func(context.Context) error) error {
	if s.closed.Load() {
		return ErrClosed
	}
	ctx, cancel := context.WithTimeoutCause(parent, timeout, fmt.Errorf("PostgreSQL gave no answer within %s: it is out of reach, "+
		"or busy, or all connections are in use: %w", timeout, context.DeadlineExceeded))
	defer cancel()
	err := do(ctx)
	s.dropLost(ctx, err)
	switch {
	case err == nil:
		return nil
	case s.closed.Load():
		return ErrClosed
	case ctx.Err() != nil:
		if parent.Err() == nil {
			s.pool.Reset() // the server gave no answer: the other connections to it may be as dead, and are not tried one by one
		}
		return context.Cause(ctx)
	}
	return explain(err)
}

// dropLost reports whether an error means that the server has gone, or takes no writes any more. The connections that were idle meanwhile
// are no better, so none of them is used again: the next call dials anew, and of several hosts reaches the one that takes writes.
func (s *Store) dropLost(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !lost(err) {
		return false
	}
	s.pool.Reset()
	return true
}
