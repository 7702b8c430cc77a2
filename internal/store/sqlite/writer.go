package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// appendCall is an append that waits for the writer.
type appendCall struct {
	turnUID string
	entries []journal.Entry
	refused error      // why it cannot be written; set by the writer
	done    chan error // buffered, so that the writer never waits
}

// Append hands entries to the writer and waits until they are on disk. It returns journal.ErrFenced or
// journal.ErrSequence for entries that do not follow what is there, and ErrClosed after Close. A ctx that ends stops the
// waiting only while the writer has not taken the entries yet.
func (s *Store) Append(ctx context.Context, turnUID string, entries ...journal.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	call := &appendCall{turnUID: turnUID, entries: entries, done: make(chan error, 1)}
	select {
	case s.appends <- call:
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-call.done
}

// write owns all appends until the store closes.
func (s *Store) write() {
	defer close(s.closed)
	for {
		select {
		case first := <-s.appends:
			s.commit(s.collect(first))
		case <-s.closing:
			return
		}
	}
}

// collect takes what else waits by now.
func (s *Store) collect(first *appendCall) []*appendCall {
	batch := []*appendCall{first}
	for len(batch) < maxBatch {
		select {
		case call := <-s.appends:
			batch = append(batch, call)
		default:
			return batch
		}
	}
	return batch
}

// commit writes a batch in one transaction. A call that is refused is left out; a failure of the database is that of all.
func (s *Store) commit(batch []*appendCall) {
	err := s.transaction(func(tx *sql.Tx) error {
		for _, call := range batch {
			if err := add(tx, call); err != nil {
				return err
			}
		}
		return nil
	})
	for _, call := range batch {
		if call.refused != nil {
			call.done <- call.refused
		} else {
			call.done <- err
		}
	}
}

// transaction is not bound to any caller's context: a batch has many callers, and what they report has happened.
func (s *Store) transaction(do func(*sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*busyTimeout)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func add(tx *sql.Tx, call *appendCall) error {
	var seq, epoch int64
	row := tx.QueryRow(`SELECT seq, epoch FROM journal WHERE turn_uid = ? ORDER BY seq DESC LIMIT 1`, call.turnUID) //nolint:noctx // because the transaction carries the context
	if err := row.Scan(&seq, &epoch); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	call.refused = journal.Follows(seq, epoch, call.entries)
	if call.refused != nil {
		return nil //nolint:nilerr // because a refused call is no failure of the batch
	}
	for _, e := range call.entries {
		_, err := tx.Exec(`INSERT INTO journal (turn_uid, seq, epoch, kind, time, payload) VALUES (?, ?, ?, ?, ?, ?)`, //nolint:noctx // because the transaction carries the context
			call.turnUID, e.Seq, e.Epoch, string(e.Kind), e.Time.UTC().Format(time.RFC3339Nano), string(e.Payload))
		if err != nil {
			return err
		}
	}
	return nil
}
