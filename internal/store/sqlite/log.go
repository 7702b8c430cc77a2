package sqlite

import (
	"context"
	"database/sql/driver"
	"os"
	"sync"
	"time"
)

// SQLite appends each commit to the write-ahead log, copies it to the file, and begins the log anew when no connection
// reads an older state of the file. If reads always overlap, that moment never comes, and the log grows with each
// commit. The writer therefore lets new reads wait when the log is too long. It does not wait for them itself.
//
// Lists may take long, other reads are short. So new lists wait until the earlier lists have ended, and the other reads
// wait only while there is no list. If a read has waited in vain, no other read waits until the next attempt.

const (
	// usualLog is the size to which SQLite shortens the log when it begins the log anew.
	usualLog = 8 << 20
	// maxLog is the size of the log from which new reads wait.
	maxLog = 64 << 20
	// maxPause limits how long a read of a run or of a controller waits, because an earlier read may take long, or
	// never end on a failed disk.
	maxPause = 2 * time.Second
	// maxListPause limits how long a list waits. It is longer than most lists take, because lists that begin before the
	// earlier ones end would keep the log long for ever. People can wait longer than runs.
	maxListPause = time.Minute
)

// logBytes returns the size of the write-ahead log.
func (s *Store) logBytes() int64 {
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		return 0 // there is no log before the first write
	}
	return info.Size()
}

// boundLog lets new reads wait if the log is too long. The writer calls it after each commit. A process that only reads
// may keep the log long, too. So if an attempt does not help, the next one is made when the log has grown by a quarter.
func (s *Store) boundLog() {
	size := s.logBytes()
	switch {
	case size <= s.maxLog:
		s.nextLog = 0
	case size >= s.nextLog:
		s.nextLog = size + s.maxLog/4
		s.snapshots.pause()
	}
}

// copyLog copies the whole log to the file and lets reads continue. The writer calls it while nothing is read. The next
// commit then begins the log anew. Reads that begin before that commit do not prevent this, because they read only the
// file.
func (s *Store) copyLog() {
	defer s.snapshots.resume()
	ctx, cancel := context.WithTimeout(context.Background(), busyTimeout)
	defer cancel()
	_, err := s.writes.ExecContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`)
	_ = s.failed(err) // Check reports damage, and later writes report other errors
}

// snapshots counts the queries that read. Each of them reads the state of the file at its begin.
type snapshots struct {
	mu           sync.Mutex
	reads, lists queries
	paused       bool          // pause was called, and then resume was not
	none         chan struct{} // receives while paused when nothing is read
}

// queries counts the queries of a pool.
type queries struct {
	all      *snapshots
	maxPause time.Duration // limits how long a query waits
	open     int
	resumed  chan struct{} // closed when the queries need not wait any more; nil while they need not wait
}

func newSnapshots() *snapshots {
	s := &snapshots{none: make(chan struct{}, 1)}
	s.reads, s.lists = queries{all: s, maxPause: maxPause}, queries{all: s, maxPause: maxListPause}
	return s
}

// begin counts a query. If queries wait, it waits until they need not wait any more, but at most for maxPause.
func (q *queries) begin(ctx context.Context) error {
	q.all.mu.Lock()
	resumed := q.resumed
	if q == &q.all.reads && q.all.lists.open > 0 {
		resumed = nil // the list keeps the log long anyway
	}
	if resumed == nil {
		q.open++
	}
	q.all.mu.Unlock()
	if resumed == nil {
		return nil
	}
	timer := time.NewTimer(q.maxPause)
	defer timer.Stop()
	var waited bool
	select {
	case <-resumed:
	case <-timer.C:
		waited = true
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if waited && q.resumed == resumed {
		q.resume() // other queries would wait in vain, too
	}
	q.open++
	return nil
}

// end removes a query that has ended.
func (q *queries) end() {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.open--
	q.all.report()
}

// pause lets new queries wait. The caller must hold the lock.
func (q *queries) pause() {
	if q.resumed == nil {
		q.resumed = make(chan struct{})
	}
}

// resume lets queries continue. The caller must hold the lock.
func (q *queries) resume() {
	if q.resumed != nil {
		close(q.resumed)
		q.resumed = nil
	}
}

// pause lets new queries wait.
func (s *snapshots) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
	s.reads.pause()
	s.lists.pause()
	s.report()
}

// report sends to none while paused if nothing is read. The caller must hold the lock.
func (s *snapshots) report() {
	if !s.paused || s.reads.open+s.lists.open > 0 {
		return
	}
	select {
	case s.none <- struct{}{}:
	default:
	}
}

// resume lets queries continue.
func (s *snapshots) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = false
	s.reads.resume()
	s.lists.resume()
}

// driverConn has the methods of a connection that database/sql uses.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

// readConn is a connection whose queries are counted.
type readConn struct {
	driverConn
	queries *queries
}

// QueryContext executes a query.
func (c readConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.queries.read(ctx, func() (driver.Rows, error) { return c.driverConn.QueryContext(ctx, query, args) })
}

// PrepareContext prepares a statement.
func (c readConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.driverConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return readStmt{stmt, c.queries}, nil
}

// readStmt is a prepared statement whose queries are counted.
type readStmt struct {
	driver.Stmt
	queries *queries
}

// QueryContext executes the statement.
func (s readStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.queries.read(ctx, func() (driver.Rows, error) {
		return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args) //nolint:forcetypeassert // because SQLite's statements have it
	})
}

// read executes a query and counts it until its rows are closed.
func (q *queries) read(ctx context.Context, query func() (driver.Rows, error)) (driver.Rows, error) {
	if err := q.begin(ctx); err != nil {
		return nil, err
	}
	rows, err := query()
	if err != nil {
		q.end()
		return nil, err
	}
	return readRows{rows, q}, nil
}

// readRows are the rows of a counted query.
type readRows struct {
	driver.Rows
	queries *queries
}

// Close ends the query. database/sql calls it exactly once.
func (r readRows) Close() error {
	defer r.queries.end()
	return r.Rows.Close()
}
