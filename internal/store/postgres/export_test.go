package postgres

import (
	"context"
	"io/fs"
)

// OpenWith opens a database as a program with these migrations does.
func OpenWith(ctx context.Context, databaseURL string, dir fs.FS) (*Store, error) {
	return open(ctx, databaseURL, dir)
}

// Versions is the table of the migrations that were done.
const Versions = versions

// Migrations are the versions of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
