package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/schema"
)

// Reader reads the journals in a file that another process may use at the same time. It changes no entries.
type Reader struct{ store *Store }

// OpenReader opens the journals in a file for reading. If the file has an older schema, OpenReader migrates it first,
// and returns ErrInUse if another process uses the file. It also returns an error if a newer version of Capstan wrote
// the file. The caller must call Close.
func OpenReader(ctx context.Context, path string) (*Reader, error) {
	r, err := openReader(ctx, path)
	if !errors.Is(err, errOlder) {
		return r, err
	}
	s, err := Open(ctx, path)
	if err == nil {
		err = s.Close()
	}
	// Open may have failed because another process uses the file. That process may have migrated it, so try again.
	if r, again := openReader(ctx, path); again == nil {
		return r, nil
	} else if err == nil {
		err = again
	}
	return nil, err
}

// errOlder means that the schema of a file is older than this program's schema.
var errOlder = errors.New("its schema is older than this program's")

func openReader(ctx context.Context, path string) (*Reader, error) {
	db, err := sql.Open("sqlite", location(path, url.Values{
		"mode": {"ro"}, "_pragma": {waitForLocks},
	}))
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
		return &Reader{&Store{path: path, db: db, lists: db, closing: make(chan struct{})}}, nil
	}
	return nil, errors.Join(fmt.Errorf("failed to open the journal %q: %w", path, err), db.Close())
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

// Close closes the file.
func (r *Reader) Close() error { return r.store.db.Close() }
