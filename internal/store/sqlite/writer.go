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
	// maxBatch is the maximum number of appends in one transaction.
	maxBatch = 256
	// maxBatchBytes is the maximum number of bytes in one transaction, except for a single larger append. All
	// appends that arrive during the transaction wait for it.
	maxBatchBytes = 512 << 10
)

// appendCall is an append that waits for the writer.
type appendCall struct {
	uid       string
	namespace string
	entries   []journal.Entry
	bytes     int64
	refused   error      // the reason why the append is refused, or nil; set by the writer
	done      chan error // buffered, so that the writer never waits

	// The queue sets these fields: the start of the append in bytes (see queue.virtualTime), its number in the order of
	// arrival, its index in the heap, and whether the append has left the queue.
	start  int64
	number uint64
	at     int
	taken  bool
}

// change is a transaction other than an append. The writer executes it between appends.
type change struct {
	do   func(*tx) error
	done chan error // buffered, so that the writer never waits
}

// frequent holds the statements of appends, which each Turn executes. They are prepared once.
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
	added    store.Size // how much the size of the store changes
}

// exec executes a statement and returns the number of changed rows.
func (t *tx) exec(query string, args ...any) (int64, error) {
	return changed(t.Exec(query, args...)) //nolint:noctx // because the transaction carries the context
}

// execPrepared executes one of the frequent statements.
func (t *tx) execPrepared(statement int, args ...any) (int64, error) {
	return changed(t.Stmt(t.frequent[statement]).Exec(args...)) //nolint:noctx // because the transaction carries the context
}

func changed(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Append passes entries to the writer and waits until they are on disk. It returns journal.ErrFenced or
// journal.ErrSequence for entries that do not follow the existing ones, and ErrClosed after Close. If ctx ends before
// the writer has taken the entries, Append writes nothing and returns. After that, the end of ctx has no effect.
func (s *Store) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	call := &appendCall{
		uid: uid, namespace: store.NamespaceOf(entries), entries: entries, bytes: store.BytesOf(entries),
		done: make(chan error, 1),
	}
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
	return <-call.done // the writer has taken the append
}

// change passes a transaction to the writer and waits until it is on disk.
func (s *Store) change(ctx context.Context, do func(*tx) error) error {
	c := &change{do: do, done: make(chan error, 1)}
	return submit(ctx, s, c)
}

func submit(ctx context.Context, s *Store, c *change) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx) // the select below might ignore the end of ctx
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

// write executes all writes until the store closes.
func (s *Store) write() {
	defer close(s.closed)
	defer s.snapshots.resume()
	for {
		select {
		case <-s.appends.ready:
			if batch := s.appends.take(); len(batch) > 0 {
				s.commit(batch)
			}
		case c := <-s.changes:
			c.done <- s.transaction(c.do)
		case <-s.snapshots.none:
			s.copyLog()
		case <-s.closing:
			return
		}
	}
}

// commit writes a batch in one transaction. It leaves out refused appends. If the database fails, all appends of
// the batch fail. This includes refused ones, because the reason of a refusal may be an append of the same batch, which
// was then not written either.
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
	s.recordMissing(bytes, err)
	s.unmarked.Store(true)
	for _, call := range batch {
		if err == nil {
			call.done <- call.refused
		} else {
			call.done <- err
		}
	}
}

// recordMissing stores the number of bytes that could not be written, for Check, until a write of that size succeeds.
func (s *Store) recordMissing(bytes int64, err error) {
	switch c := code(err); {
	case c == sqlite3.SQLITE_FULL || c == sqlite3.SQLITE_IOERR:
		s.missing.Store(max(bytes, 1))
	case err == nil && bytes >= s.missing.Load():
		s.missing.Store(0)
	}
}

// transaction runs a transaction. The context of a caller cannot end it, because a batch has many callers, and its
// outcome must be known.
func (s *Store) transaction(do func(*tx) error) error {
	if err := s.checkFile(); err != nil {
		return err // a write would be lost now
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*busyTimeout)
	defer cancel()
	begun, err := s.writes.BeginTx(ctx, nil)
	if err != nil {
		return s.failed(err)
	}
	t := &tx{Tx: begun, frequent: &s.frequent}
	// After some errors SQLite has already rolled back. It would execute and keep a further statement, which therefore
	// must not follow an error.
	if err = do(t); err == nil {
		err = t.updateTotals()
	}
	if err != nil {
		_ = t.Rollback() // its error means nothing
		return s.failed(err)
	}
	if err = t.Commit(); err == nil {
		s.boundLog()
	}
	return s.failed(err)
}

// updateTotals updates the numbers of journals, entries and artifacts.
func (t *tx) updateTotals() error {
	if t.added == (store.Size{}) {
		return nil
	}
	_, err := t.execPrepared(addTotal, t.added.Journals, t.added.Retired, t.added.Entries, t.added.Artifacts)
	return err
}

// add writes the entries of a call unless they are refused.
func (t *tx) add(call *appendCall) error {
	var seq, epoch int64
	row := t.Stmt(t.frequent[selectHead]).QueryRow(call.uid) //nolint:noctx // because the transaction carries the context
	if err := row.Scan(&seq, &epoch); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	call.refused = journal.CheckAppend(seq, epoch, call.entries)
	if call.refused != nil {
		return nil //nolint:nilerr // because a refused call is no failure of the batch
	}
	if refusal, err := t.applyLedger(call.uid, call.entries); err != nil {
		return err
	} else if refusal != nil {
		call.refused = refusal
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
	_, err := t.execPrepared(moveHead, call.uid, last.Seq, last.Epoch, store.NamespaceOf(call.entries), store.BytesOf(call.entries))
	return err
}

func (t *tx) insert(uid string, e journal.Entry) error {
	_, err := t.execPrepared(insertEntry, uid, e.Seq, e.Epoch, string(e.Kind), e.Version,
		e.Time.UTC().Format(time.RFC3339Nano), string(e.Payload), e.Artifact)
	if err != nil {
		return err
	}
	for _, a := range e.Artifacts {
		if a.Data == nil {
			a.Data = []byte{} // nil would be NULL
		}
		n, err := t.execPrepared(insertArtifact, uid, a.SHA256, a.Bytes, a.Data)
		if err != nil {
			return err
		}
		t.added.Artifacts += n
	}
	if e.TurnRecord != nil {
		_, err = t.addRecord(e.TurnRecord)
	}
	if e.TurnNumber != nil && err == nil {
		err = t.setTurnNumber(e.TurnNumber)
	}
	for i := range e.Tasks {
		if err == nil {
			err = t.addTask(&e.Tasks[i])
		}
	}
	return err
}
