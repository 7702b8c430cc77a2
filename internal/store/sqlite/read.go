package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

// Read returns the entries of a UID after a sequence number, in order. Each page is a separate snapshot.
func (s *Store) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return store.Pages(after, func(after int64) ([]journal.Entry, bool, error) {
		entries, more, err := s.page(ctx, uid, after, store.PageEntries)
		return entries, more, s.failed(err)
	})
}

// First returns the first entry of a UID, or an entry without a sequence number for an unknown UID. Read would read a
// whole page.
func (s *Store) First(ctx context.Context, uid string) (journal.Entry, error) {
	entries, _, err := s.page(ctx, uid, 0, 1)
	if err != nil || len(entries) == 0 {
		return journal.Entry{}, s.failed(err)
	}
	return entries[0], nil
}

// page returns at most limit entries after a sequence number, and whether there may be more.
func (s *Store) page(ctx context.Context, uid string, after int64, limit int) (entries []journal.Entry, more bool, err error) {
	rows, err := s.queryPage(ctx, uid, after, limit)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	bytes := 0
	for rows.Next() {
		var e journal.Entry
		var at string
		var payload []byte
		if err := rows.Scan(&e.Seq, &e.Epoch, &e.Kind, &e.Version, &at, &payload, &e.Artifact); err != nil {
			return nil, false, err
		}
		if e.Time, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return nil, false, fmt.Errorf("failed to read the time of entry %d: %w", e.Seq, err)
		}
		if len(payload) > 0 {
			e.Payload = payload
		}
		entries = append(entries, e)
		if bytes += len(payload); bytes >= store.PageBytes {
			return entries, true, nil
		}
	}
	return entries, len(entries) == limit, rows.Err()
}

// selectPage reads a page of a journal.
const selectPage = `SELECT seq, epoch, kind, version, time, payload, artifact FROM journal
	WHERE uid = ? AND seq > ? ORDER BY seq LIMIT ?`

// queryPage executes selectPage, which a store that was opened for reading has not prepared.
func (s *Store) queryPage(ctx context.Context, args ...any) (*sql.Rows, error) {
	if s.pages != nil {
		return s.pages.QueryContext(ctx, args...)
	}
	return s.db.QueryContext(ctx, selectPage, args...)
}

// Last returns the sequence number of the last entry of a UID, or 0 for an unknown UID.
func (s *Store) Last(ctx context.Context, uid string) (int64, error) {
	var seq int64
	err := s.db.QueryRowContext(ctx, `SELECT seq FROM head WHERE uid = ?`, uid).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return seq, s.failed(err)
}

// PayloadBytes returns the size of the payloads of the entries from first to last.
func (s *Store) PayloadBytes(ctx context.Context, uid string, first, last int64) (bytes int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT coalesce(sum(coalesce(octet_length(payload), 0) + coalesce(a.bytes, 0)), 0)
		FROM journal AS j LEFT JOIN artifact AS a ON a.uid = j.uid AND a.sha256 = j.artifact
		WHERE j.uid = ? AND j.seq BETWEEN ? AND ?`, uid, first, last).Scan(&bytes)
	return bytes, s.failed(err)
}

// Artifact returns an artifact of a UID, or journal.ErrNoArtifact.
func (s *Store) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	a := journal.Artifact{SHA256: sha256}
	err := s.db.QueryRowContext(ctx, `SELECT bytes, data FROM artifact WHERE uid = ? AND sha256 = ?`, uid, sha256).Scan(&a.Bytes, &a.Data)
	if errors.Is(err, sql.ErrNoRows) {
		return journal.Artifact{}, journal.ErrNoArtifact
	}
	if err != nil {
		return journal.Artifact{}, s.failed(err)
	}
	return a, nil
}

// UIDs returns the UIDs after a given one that have entries and are not retired, in byte order.
func (s *Store) UIDs(ctx context.Context, after string, limit int) ([]string, error) {
	uids, err := s.queryStrings(ctx, `SELECT uid FROM head WHERE retired_at IS NULL AND uid > ? ORDER BY uid LIMIT ?`, after, max(limit, 0))
	return uids, s.failed(err)
}

// RetiredUIDs returns a page of the UIDs of retired journals.
func (s *Store) RetiredUIDs(ctx context.Context, after string, limit int) ([]string, error) {
	uids, err := s.queryStrings(ctx, `SELECT uid FROM head WHERE retired_at IS NOT NULL AND uid > ? ORDER BY uid LIMIT ?`,
		after, max(limit, 0))
	return uids, s.failed(err)
}

// Size returns the size of the store. The numbers are counted on each write. Bytes is the size of the file and
// of its write-ahead log.
func (s *Store) Size(ctx context.Context) (store.Size, error) {
	var z store.Size
	err := s.db.QueryRowContext(ctx, `SELECT journals, retired, entries, artifacts, page_count * page_size
		FROM total, pragma_page_count(), pragma_page_size()`).Scan(&z.Journals, &z.Retired, &z.Entries, &z.Artifacts, &z.Bytes)
	z.Bytes += s.logBytes()
	return z, s.failed(err)
}

// queryStrings returns the values of a text column.
func (s *Store) queryStrings(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	var all []string
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
