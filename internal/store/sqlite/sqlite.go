// Package sqlite keeps journals in an SQLite file, without a server. A single goroutine writes. Appends that wait at
// the same time share one transaction, and therefore one flush to disk.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite" // the database driver, in Go, so that the binaries stay static

	"github.com/capstan-dev/capstan/internal/store"
)

// ErrClosed is returned by calls on a closed store.
var ErrClosed = store.ErrClosed

// busyTimeout is how long a call waits for another process that has locked the file.
const busyTimeout = 10 * time.Second

// Store keeps journals in a file. It implements store.Store.
type Store struct {
	path    string
	lock    *os.File // the lock file, locked until the store is closed
	file    *os.File // the opened journal, to detect that the file was replaced; SQLite opens it separately
	header  [headerBytes]byte
	db      *sql.DB // for reads of runs and of controllers
	lists   *sql.DB // for lists of records and memories: people may request many long ones, which must not delay runs
	checks  *sql.DB // for Check and State: a store whose connections are all in use works
	writes  *sql.DB // the writer's only connection, so that reads of one namespace cannot delay the writes of all
	appends *queue
	changes chan *change
	closing chan struct{}
	closed  chan struct{}
	once    sync.Once

	deletions chan struct{} // holds a token while a call deletes records: see reserveDeletions
	trimmed   string        // the namespace with which TrimRecords continues, or empty; the token protects it

	// frequent and pages are the prepared statements of the variable frequent and of selectPage. The pools close them.
	// pages is nil if the store was opened for reading only.
	frequent [len(frequent)]*sql.Stmt
	pages    *sql.Stmt

	snapshots *snapshots // the queries of db and lists
	maxLog    int64      // the constant maxLog; only tests change it
	nextLog   int64      // used by the writer only: see boundLog

	// unmarked is true if this process, or an earlier one, may have appended entries since the last call of Mark.
	unmarked atomic.Bool

	damage  atomic.Pointer[error] // the first sign that the file is damaged
	missing atomic.Int64          // the number of bytes that could not be written because the disk was full or failed
}

// These are the numbers of connections for reads, for lists, and for Check and State.
const readers, listers, checkers = 3, 2, 2

// Open opens the journals in a file. It creates the file and its directory if necessary; only the owner may read them.
// It returns when the file has the newest schema. It fails if a newer version of Capstan wrote the file, or if a check
// of at most 2 s finds damage.
//
// Open locks the lock file FILE.lock until Close is called or the process exits, so that only this store uses the
// file. It returns ErrInUse if another process, or another store of this process, does not release the lock within 5 s.
// The lock file is never removed. The caller must call Close.
func Open(ctx context.Context, path string) (_ *Store, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("failed to create the directory of the journal: %w", err)
	}
	s := &Store{
		path:    path,
		appends: newQueue(), changes: make(chan *change), closing: make(chan struct{}), closed: make(chan struct{}),
		deletions: make(chan struct{}, 1), snapshots: newSnapshots(), maxLog: maxLog,
	}
	s.unmarked.Store(true)
	if s.lock, err = acquire(ctx, path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	s.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // because the operator names the file
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal; it must be a file that the user of this process may read and write: %w", err)
	}
	for _, pool := range []struct {
		db          **sql.DB
		connections int
		counted     *queries
	}{
		{&s.writes, 1, nil}, {&s.db, readers, &s.snapshots.reads}, {&s.lists, listers, &s.snapshots.lists}, {&s.checks, checkers, nil},
	} {
		if *pool.db, err = s.pool(pool.connections, pool.counted); err != nil {
			return nil, fmt.Errorf("failed to open the journal %q: %w", path, err)
		}
	}
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("failed to open the journal %q: %w", path, explain(err))
	}
	go s.write() //nolint:contextcheck // because the writer lives as long as the store, not as long as the call that opens it
	return s, nil
}

// pool returns a pool of connections to the file, and keeps all of them open. counted counts their queries, unless it
// is nil.
func (s *Store) pool(connections int, counted *queries) (*sql.DB, error) {
	c, err := sqlite.NewConnector(dsn(s.path))
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector{c, s, counted})
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// connector opens connections to the file that the store has opened. It returns an error if another file has its path
// now, because entries of one journal would be in two files. A pool opens connections at any time, for example after a
// call was canceled.
type connector struct {
	driver.Connector
	store   *Store
	counted *queries // counts the queries of the connections, unless it is nil
}

// Connect opens a connection.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.store.checkPath(); err != nil { // before SQLite writes to the file
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.store.checkPath(); err != nil { // the file may have been replaced just before SQLite opened it
		return nil, errors.Join(err, conn.Close())
	}
	if c.counted == nil {
		return conn, nil
	}
	return readConn{conn.(driverConn), c.counted}, nil //nolint:forcetypeassert // because SQLite's connections have all methods
}

func dsn(path string) string {
	return location(path, url.Values{"_pragma": {
		waitForLocks,
		"journal_mode(WAL)",
		"synchronous(FULL)", // an append must survive the loss of power, not only of the process
		// On macOS, synchronous alone leaves the newest data in the cache of the drive. Other systems ignore these two.
		"fullfsync(1)", "checkpoint_fullfsync(1)",
		fmt.Sprintf("journal_size_limit(%d)", usualLog),
	}, "_txlock": {"immediate"}, "mode": {"rw"}}) // SQLite must not create a file, see connector
}

// waitForLocks makes calls wait for the locks of other processes.
var waitForLocks = fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds())

// location returns the URL of a file for SQLite, with settings as its query.
func location(path string, settings url.Values) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: settings.Encode()}).String()
}

// release closes all open files.
func (s *Store) release() (err error) {
	for _, db := range []*sql.DB{s.checks, s.lists, s.db, s.writes} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close()) // after the database: closing the file releases the process's locks on it
	}
	return errors.Join(err, s.lock.Close()) // last: from now on, another process may use the file
}

// Close stops the writer and closes the file. Waiting calls return ErrClosed. Close may be called more than once.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closing)
		<-s.closed
		err = s.release()
	})
	return err
}

// isClosed reports whether Close was called.
func (s *Store) isClosed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
