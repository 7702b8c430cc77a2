package postgres

import "io/fs"

// Versions is the table of the migrations that were done.
const Versions = versions

// Migrations are the versions of the schema.
func Migrations() (fs.FS, error) { return fs.Sub(migrations, "migrations") }
