// Package sqlite keeps the journal in an SQLite file, with no server to run. One goroutine writes; appends that wait
// at the same time share one transaction and so one flush to disk.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the database driver, in Go, so that the binaries stay static

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrClosed is returned by calls on a store that was closed.
var ErrClosed = errors.New("the journal is closed")

const (
	// busyTimeout is how long a call waits for another process that holds the file.
	busyTimeout = 10 * time.Second
	// maxBatch bounds the appends of one transaction.
	maxBatch = 256
)

// Store is a journal in a file. It implements journal.Journal.
type Store struct {
	path    string
	file    os.FileInfo // what was opened
	db      *sql.DB
	appends chan *appendCall
	closing chan struct{}
	closed  chan struct{}
	once    sync.Once
}

// Open opens the journal in a file, which is made with its folder if it is not there, readable by its owner only.
// It returns when the file has the newest schema. Close must be called.
func Open(ctx context.Context, path string) (*Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the folder of the journal: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // because whoever runs the process names the file
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal: %w", err)
	}
	info, err := file.Stat()
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("failed to open the journal: %w", err)
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal %q: %w", path, err)
	}
	db.SetMaxOpenConns(4)
	if err := migrate(ctx, db); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to bring the journal %q to the newest schema: %w", path, err), db.Close())
	}
	s := &Store{
		path: path, file: info, db: db,
		appends: make(chan *appendCall), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	go s.write() //nolint:contextcheck // because the writer lives as long as the store, not as long as the call that opens it
	return s, nil
}

func dsn(path string) string {
	pragmas := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)",
		"synchronous(FULL)", // an append must survive the loss of power, not only of the process
	}, "_txlock": {"immediate"}}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: pragmas.Encode()}).String()
}

// migrateFor bounds the attempts to bring a journal to the newest schema: another process may be at it.
const migrateFor = 10 * time.Second

func migrate(ctx context.Context, db *sql.DB) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, migrateOnce(ctx, db) },
		backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxTries(20), backoff.WithMaxElapsedTime(migrateFor))
	return err
}

func migrateOnce(ctx context.Context, db *sql.DB) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, dir)
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// Close ends the writer and closes the file. Appends that wait get ErrClosed. It may be called more than once.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closing)
		<-s.closed
		err = s.db.Close()
	})
	return err
}

// Load returns the entries of a Turn in order.
func (s *Store) Load(ctx context.Context, turnUID string) ([]journal.Entry, error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT seq, epoch, kind, time, payload FROM journal WHERE turn_uid = ? ORDER BY seq`, turnUID)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports what matters
	var entries []journal.Entry
	for rows.Next() {
		var e journal.Entry
		var at, payload string
		if err := rows.Scan(&e.Seq, &e.Epoch, &e.Kind, &at, &payload); err != nil {
			return nil, err
		}
		if e.Time, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return nil, fmt.Errorf("failed to read the time of entry %d: %w", e.Seq, err)
		}
		e.Payload = []byte(payload)
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

// Delete forgets a Turn. It is no error if there is nothing to forget.
func (s *Store) Delete(ctx context.Context, turnUID string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM journal WHERE turn_uid = ?`, turnUID)
	return err
}

// TurnUIDs returns the UIDs of all Turns that have entries.
func (s *Store) TurnUIDs(ctx context.Context) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT DISTINCT turn_uid FROM journal`)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports what matters
	var uids []string
	for rows.Next() {
		var uid string
		if err := rows.Scan(&uid); err != nil {
			return nil, err
		}
		uids = append(uids, uid)
	}
	return uids, rows.Err()
}
