package sqlite

import (
	"database/sql"
	"io/fs"
)

// Alone makes a store use one connection, and returns it: what is set on it holds for all that the store does.
func (s *Store) Alone() *sql.DB {
	s.db.SetMaxOpenConns(1)
	return s.db
}

// Migrations are the versions of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
