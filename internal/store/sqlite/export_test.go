package sqlite

import (
	"database/sql"
	"io/fs"
	"time"
)

// The check for damage must reach the damage on a slow machine, too.
func init() { structureTimeout = time.Minute }

// Pools returns the pools of the writer and of reads.
func (s *Store) Pools() []*sql.DB { return []*sql.DB{s.writes, s.db} }

// SingleConns limits the pool of reads to one connection, as that of the writer is. It returns both pools, so that
// settings of the connections apply to all calls.
func (s *Store) SingleConns() []*sql.DB {
	s.db.SetMaxOpenConns(1)
	return s.Pools()
}

// Reads returns the pool of reads and the number of its connections.
func (s *Store) Reads() (*sql.DB, int) { return s.db, readers }

// RecordOfTurn is the query that finds the record of a Turn for feedback.
const RecordOfTurn = recordOfTurn

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
