package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Both statements move the Turn's row of capstan_turn and write the entries only if that row has moved. Of two that meet,
// the later waits for the earlier one's transaction and then judges the row as that left it, which is what PostgreSQL's
// read committed isolation does for ON CONFLICT and for the condition of an UPDATE. A statement is a transaction of its
// own, so an append is one round trip and all or none.
const (
	begin = `WITH head AS (
    INSERT INTO capstan_turn (turn_uid, seq, epoch) VALUES ($1, $2, $3)
    ON CONFLICT DO NOTHING
    RETURNING turn_uid
)` + insert

	advance = `WITH head AS (
    UPDATE capstan_turn SET seq = $2, epoch = $3
    WHERE turn_uid = $1 AND seq = $9 AND epoch <= $10
    RETURNING turn_uid
)` + insert

	insert = ` INSERT INTO capstan_journal (turn_uid, seq, epoch, kind, time, payload)
SELECT head.turn_uid, e.* FROM head, unnest($4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::bytea[]) AS e`
)

// Append adds entries at the end, all or none, and returns when they are on the server's disk. It returns
// journal.ErrFenced or journal.ErrSequence for entries that do not follow what is there, and ErrClosed after Close. It takes
// at most 10 s, and if it is refused as long again to learn why. If the connection is lost or ctx ends while the server is at work, the error says that nobody knows whether
// the entries were written: the same append may be tried again, and is refused with journal.ErrSequence if they were.
func (s *Store) Append(ctx context.Context, turnUID string, entries ...journal.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	var refused, unknown bool
	err := s.call(ctx, appendTimeout, func(ctx context.Context) (err error) {
		first := entries[0]
		if refused = journal.Follows(first.Seq-1, first.Epoch, entries) != nil; refused {
			return nil
		}
		query, args := statement(turnUID, entries)
		refused, err = s.write(ctx, query, args)
		if pgconn.SafeToRetry(err) && s.dropLost(ctx, err) { // the connection broke before the server had heard of it
			refused, err = s.write(ctx, query, args)
		}
		unknown = err != nil && !pgconn.SafeToRetry(err) && !rejected(err) && !errors.Is(err, errNoConnection)
		return err
	})
	switch {
	case refused:
		return s.refusal(ctx, turnUID, entries)
	case unknown:
		return fmt.Errorf("it is not known whether the entries were written; append them again to learn it: %w", err)
	}
	return err
}

// errNoConnection says that the pool had none to give.
var errNoConnection = errors.New("failed to get a connection")

// write does the statement of an append.
func (s *Store) write(ctx context.Context, query string, args []any) (refused bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	defer conn.Release()
	tag, err := conn.Exec(ctx, query, args...)
	return err == nil && tag.RowsAffected() == 0, err
}

// statement makes the statement that appends entries.
func statement(turnUID string, entries []journal.Entry) (query string, args []any) {
	n := len(entries)
	seqs, epochs := make([]int64, 0, n), make([]int64, 0, n)
	kinds, times := make([]string, 0, n), make([]string, 0, n)
	payloads := make([][]byte, 0, n)
	for _, e := range entries {
		seqs, epochs = append(seqs, e.Seq), append(epochs, e.Epoch)
		kinds, times = append(kinds, string(e.Kind)), append(times, e.Time.UTC().Format(time.RFC3339Nano))
		payload := []byte(e.Payload)
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		payloads = append(payloads, payload)
	}
	first, last := entries[0], entries[n-1]
	args = []any{turnUID, last.Seq, last.Epoch, seqs, epochs, kinds, times, payloads}
	if first.Seq == 1 {
		return begin, args
	}
	return advance, append(args, first.Seq-1, first.Epoch)
}

// refusal says why entries were not written. The Turn's row only ever grows, so what refused them still does.
func (s *Store) refusal(ctx context.Context, turnUID string, entries []journal.Entry) error {
	var seq, epoch int64
	err := s.again(ctx, appendTimeout, func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, `SELECT seq, epoch FROM capstan_turn WHERE turn_uid = $1`, turnUID).Scan(&seq, &epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := journal.Follows(seq, epoch, entries); err != nil {
		return err
	}
	return journal.ErrSequence // the Turn was forgotten in between
}
