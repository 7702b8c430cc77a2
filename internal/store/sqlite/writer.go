package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// maxBatch bounds the appends of one transaction.
	maxBatch = 256
	// maxBatchBytes bounds what they write, but for a single append that has more: all that are added meanwhile wait for the transaction.
	maxBatchBytes = 512 << 10
)

// appendCall is an append that waits for the writer.
type appendCall struct {
	uid       string
	namespace string
	entries   []journal.Entry
	bytes     int64
	refused   error      // why it cannot be written; set by the writer
	done      chan error // buffered, so that the writer never waits

	// The queue sets these: when the append begins by the measure of the queue, its number and place there, and whether it has left.
	start  int64
	number uint64
	at     int
	taken  bool
}

// change is another transaction that waits for the writer, so that it comes between appends and not in their way.
type change struct {
	do   func(*tx) error
	done chan error // buffered, so that the writer never waits
}

// frequent are the statements of every append, which are prepared once.
var frequent = [...]string{
	selectHead: `SELECT seq, epoch FROM head WHERE uid = ?`,
	moveHead: `INSERT INTO head (uid, seq, epoch, namespace, bytes) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (uid) DO UPDATE SET seq = excluded.seq, epoch = excluded.epoch, bytes = bytes + excluded.bytes,
			namespace = CASE namespace WHEN '' THEN excluded.namespace ELSE namespace END`,
	insertEntry:    `INSERT INTO journal (uid, seq, epoch, kind, version, time, payload, artifact) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
	insertArtifact: `INSERT INTO artifact (uid, sha256, bytes, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
	addTotal:       `UPDATE total SET journals = journals + ?, retired = retired + ?, entries = entries + ?, artifacts = artifacts + ?`,
}

const (
	selectHead = iota
	moveHead
	insertEntry
	insertArtifact
	addTotal
)

// tx is a transaction of the writer.
type tx struct {
	*sql.Tx
	frequent *[len(frequent)]*sql.Stmt
	added    store.Size // how much more there is than before
}

// exec does a statement and returns how many rows it has changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	return changed(t.Exec(query, args...)) //nolint:noctx // because the transaction carries the context
}

// often is exec for one of the frequent statements.
func (t *tx) often(statement int, args ...any) (int64, error) {
	return changed(t.Stmt(t.frequent[statement]).Exec(args...)) //nolint:noctx // because the transaction carries the context
}

func changed(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Append hands entries to the writer and waits until they are on disk. It returns journal.ErrFenced or
// journal.ErrSequence for entries that do not follow what is there, and ErrClosed after Close. A ctx that ends stops the
// waiting only while the writer has not taken the entries yet.
func (s *Store) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	call := &appendCall{uid: uid, namespace: store.NamespaceOf(entries), entries: entries, bytes: store.BytesOf(entries), done: make(chan error, 1)}
	s.appends.add(call)
	var err error
	select {
	case err := <-call.done:
		return err
	case <-s.closing:
		err = ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if s.appends.remove(call) {
		return err
	}
	return <-call.done // the writer has it
}

// change hands a transaction to the writer and waits until it is on disk.
func (s *Store) change(ctx context.Context, do func(*tx) error) error {
	c := &change{do: do, done: make(chan error, 1)}
	return hand(ctx, s, c)
}

func hand(ctx context.Context, s *Store, c *change) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx) // which the choice below might pass over
	}
	select {
	case s.changes <- c:
		return <-c.done
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write owns all that is written until the store closes.
func (s *Store) write() {
	defer close(s.closed)
	for {
		select {
		case <-s.appends.ready:
			if batch := s.appends.take(); len(batch) > 0 {
				s.commit(batch)
			}
		case c := <-s.changes:
			c.done <- s.transaction(c.do)
		case <-s.closing:
			return
		}
	}
}

// commit writes a batch in one transaction. A call that is refused is left out; a failure of the database is that of all.
func (s *Store) commit(batch []*appendCall) {
	var bytes int64
	err := s.transaction(func(t *tx) error {
		for _, call := range batch {
			bytes += call.bytes
			if err := t.add(call); err != nil {
				return err
			}
		}
		return nil
	})
	s.remember(bytes, err)
	s.unmarked.Store(true)
	for _, call := range batch {
		if call.refused != nil {
			call.done <- call.refused
		} else {
			call.done <- err
		}
	}
}

// remember keeps in mind what could not be written, for Check to try, until as much could be.
func (s *Store) remember(bytes int64, err error) {
	switch c := code(err); {
	case c == sqlite3.SQLITE_FULL || c == sqlite3.SQLITE_IOERR:
		s.missing.Store(max(bytes, 1))
	case err == nil && bytes >= s.missing.Load():
		s.missing.Store(0)
	}
}

// transaction is not bound to any caller's context: a batch has many callers, and what they report has happened.
func (s *Store) transaction(do func(*tx) error) error {
	if err := s.checkFile(); err != nil {
		return err // what is written now would be lost
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*busyTimeout)
	defer cancel()
	begun, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return s.failed(err)
	}
	t := &tx{Tx: begun, frequent: &s.frequent}
	if err := errors.Join(do(t), t.count()); err != nil {
		// SQLite has rolled back by itself after some errors, so that of the rollback says nothing.
		_ = t.Rollback()
		return s.failed(err)
	}
	return s.failed(t.Commit())
}

// count keeps account of how much there is.
func (t *tx) count() error {
	if t.added == (store.Size{}) {
		return nil
	}
	_, err := t.often(addTotal, t.added.Journals, t.added.Retired, t.added.Entries, t.added.Artifacts)
	return err
}

// add writes the entries of a call, unless they are refused.
func (t *tx) add(call *appendCall) error {
	var seq, epoch int64
	row := t.Stmt(t.frequent[selectHead]).QueryRow(call.uid) //nolint:noctx // because the transaction carries the context
	if err := row.Scan(&seq, &epoch); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	call.refused = journal.Follows(seq, epoch, call.entries)
	if call.refused != nil {
		return nil //nolint:nilerr // because a refused call is no failure of the batch
	}
	for _, e := range call.entries {
		if err := t.insert(call.uid, e); err != nil {
			return fmt.Errorf("failed to write entry %d: %w", e.Seq, err)
		}
	}
	last := call.entries[len(call.entries)-1]
	if seq == 0 {
		t.added.Journals++
	}
	t.added.Entries += int64(len(call.entries))
	_, err := t.often(moveHead, call.uid, last.Seq, last.Epoch, store.NamespaceOf(call.entries), store.BytesOf(call.entries))
	return err
}

func (t *tx) insert(uid string, e journal.Entry) error {
	_, err := t.often(insertEntry, uid, e.Seq, e.Epoch, string(e.Kind), e.Version, e.Time.UTC().Format(time.RFC3339Nano), string(e.Payload), e.Artifact)
	if err != nil {
		return err
	}
	for _, a := range e.Artifacts {
		if a.Data == nil {
			a.Data = []byte{} // nil would be NULL
		}
		n, err := t.often(insertArtifact, uid, a.SHA256, a.Bytes, a.Data)
		if err != nil {
			return err
		}
		t.added.Artifacts += n
	}
	return nil
}
