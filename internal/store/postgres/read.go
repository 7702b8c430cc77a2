package postgres

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

// onPrimary is a prefix that makes a query fail on a server that takes no writes. Without the prefix, a query could
// read from a primary that was demoted: it keeps its connections but gets no new data, so a journal would seem to have
// lost its last entries. The DELETE deletes nothing and costs no round trip.
const onPrimary = `WITH writable AS (DELETE FROM capstan_turn WHERE false) `

// page selects entries until the page has enough entries or bytes. The server knows the length of a payload without
// reading the payload.
const page = `SELECT seq, epoch, kind, version, time, payload, artifact FROM (
    SELECT *, sum(octet_length(payload)) OVER (ORDER BY seq) - octet_length(payload) AS before
    FROM capstan_journal WHERE turn_uid = $1 AND seq > $2 ORDER BY seq LIMIT $3
) AS p WHERE before < $4 ORDER BY seq`

// Read returns the entries of a UID after a sequence number, in order. A page takes at most a minute, and no
// connection is held between pages.
func (s *Store) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return store.Pages(after, func(after int64) ([]journal.Entry, bool, error) {
		entries, err := read(ctx, s, entryOf, page, uid, after, store.PageEntries, store.PageBytes)
		bytes := 0
		for _, e := range entries {
			bytes += len(e.Payload)
		}
		return entries, len(entries) == store.PageEntries || bytes >= store.PageBytes, err
	})
}

func entryOf(row pgx.CollectableRow) (e journal.Entry, err error) {
	var at string
	var payload []byte
	if err := row.Scan(&e.Seq, &e.Epoch, &e.Kind, &e.Version, &at, &payload, &e.Artifact); err != nil {
		return e, err
	}
	if e.Time, err = time.Parse(time.RFC3339Nano, at); err != nil {
		return e, fmt.Errorf("failed to read the time of entry %d: %w", e.Seq, err)
	}
	if len(payload) > 0 {
		e.Payload = payload
	}
	return e, nil
}

// Last returns the sequence number of the last entry of a UID, or 0 for an unknown UID. It takes at most a minute.
func (s *Store) Last(ctx context.Context, uid string) (int64, error) {
	found, err := read(ctx, s, pgx.RowTo[int64], `SELECT seq FROM capstan_turn WHERE turn_uid = $1`, uid)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0], nil
}

// PayloadBytes returns the size of the payloads of the entries from first to last. It takes at most a minute.
func (s *Store) PayloadBytes(ctx context.Context, uid string, first, last int64) (int64, error) {
	found, err := read(ctx, s, pgx.RowTo[int64], `SELECT coalesce(sum(coalesce(octet_length(payload), 0) + coalesce(a.bytes, 0)), 0)::bigint
		FROM capstan_journal AS j LEFT JOIN capstan_artifact AS a ON a.turn_uid = j.turn_uid AND a.sha256 = j.artifact
		WHERE j.turn_uid = $1 AND j.seq BETWEEN $2 AND $3`, uid, first, last)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0], nil
}

// Artifact returns an artifact of a UID, or journal.ErrNoArtifact. It takes at most a minute.
func (s *Store) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	found, err := read(ctx, s, func(row pgx.CollectableRow) (journal.Artifact, error) {
		a := journal.Artifact{SHA256: sha256}
		return a, row.Scan(&a.Bytes, &a.Data)
	}, `SELECT bytes, data FROM capstan_artifact WHERE turn_uid = $1 AND sha256 = $2`, uid, sha256)
	if err != nil {
		return journal.Artifact{}, err
	}
	if len(found) == 0 {
		return journal.Artifact{}, journal.ErrNoArtifact
	}
	return found[0], nil
}

// UIDs returns the UIDs after a given one that have entries and are not retired, in byte order. It takes at most a
// minute.
func (s *Store) UIDs(ctx context.Context, after string, limit int) ([]string, error) {
	return read(ctx, s, pgx.RowTo[string], `SELECT turn_uid FROM capstan_turn
		WHERE retired_at IS NULL AND turn_uid COLLATE "C" > $1 ORDER BY turn_uid COLLATE "C" LIMIT $2`, after, max(limit, 0))
}

// RetiredUIDs returns a page of the UIDs of retired journals of the store's namespaces, in byte order.
func (s *Store) RetiredUIDs(ctx context.Context, after string, limit int) ([]string, error) {
	return read(ctx, s, pgx.RowTo[string], `SELECT turn_uid FROM capstan_turn
		WHERE retired_at IS NOT NULL AND turn_uid COLLATE "C" > $1
			AND (cardinality($3::text[]) = 0 OR namespace = '' OR namespace = ANY($3))
		ORDER BY turn_uid COLLATE "C" LIMIT $2`, after, max(limit, 0), s.namespaces)
}

// size adds up the sizes of all tables of the store, which are the tables with the prefix of its names in its schema.
// It takes the numbers of rows from the server's statistics. It uses the greater of two numbers, because each may be
// too low for some time: the count of live rows starts at 0 after a crash, and the result of the last ANALYZE may be
// old.
const size = onPrimary + `, kept AS (
    SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, greatest(live, c.reltuples)::bigint AS rows
    FROM pg_class AS c, pg_stat_get_live_tuples(c.oid) AS live
    WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'capstan_turn'::regclass) AND c.relkind = 'r'
        AND starts_with(c.relname, 'capstan_')
)
SELECT (SELECT rows FROM kept WHERE name = 'capstan_turn'),
    (SELECT count(*) FROM capstan_turn WHERE retired_at IS NOT NULL),
    (SELECT rows FROM kept WHERE name = 'capstan_journal'),
    (SELECT rows FROM kept WHERE name = 'capstan_artifact'),
    (SELECT sum(bytes)::bigint FROM kept)`

// Size returns the size of the store. Bytes and Retired are exact; Retired is counted with an index of the retired
// journals. The other numbers are the server's own estimates. They lag by some seconds. After a purge they are too
// high, by about a tenth, until the server has analyzed the tables.
func (s *Store) Size(ctx context.Context) (z store.Size, err error) {
	err = s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, size).Scan(&z.Journals, &z.Retired, &z.Entries, &z.Artifacts, &z.Bytes)
	})
	if err != nil {
		return store.Size{}, err
	}
	z.Journals = max(z.Journals, z.Retired)
	return z, nil
}

// read returns the rows of a query, from a server that takes writes.
func read[T any](ctx context.Context, s *Store, row pgx.RowToFunc[T], query string, args ...any) (all []T, err error) {
	err = s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, onPrimary+query, args...)
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
