package sqlite

import (
	"database/sql"
	"io/fs"
	"time"
)

// The check for damage must reach the damage on a slow machine, too.
func init() { structureTimeout = time.Minute }

// Pools returns the pools of the writer, of reads, of lists and of checks.
func (s *Store) Pools() []*sql.DB { return []*sql.DB{s.writes, s.db, s.lists, s.checks} }

// SingleConns limits each pool to one connection. It returns the pools, so that settings of the connections apply to
// all calls.
func (s *Store) SingleConns() []*sql.DB {
	for _, pool := range s.Pools() {
		pool.SetMaxOpenConns(1)
	}
	return s.Pools()
}

// Reads returns the pool of reads.
func (s *Store) Reads() *sql.DB { return s.db }

// Lists returns the pool of lists.
func (s *Store) Lists() *sql.DB { return s.lists }

// LimitLog sets the size of the write-ahead log from which reads wait. It must be called before the first write.
func (s *Store) LimitLog(bytes int64) { s.maxLog = bytes }

// LimitPause sets how long reads wait for earlier ones. It must be called before the first read.
func (s *Store) LimitPause(reads time.Duration) { s.snapshots.reads.maxPause = reads }

// RecordOfTurn is the query that finds the record of a Turn for feedback.
const RecordOfTurn = recordOfTurn

// ExpiryMatters is the query that finds out whether the note of SetExpired must change.
const ExpiryMatters = expiryMatters

// NewestSurplus is the query that finds the newest record that TrimRecords may delete.
const NewestSurplus = newestSurplus

// OldestSurplus is the query that finds the records that TrimRecords deletes.
var OldestSurplus = oldestRecords(isSurplus)

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
