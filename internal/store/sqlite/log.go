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

const (
	// usualLog is the size to which SQLite shortens the log when it begins the log anew.
	usualLog = 8 << 20
	// maxLog is the size of the log from which new reads wait.
	maxLog = 64 << 20
	// maxPause limits how long a read waits, because an earlier read may take long, or never end on a failed disk.
	maxPause = 2 * time.Second
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
// commit then begins the log anew. The reads that begin before do not prevent this: they need no log.
func (s *Store) copyLog() {
	defer s.snapshots.resume()
	ctx, cancel := context.WithTimeout(context.Background(), busyTimeout)
	defer cancel()
	_, err := s.writes.ExecContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`)
	_ = s.failed(err) // Check reports damage, and later writes report other errors
}

// snapshots counts the queries that read. Each of them reads the state of the file at its begin.
type snapshots struct {
	mu      sync.Mutex
	open    int
	resumed chan struct{} // closed by resume; nil while reads need not wait
	none    chan struct{} // receives when reads wait and no other query reads
}

func newSnapshots() *snapshots { return &snapshots{none: make(chan struct{}, 1)} }

// begin counts a query. If reads wait, it waits until resume is called, but at most for maxPause.
func (s *snapshots) begin(ctx context.Context) error {
	s.mu.Lock()
	resumed := s.resumed
	if resumed == nil {
		s.open++
	}
	s.mu.Unlock()
	if resumed == nil {
		return nil
	}
	timer := time.NewTimer(maxPause)
	defer timer.Stop()
	select {
	case <-resumed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	return nil
}

// end removes a query that has ended.
func (s *snapshots) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.report()
}

// pause lets new reads wait.
func (s *snapshots) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resumed == nil {
		s.resumed = make(chan struct{})
	}
	s.report()
}

// report sends to none if reads wait and no other query reads. The caller must hold the lock.
func (s *snapshots) report() {
	if s.resumed == nil || s.open > 0 {
		return
	}
	select {
	case s.none <- struct{}{}:
	default:
	}
}

// resume lets reads continue.
func (s *snapshots) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resumed != nil {
		close(s.resumed)
		s.resumed = nil
	}
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
	snapshots *snapshots
}

// QueryContext executes a query.
func (c readConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.snapshots.read(ctx, func() (driver.Rows, error) { return c.driverConn.QueryContext(ctx, query, args) })
}

// PrepareContext prepares a statement.
func (c readConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.driverConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return readStmt{stmt, c.snapshots}, nil
}

// readStmt is a prepared statement whose queries are counted.
type readStmt struct {
	driver.Stmt
	snapshots *snapshots
}

// QueryContext executes the statement.
func (s readStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.snapshots.read(ctx, func() (driver.Rows, error) {
		return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args) //nolint:forcetypeassert // because SQLite's statements have it
	})
}

// read executes a query and counts it until its rows are closed.
func (s *snapshots) read(ctx context.Context, query func() (driver.Rows, error)) (driver.Rows, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	rows, err := query()
	if err != nil {
		s.end()
		return nil, err
	}
	return readRows{rows, s}, nil
}

// readRows are the rows of a counted query.
type readRows struct {
	driver.Rows
	snapshots *snapshots
}

// Close ends the query. database/sql calls it exactly once.
func (r readRows) Close() error {
	defer r.snapshots.end()
	return r.Rows.Close()
}
