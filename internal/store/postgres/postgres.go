// Package postgres keeps the journal in PostgreSQL, for several processes that share their Turns. The database, not the
// process, decides which of two appends to a Turn comes first and whether an epoch is too old.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// ErrClosed is returned by calls on a store that was closed.
var ErrClosed = errors.New("the journal is closed")

const (
	// connectTimeout bounds one attempt to connect, unless the URL has a connect_timeout. Without TLS being asked for or
	// forbidden there are two attempts.
	connectTimeout = 4 * time.Second
	// appendTimeout bounds an append and a deletion, with the wait for a connection.
	appendTimeout = 10 * time.Second
	// readTimeout bounds a read, with the wait for a connection. Nothing of ours runs longer on the server.
	readTimeout = time.Minute
	// lockTimeout is how long a statement waits for another writer of the same Turn.
	lockTimeout = 5 * time.Second
	// openTimeout bounds Open: others may be at the schema.
	openTimeout = 2 * time.Minute
)

// Store is a journal in a PostgreSQL database. It implements journal.Journal.
type Store struct {
	pool   *pgxpool.Pool
	closed atomic.Bool
}

// Open opens the journal in the database that a URL names: postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full.
// The URL takes what libpq knows, and pool_max_conns; a password may as well come from PGPASSWORD or PGPASSFILE. Tables
// are made in the first schema of the search_path; their names begin with capstan_. It returns when they are of the newest
// schema, also if several processes open a new database at once, and fails if that is not possible within two minutes.
// Neither the URL nor the password is in any error. Close must be called.
func Open(ctx context.Context, databaseURL string) (*Store, error) {
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
	if err := migrate(ctx, pool); err != nil {
		pool.Close()
		return nil, fmt.Errorf("failed to bring the journal to the newest schema: %w", explain(err))
	}
	return &Store{pool: pool}, nil
}

// Close waits for the calls under way and closes the connections. Later calls get ErrClosed. It may be called more than
// once and never fails.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.pool.Close()
	return nil
}

// Load returns the entries of a Turn in order. It takes at most a minute.
func (s *Store) Load(ctx context.Context, turnUID string) ([]journal.Entry, error) {
	return read(ctx, s, func(row pgx.CollectableRow) (e journal.Entry, err error) {
		var at string
		var payload []byte
		if err := row.Scan(&e.Seq, &e.Epoch, &e.Kind, &at, &payload); err != nil {
			return e, err
		}
		if e.Time, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return e, fmt.Errorf("failed to read the time of entry %d: %w", e.Seq, err)
		}
		e.Payload = payload
		return e, nil
	}, `SELECT seq, epoch, kind, time, payload FROM capstan_journal WHERE turn_uid = $1 ORDER BY seq`, turnUID)
}

// Delete forgets a Turn. It is no error if there is nothing to forget. It takes at most 10 s.
func (s *Store) Delete(ctx context.Context, turnUID string) error {
	return s.call(ctx, appendTimeout, func(ctx context.Context) error {
		// One transaction. The first statement waits for an append under way and keeps later ones out, so that the second
		// one sees all there is.
		batch := &pgx.Batch{}
		batch.Queue(`DELETE FROM capstan_turn WHERE turn_uid = $1`, turnUID)
		batch.Queue(`DELETE FROM capstan_journal WHERE turn_uid = $1`, turnUID)
		return s.pool.SendBatch(ctx, batch).Close()
	})
}

// TurnUIDs returns the UIDs of all Turns that have entries. It takes at most a minute.
func (s *Store) TurnUIDs(ctx context.Context) ([]string, error) {
	return read(ctx, s, pgx.RowTo[string], `SELECT turn_uid FROM capstan_turn`)
}

// Check fails if the server does not answer, takes no writes or does not let this user change the journal. It changes
// nothing, and takes at most 10 s.
func (s *Store) Check(ctx context.Context) error {
	return s.again(ctx, appendTimeout, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `DELETE FROM capstan_turn WHERE false`)
		return err
	})
}

// read collects the rows of a query.
func read[T any](ctx context.Context, s *Store, row pgx.RowToFunc[T], query string, args ...any) (all []T, err error) {
	err = s.again(ctx, readTimeout, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		all, err = pgx.AppendRows([]T(nil), rows, row)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
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
func (s *Store) call(ctx context.Context, timeout time.Duration, do func(context.Context) error) error {
	if s.closed.Load() {
		return ErrClosed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("PostgreSQL gave no answer within %s: it is out of reach, "+
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
		return context.Cause(ctx)
	}
	return explain(err)
}

// dropLost reports whether an error means that the server has gone. The connections that were idle meanwhile are no better,
// so none of them is used again.
func (s *Store) dropLost(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !lost(err) {
		return false
	}
	s.pool.Reset()
	return true
}
