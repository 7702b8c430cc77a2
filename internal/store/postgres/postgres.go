// Package postgres keeps journals in PostgreSQL, for several processes that share their Turns. The database, not the
// process, decides which of two appends to a journal comes first, and whether the epoch of an append is too old.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/store"
)

// ErrClosed is returned by calls on a closed store.
var ErrClosed = store.ErrClosed

const (
	// connectTimeout limits an attempt to connect to one address, unless the URL has a connect_timeout. If the URL
	// neither requires nor forbids TLS, there are two attempts, with and without TLS. If the host has one address, they
	// share this time.
	connectTimeout = 4 * time.Second
	// appendTimeout limits a short append, including the wait for a connection. A large append has more time: see
	// appendLimit.
	appendTimeout = 10 * time.Second
	// slowestRate is the rate of the slowest network to the server over which large appends succeed, in bytes per
	// second: 1 Mbit/s.
	slowestRate = 128 << 10
	// readTimeout limits one query, or one step of a deletion, including the wait for a connection. The server stops a
	// statement that runs longer.
	readTimeout = time.Minute
	// lockTimeout is how long a statement waits for the lock of another transaction, such as an append to the same
	// journal.
	lockTimeout = 5 * time.Second
	// idleTimeout is how long the server waits for the next statement of a transaction before it rolls the transaction
	// back. Without this limit, a process that is paused, or cut off from the server, could keep the row of a Budget
	// locked, and the Turns of all executors would wait. idleTimeout is less than lockTimeout, so that the appends of
	// these Turns wait longer than the lock can last.
	idleTimeout = 4 * time.Second
	// openTimeout limits how long Open connects, and how long it waits for another process that migrates the schema.
	openTimeout = 2 * time.Minute
	// listsPart is the part of the connections that lists for users may use at the same time: a quarter.
	listsPart = 4
	// ledgersPart is the part of the connections that appends that change Budgets may use at the same time: a half.
	// Such an append keeps its connection while it waits for the row with the amounts of its Budget, which another
	// append has locked. If namespaces compete, ledgersOfNamespace of these connections are guaranteed to each of them.
	// More would not help a namespace with one Budget, because only one append at a time can change the row.
	ledgersPart, ledgersOfNamespace = 2, 2
)

// Store keeps journals in a PostgreSQL database. It implements store.Store.
type Store struct {
	pool *pgxpool.Pool
	// ordinary limits most calls, so that one connection stays free for the calls of the method checked. lists limits
	// the calls that serve lists for users.
	ordinary, lists *semaphore.Weighted
	// ledgers limits the appends that change Budgets.
	ledgers *fairgate.Gate
	// namespaces are the namespaces of this installation: see Open.
	namespaces []string
	closed     atomic.Bool
	// purged is the last journal that the last call of Purge deleted, or nil if the next call begins with the oldest.
	purged atomic.Pointer[head]
	// trimmed is the namespace with which TrimRecords continues, or nil if it begins with the one with the most
	// records.
	trimmed atomic.Pointer[string]
	// missing is the number of bytes of an append that the server had no space for: see recordMissing.
	missing atomic.Int64
	// unmarked is true if this process, or an earlier one, may have appended entries since the last call of Mark.
	unmarked atomic.Bool
	// unconfirmed is the number of commits about which the server has said that they may be missing on all standbys.
	unconfirmed atomic.Int64
}

// Open opens the journals in a database, such as postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full.
// The URL may have the parameters of libpq, and pool_max_conns. The password may also come from PGPASSWORD or
// PGPASSFILE.
//
// Open creates tables in the first schema of the search_path; their names start with capstan_. It returns when the
// tables have the newest version. Several processes may open a new database at the same time. Open fails if it cannot
// connect within two minutes, or if another process migrates the tables for longer. Its own migration may take any
// time: if Open stopped it, the next process would begin anew. It returns journal.ErrNewer if the version of the tables
// is newer than this program. No error contains the URL or the password. The caller must call Close.
//
// If namespaces are given, other installations may use the same tables for other namespaces. The store then purges and
// trims only the data of its own namespaces, claims only their tasks, and reports only their use. A journal of an older
// version names no namespace; each installation purges it, and counts it.
func Open(ctx context.Context, databaseURL string, namespaces ...string) (*Store, error) {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return open(ctx, databaseURL, dir, namespaces...)
}

// open does the same as Open, with the migrations in dir.
func open(ctx context.Context, databaseURL string, dir fs.FS, namespaces ...string) (*Store, error) {
	config, err := configure(databaseURL)
	if err != nil {
		return nil, err
	}
	return openConfig(ctx, config, dir, namespaces...)
}

// openConfig does the same as open, with a configuration of the pool.
func openConfig(ctx context.Context, config *pgxpool.Config, dir fs.FS, namespaces ...string) (*Store, error) {
	s := &Store{namespaces: append([]string{}, namespaces...)} // nil would be NULL in a query
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == standbyWait {
			s.unconfirmed.Add(1)
		}
	}
	new(timelines).follow(config)
	prepare := config.PrepareConn
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		beginServerWait(ctx)
		return prepare(ctx, conn)
	}
	connecting, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(connecting, config)
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal: %w", explain(err))
	}
	if err := pool.Ping(connecting); err != nil {
		pool.Close()
		return nil, fmt.Errorf("failed to open the journal: %w", explain(err))
	}
	if err := migrate(ctx, pool, dir); err != nil {
		pool.Close()
		return nil, fmt.Errorf("failed to migrate the schema of the journal: %w", explain(err))
	}
	s.pool = pool
	s.ordinary = semaphore.NewWeighted(int64(max(config.MaxConns-1, 1)))
	s.lists = semaphore.NewWeighted(int64(max(config.MaxConns/listsPart, 1)))
	s.ledgers = fairgate.New(int(max(config.MaxConns/ledgersPart, 1)), ledgersOfNamespace)
	s.unmarked.Store(true)
	return s, nil
}

// Close waits for calls in progress and closes the connections. Later calls return ErrClosed. Close may be called
// more than once and never fails.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.pool.Close()
	return nil
}

// maxProbe limits the number of bytes that Check writes. Until the server's next vacuum, they use space on its disk.
const maxProbe = 1 << 20

// Check returns an error if the server does not reply, takes no writes or does not let this user change the journal. It
// changes nothing and takes at most 10 s.
//
// After an append that failed because the server had no space or memory left, Check writes as many bytes as that
// append, but at most 1 MiB, and rolls back.
func (s *Store) Check(ctx context.Context) error {
	return s.checked(ctx, appendTimeout, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `DELETE FROM capstan_turn WHERE false`)
		if missing := s.missing.Load(); err == nil && missing > 0 {
			err = s.probe(ctx, missing)
		}
		return err
	})
}

// probe writes up to maxProbe bytes and rolls back. It sends all statements together, because the transaction must not
// be idle while the bytes are sent: see idleTimeout.
func (s *Store) probe(ctx context.Context, n int64) error {
	content := make([]byte, min(n, maxProbe)) // the server does not compress this column
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue(`INSERT INTO capstan_artifact (turn_uid, sha256, bytes, data) VALUES ('', 'probe', $1, $2)`, len(content), content)
	batch.Queue("rollback")
	// If the server refuses the bytes, it does not execute the rollback. The pool then closes the connection.
	err := s.pool.SendBatch(ctx, batch).Close()
	if err == nil {
		s.missing.CompareAndSwap(n, 0)
	}
	return err
}

// recordMissing stores the number of bytes that the server had no space for, for Check, until an append of that size
// succeeds.
func (s *Store) recordMissing(bytes int64, err error) {
	switch {
	case isFull(err):
		s.missing.Store(max(bytes, 1))
	case err == nil && bytes >= s.missing.Load():
		s.missing.Store(0)
	}
}

// retryOnce runs the function do with a timeout and explains its error. If the connection is lost, retryOnce runs do
// once more, on a new connection. It also does so after a deadlock. do must be idempotent.
func (s *Store) retryOnce(ctx context.Context, timeout time.Duration, do func(context.Context) error) error {
	return s.call(ctx, timeout, s.twice(do))
}

// checked does the same as retryOnce with the connection that is kept free for it. It is for the calls that decide
// whether the process is ready and whether its journals are complete, which must not fail because others are busy.
func (s *Store) checked(ctx context.Context, timeout time.Duration, do func(context.Context) error) error {
	return s.run(ctx, timeout, s.twice(do))
}

// twice returns a function that runs do, and once more if the connection is lost, or after a deadlock.
func (s *Store) twice(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := do(ctx)
		if s.dropLost(ctx, err) || isDeadlock(err) {
			err = do(ctx)
		}
		return err
	}
}

// mayRepeat reports whether a transaction has certainly changed nothing, and may succeed when it is repeated: the
// connection broke before the server received a statement, the server takes no writes, or there was a deadlock.
func (s *Store) mayRepeat(ctx context.Context, err error) bool {
	return isDeadlock(err) || (pgconn.SafeToRetry(err) || isDemoted(err)) && s.dropLost(ctx, err)
}

// errBusy means that a call got no connection because other calls use them.
var errBusy = errors.New("all connections to PostgreSQL that this call may use are in use: try again later, or raise " +
	"pool_max_conns in the URL")

// call runs the function do with a timeout and explains its error. It first waits until a connection may be free. do
// must not use more than one connection, and must not call call.
func (s *Store) call(parent context.Context, timeout time.Duration, do func(context.Context) error) error {
	return s.run(parent, timeout, func(ctx context.Context) error {
		limits := []*semaphore.Weighted{s.ordinary}
		if store.IsOfLists(ctx) {
			limits = []*semaphore.Weighted{s.lists, s.ordinary}
		}
		for _, limit := range limits {
			if limit.Acquire(ctx, 1) != nil {
				return errBusy
			}
			defer limit.Release(1)
		}
		beginServerWait(ctx)
		return do(ctx)
	})
}

// callWithLedger does the same as call for an append that changes Budgets. It first waits, for at most appendTimeout,
// until the namespace may use another of the connections for such appends. The time of this wait does not count against
// timeout. If timeout ended while the append waits for the row of a Budget, the connection of the append would be lost.
func (s *Store) callWithLedger(parent context.Context, namespace string, timeout time.Duration,
	do func(context.Context) error,
) error {
	ctx, cancel := context.WithTimeout(parent, appendTimeout)
	defer cancel()
	if s.ledgers.Enter(ctx, namespace) != nil {
		if parent.Err() != nil {
			return context.Cause(parent)
		}
		return fmt.Errorf("%w: %w", errBusy, context.DeadlineExceeded)
	}
	defer s.ledgers.Leave(namespace)
	return s.call(parent, timeout, do)
}

// serverWait has the time since which a call waits only for the server, and not for other calls.
type serverWait struct{ since time.Time }

type serverWaitKey struct{}

// beginServerWait records that a call waits only for the server from now on, because it may use a connection or has
// one.
func beginServerWait(ctx context.Context) {
	if w, ok := ctx.Value(serverWaitKey{}).(*serverWait); ok {
		w.since = time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	}
}

// run runs the function do with a timeout and explains its error.
func (s *Store) run(parent context.Context, timeout time.Duration, do func(context.Context) error) error {
	if s.closed.Load() {
		return ErrClosed
	}
	begun := time.Now() //nolint:forbidigo // because two times of this process are compared
	server := serverWait{begun}
	ctx := context.WithValue(parent, serverWaitKey{}, &server)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("PostgreSQL did not reply within %s: it is out of reach, "+
		"or busy, or all connections are in use: %w", timeout, context.DeadlineExceeded))
	defer cancel()
	unconfirmed := s.unconfirmed.Load()
	err := do(ctx)
	if err == nil && s.unconfirmed.Load() != unconfirmed {
		err = errUnconfirmed
	}
	s.dropLost(ctx, err)
	switch {
	case err == nil:
		return nil
	case s.closed.Load():
		return ErrClosed
	case ctx.Err() != nil && parent.Err() == nil && errors.Is(err, errBusy):
		return fmt.Errorf("%w: %w", errBusy, context.DeadlineExceeded)
	case ctx.Err() != nil:
		// If the server has not answered for longer than a lock may last, the other connections may be dead, too. Do
		// not try them one by one.
		if parent.Err() == nil && time.Since(server.since) > lockTimeout {
			s.closeIdle(ctx, begun)
		}
		return context.Cause(ctx)
	}
	return explain(err)
}

// dropLost reports whether an error means that the server is gone or no longer takes writes. In this case it closes all
// idle connections, because they lead to the same server. The next call connects again. If the URL has several hosts,
// the next call connects to the host that takes writes.
func (s *Store) dropLost(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !isConnectionLost(err) {
		return false
	}
	s.pool.Reset()
	return true
}

// connectedKey is the key of a connection's custom data under which the time of its connection is stored.
const connectedKey = "capstan-connected"

// closeIdle closes the idle connections that were established before a time. It does not use Pool.Reset, because Reset
// also closes connections that are being established, as soon as they are ready. If connecting takes longer than a call
// may wait, no call would ever get a connection. Connections in use need not be closed: those to a dead server fail.
// The context ended must have ended, because a dead server cannot confirm the end of a connection.
func (s *Store) closeIdle(ended context.Context, before time.Time) {
	for _, conn := range s.pool.AcquireAllIdle(ended) {
		if at, known := conn.Conn().PgConn().CustomData()[connectedKey].(time.Time); !known || at.Before(before) {
			_ = conn.Conn().Close(ended)
		}
		conn.Release() // discards a connection that is closed
	}
}
