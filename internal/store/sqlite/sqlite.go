// Package sqlite keeps the journals in an SQLite file, with no server to run. One goroutine writes; appends that wait
// at the same time share one transaction and so one flush to disk.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the database driver, in Go, so that the binaries stay static

	"github.com/capstan-dev/capstan/internal/store"
)

// ErrClosed is returned by calls on a store that was closed.
var ErrClosed = store.ErrClosed

// busyTimeout is how long a call waits for another process that holds the file.
const busyTimeout = 10 * time.Second

// Store is a store of journals in a file. It implements store.Store.
type Store struct {
	path    string
	lock    *os.File // held for as long as it is open
	file    *os.File // what was opened, to know it again; SQLite has it open by itself
	header  [headerBytes]byte
	db      *sql.DB
	appends *queue
	changes chan *change
	closing chan struct{}
	closed  chan struct{}
	once    sync.Once

	frequent [len(frequent)]*sql.Stmt // the variable of that name, prepared; the pool closes them

	// unmarked is true while there may be appends since the last mark, of this process or of the one before it.
	unmarked atomic.Bool

	damage  atomic.Pointer[error] // the first sign that the file is damaged
	missing atomic.Int64          // the bytes that could not be written for want of room, or of a sound disk
}

// Open opens the journals in a file, which is made with its folder if it is not there, readable by its owner only.
// It returns when the file has the newest schema, and fails if it is damaged, as far as a look of 2 s can tell, or was
// written by a newer version. The file is this store's alone until Close is called or the process is dead: Open returns ErrInUse
// if another process, or another store of this one, has it for longer than 2 s. A file FILE.lock beside it says so; it stays. Close
// must be called.
func Open(ctx context.Context, path string) (_ *Store, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the folder of the journal: %w", err)
	}
	s := &Store{
		path:    path,
		appends: newQueue(), changes: make(chan *change), closing: make(chan struct{}), closed: make(chan struct{}),
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
	s.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // because whoever runs the process names the file
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal; it must be a file that the user of this process may read and write: %w", err)
	}
	s.db, err = sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal %q: %w", path, err)
	}
	s.db.SetMaxOpenConns(4)
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("failed to open the journal %q: %w", path, explain(err))
	}
	go s.write() //nolint:contextcheck // because the writer lives as long as the store, not as long as the call that opens it
	return s, nil
}

func dsn(path string) string {
	return location(path, url.Values{"_pragma": {
		waitForLocks,
		"journal_mode(WAL)",
		"synchronous(FULL)", // an append must survive the loss of power, not only of the process
	}, "_txlock": {"immediate"}})
}

// waitForLocks makes a call wait for the locks of another process.
var waitForLocks = fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds())

// location is the URL of a file with settings.
func location(path string, settings url.Values) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: settings.Encode()}).String()
}

// release closes what is open.
func (s *Store) release() (err error) {
	if s.db != nil {
		err = s.db.Close()
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close()) // after the database: closing it ends the locks that the process has on it
	}
	return errors.Join(err, s.lock.Close()) // last: then another process may have the file
}

// Close ends the writer and closes the file. Calls that wait get ErrClosed. It may be called more than once.
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
