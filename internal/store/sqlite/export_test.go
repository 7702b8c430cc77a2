package sqlite

import (
	"database/sql"
	"io/fs"
)

// Alone makes a store use one connection and returns it, so that settings of the connection apply to all calls.
func (s *Store) Alone() *sql.DB {
	s.db.SetMaxOpenConns(1)
	return s.db
}

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
