package postgres

import (
	"context"
	"io/fs"
)

// OpenWith opens a database as Open does, but with the migrations in dir.
func OpenWith(ctx context.Context, databaseURL string, dir fs.FS) (*Store, error) {
	return open(ctx, databaseURL, dir)
}

// Versions is the table of the applied migrations.
const Versions = versions

// Migrations returns the migrations of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
