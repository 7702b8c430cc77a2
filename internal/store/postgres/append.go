package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

// begin is the statement that adds the first entries of a journal, and advance is the statement that adds later
// entries. Both write the journal's row of capstan_turn, and write entries and artifacts only if they could write this
// row.
//
//  1. Of two concurrent appends, the later one waits until the transaction of the earlier one has ended, and then
//     checks the row that this transaction has written. The isolation level "read committed" guarantees this for ON
//     CONFLICT and for the condition of an UPDATE.
//  2. Each statement is one transaction, so an append takes one round trip and writes all entries or none.
const (
	begin = `WITH head AS (
    INSERT INTO capstan_turn (turn_uid, seq, epoch, namespace, bytes) VALUES ($1, $2, $3, $14, $15)
    ON CONFLICT DO NOTHING
    RETURNING turn_uid
)` + insert

	advance = `WITH head AS (
    UPDATE capstan_turn SET seq = $2, epoch = $3, bytes = bytes + $15, namespace = CASE namespace WHEN '' THEN $14 ELSE namespace END
    WHERE turn_uid = $1 AND seq = $16 AND epoch <= $17
    RETURNING turn_uid
)` + insert

	insert = `, kept AS (
    INSERT INTO capstan_artifact (turn_uid, sha256, bytes, data)
    SELECT head.turn_uid, a.* FROM head, unnest($11::text[], $12::bigint[], $13::bytea[]) AS a
    ON CONFLICT DO NOTHING
)
INSERT INTO capstan_journal (turn_uid, seq, epoch, kind, version, time, payload, artifact)
SELECT head.turn_uid, e.* FROM head,
    unnest($4::bigint[], $5::bigint[], $6::text[], $7::integer[], $8::text[], $9::bytea[], $10::text[]) AS e`
)

// Append adds entries and their artifacts to the end of a journal, all or none, and returns when they are on the
// server's disk. It returns journal.ErrFenced or journal.ErrSequence for entries that do not follow the existing
// ones, and ErrClosed after Close. It takes at most 10 s, and 8 s more for each MiB. If the entries change Budgets, it
// first waits for its turn for up to 10 s. If the entries are refused, it takes up to 10 s more to find the reason.
//
// If the connection is lost or ctx ends during the write, the error says that the outcome is unknown. The caller may
// repeat the append. If the entries had been written, the repeated append returns journal.ErrSequence.
func (s *Store) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	var complete, refused, unknown bool
	var refusal *budget.Refusal
	add := func(ctx context.Context) (err error) {
		first := entries[0]
		if refused = journal.CheckAppend(first.Seq-1, first.Epoch, entries) != nil; refused {
			return nil
		}
		write := func() error {
			query, args, err := s.complete(ctx, uid, entries)
			if complete = err == nil; !complete {
				return err
			}
			if changesLedger(entries) {
				refused, err = s.writeWithLedger(ctx, uid, entries, query, args)
			} else {
				refused, err = s.write(ctx, query, args)
			}
			return err
		}
		err = write()
		if s.mayRepeat(ctx, err) {
			err = write()
		}
		refusal, _ = errors.AsType[*budget.Refusal](err)
		unknown = complete && err != nil && refusal == nil && !pgconn.SafeToRetry(err) && !isRejected(err) &&
			!errors.Is(err, errNoConnection)
		return err
	}
	var err error
	limit := appendLimit(store.BytesOf(entries))
	if changesLedger(entries) {
		err = s.callWithLedger(ctx, store.NamespaceOf(entries), limit, add)
	} else {
		err = s.call(ctx, limit, add)
	}
	if !refused {
		s.recordMissing(store.BytesOf(entries), err)
	}
	switch {
	case refusal != nil:
		return refusal
	case refused:
		return s.refusal(ctx, uid, entries)
	case unknown || errors.Is(err, errUnconfirmed):
		return fmt.Errorf("it is not known whether the entries were written; append them again to find out: %w", err)
	}
	return err
}

// appendLimit returns the time limit of an append of a number of bytes. Each full second of slowestRate adds a second.
func appendLimit(bytes int64) time.Duration {
	return appendTimeout + time.Duration(bytes/slowestRate)*time.Second
}

// errNoConnection means that the pool could not provide a connection.
var errNoConnection = errors.New("failed to get a connection")

// write executes the statement of an append. refused is true if the entries do not follow the existing entries.
func (s *Store) write(ctx context.Context, query string, args []any) (refused bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	defer conn.Release()
	tag, err := conn.Exec(ctx, query, args...)
	s.unmarked.Store(true) // also after an error: the server may have executed the statement
	return err == nil && tag.RowsAffected() == 0, err
}

// complete returns the statement that appends entries, with everything that is stored together with them.
func (s *Store) complete(ctx context.Context, uid string, entries []journal.Entry) (query string, args []any, err error) {
	query, args = statement(uid, entries)
	if query, args, err = withRecord(query, args, entries); err != nil {
		return "", nil, err
	}
	query, args = withTasks(query, args, entries)
	return s.withTurnNumber(ctx, query, args, entries)
}

// statement returns the statement that appends entries.
func statement(uid string, entries []journal.Entry) (query string, args []any) {
	var rows columns
	for _, e := range entries {
		rows.add(e)
	}
	first, last := entries[0], entries[len(entries)-1]
	args = []any{
		uid, last.Seq, last.Epoch, rows.seqs, rows.epochs, rows.kinds, rows.versions, rows.times, rows.payloads, rows.artifacts,
		notNull(rows.sums), notNull(rows.bytes), notNull(rows.data), store.NamespaceOf(entries), store.BytesOf(entries),
	}
	if first.Seq == 1 {
		return begin, args
	}
	return advance, append(args, first.Seq-1, first.Epoch)
}

// columns holds the columns of the rows that an append adds.
type columns struct {
	seqs, epochs                  []int64
	kinds, times, artifacts, sums []string
	versions                      []int32
	bytes                         []int64
	payloads, data                [][]byte
}

func (c *columns) add(e journal.Entry) {
	c.seqs, c.epochs = append(c.seqs, e.Seq), append(c.epochs, e.Epoch)
	c.kinds, c.times = append(c.kinds, string(e.Kind)), append(c.times, e.Time.UTC().Format(time.RFC3339Nano))
	c.versions = append(c.versions, int32(e.Version)) //nolint:gosec // because versions are small
	c.payloads, c.artifacts = append(c.payloads, notNull(e.Payload)), append(c.artifacts, e.Artifact)
	for _, a := range e.Artifacts {
		c.sums, c.bytes, c.data = append(c.sums, a.SHA256), append(c.bytes, a.Bytes), append(c.data, notNull(a.Data))
	}
}

// notNull replaces nil by an empty slice, because nil would become NULL.
func notNull[S ~[]E, E any](s S) []E {
	if s == nil {
		return []E{}
	}
	return s
}

// confirm returns the end of a journal and writes it unchanged. If the server waits for standbys, they must confirm
// this commit, and thereby all earlier commits. This matters after an append that timed out while it waited for the
// standbys: its entries are only on the server's own disk, and a reader must not rely on them before the standbys have
// them.
const confirm = `UPDATE capstan_turn SET seq = seq WHERE turn_uid = $1 RETURNING seq, epoch`

// refusal returns the reason why entries were refused. The sequence number and the epoch of a journal never decrease,
// so the reason still applies after the refusal.
func (s *Store) refusal(ctx context.Context, uid string, entries []journal.Entry) error {
	var seq, epoch int64
	err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, confirm, uid).Scan(&seq, &epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := journal.CheckAppend(seq, epoch, entries); err != nil {
		return err
	}
	return journal.ErrSequence // the journal was purged in the meantime
}
