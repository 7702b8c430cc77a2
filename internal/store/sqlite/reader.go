package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/schema"
)

// Reader reads the journals in a file that another process may use at the same time. It changes no entries.
type Reader struct {
	store *Store
	// copied is the directory of the copy that is read, or nil.
	copied *TemporaryDir
	// immutable is true if SQLite reads the file without locks and without other files: see openReadOnly.
	immutable bool
}

// OpenReader opens the journals in a file for reading, and does not change the file. If the file has an older schema,
// OpenReader copies it to a temporary directory, and migrates and reads the copy: programs of the older version, which
// may be using the file, could not open it after a migration. It returns an error if a newer version of Capstan wrote
// the file. The caller must call Close.
func OpenReader(ctx context.Context, path string) (*Reader, error) {
	r, err := openReader(ctx, path)
	if !errors.Is(err, errOlder) {
		return r, err
	}
	dir, err := NewTemporaryDir(ctx, "capstan-read-")
	if err != nil {
		return nil, fmt.Errorf("failed to copy the journal %q, whose schema is older: %w", path, err)
	}
	if r, err = openCopy(ctx, path, filepath.Join(dir.Path, "copy.db")); err != nil {
		err = fmt.Errorf("failed to read a copy of the journal %q, whose schema is older: %w", path, err)
		return nil, errors.Join(err, dir.Remove())
	}
	r.copied = dir
	return r, nil
}

// openCopy copies a file, migrates the copy, and opens it for reading.
func openCopy(ctx context.Context, path, to string) (*Reader, error) {
	db, _, err := openReadOnly(ctx, path)
	if err != nil {
		return nil, err
	}
	// The copy is complete although another process may be writing to the file: the statement is one transaction.
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	if err = errors.Join(explain(err), db.Close()); err != nil {
		return nil, err
	}
	s, err := Open(ctx, to)
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return openReader(ctx, to)
}

// IsCopy reports whether the Reader reads a copy of the file, to which nothing is added any more.
func (r *Reader) IsCopy() bool { return r.copied != nil }

// IsImmutable reports whether the Reader reads the file alone, because no file can be created next to it. It then reads
// no entries that are added later.
func (r *Reader) IsImmutable() bool { return r.immutable }

// errOlder means that the schema of a file is older than this program's schema.
var errOlder = errors.New("its schema is older than this program's")

func openReader(ctx context.Context, path string) (*Reader, error) {
	db, immutable, err := openReadOnly(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("failed to open the journal %q: %w", path, err)
	}
	current, newest, err := versions(ctx, db)
	if err == nil {
		err = schema.Check(current, newest)
	}
	switch {
	case err != nil:
		err = explain(err)
	case current < newest:
		err = errOlder
	default:
		s := &Store{path: path, db: db, lists: db, closing: make(chan struct{})}
		return &Reader{store: s, immutable: immutable}, nil
	}
	return nil, errors.Join(fmt.Errorf("failed to open the journal %q: %w", path, err), db.Close())
}

// openReadOnly opens a file for reading. SQLite creates files next to it, which is impossible in a directory, or on a
// volume, that is read-only or full. If the write-ahead log is empty, the file has all entries, and openReadOnly opens
// it alone: immutable is then true, and entries that another process adds later are not read.
func openReadOnly(ctx context.Context, path string) (db *sql.DB, immutable bool, err error) {
	db, err = openWith(ctx, path, url.Values{"mode": {"ro"}, "_pragma": {waitForLocks}})
	switch code(err) {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR:
	default:
		return db, false, explain(err)
	}
	alone, aloneErr := openWith(ctx, path, url.Values{"mode": {"ro"}, "immutable": {"1"}})
	if aloneErr != nil {
		return nil, false, explain(err) // the file itself cannot be read
	}
	log, logErr := os.Stat(path + "-wal")
	switch {
	case errors.Is(logErr, os.ErrNotExist), logErr == nil && log.Size() == 0:
		return alone, true, nil
	case logErr == nil:
		logErr = fmt.Errorf("it was not closed, or is in use, and its newest entries are in %q, which can be read only where files can be "+
			"created: copy both files to a directory in which files can be created, and read that copy: %w", path+"-wal", err)
	}
	return nil, false, errors.Join(logErr, alone.Close())
}

// openWith opens a file with settings, and reads from it.
func openWith(ctx context.Context, path string, settings url.Values) (*sql.DB, error) {
	db, err := sql.Open("sqlite", location(path, settings))
	if err != nil {
		return nil, err
	}
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&tables); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Read reads entries, as Store.Read does.
func (r *Reader) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return r.store.Read(ctx, uid, after)
}

// First returns the first entry of a journal, as Store.First does.
func (r *Reader) First(ctx context.Context, uid string) (journal.Entry, error) {
	return r.store.First(ctx, uid)
}

// Last returns the sequence number of the last entry of a journal, as Store.Last does.
func (r *Reader) Last(ctx context.Context, uid string) (int64, error) { return r.store.Last(ctx, uid) }

// Append always returns an error. It exists because journal.Journal requires it.
func (r *Reader) Append(context.Context, string, ...journal.Entry) error {
	return fmt.Errorf("failed to write to the journal %q: it was opened for reading only", r.store.path)
}

// Accounts returns the accounts of budgets at a time, as Store.Accounts does.
func (r *Reader) Accounts(ctx context.Context, at time.Time) ([]budget.Account, error) {
	return r.store.Accounts(ctx, at)
}

// PayloadBytes returns the size of the payloads of entries, as Store.PayloadBytes does.
func (r *Reader) PayloadBytes(ctx context.Context, uid string, first, last int64) (int64, error) {
	return r.store.PayloadBytes(ctx, uid, first, last)
}

// Artifact returns an artifact, as Store.Artifact does.
func (r *Reader) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	return r.store.Artifact(ctx, uid, sha256)
}

// UIDs returns the UIDs that have a journal, as Store.UIDs does.
func (r *Reader) UIDs(ctx context.Context, after string, limit int) ([]string, error) {
	return r.store.UIDs(ctx, after, limit)
}

// Close closes the file, and deletes it if it is a copy.
func (r *Reader) Close() error {
	err := r.store.db.Close()
	if r.IsCopy() {
		err = errors.Join(err, r.copied.Remove())
	}
	return err
}
