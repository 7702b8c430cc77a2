package sqlite

import (
	"database/sql"
	"io/fs"
)

// Writes returns the pool of the writer, which has one connection, so that settings of the connection apply to all
// writes.
func (s *Store) Writes() *sql.DB { return s.writes }

// Reads returns the pool of reads and the number of its connections.
func (s *Store) Reads() (*sql.DB, int) { return s.db, readers }

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
