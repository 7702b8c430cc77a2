package sqlite

import (
	"database/sql"
	"io/fs"
)

// SingleConn limits the store's pool to one connection and returns the pool, so that settings of the connection apply
// to all calls.
func (s *Store) SingleConn() *sql.DB {
	s.db.SetMaxOpenConns(1)
	return s.db
}

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
