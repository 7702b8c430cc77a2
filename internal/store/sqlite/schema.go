package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/schema"
)

//go:embed migrations/*.sql
var migrations embed.FS

// prepareFor limits the time of all attempts to check and migrate the file. An attempt may fail because another process
// is migrating the file.
const prepareFor = 10 * time.Second

// structureTimeout limits the check for damage. It is enough for some hundred MiB. In a larger file, damage in the
// unchecked part is found when that part is read. A longer check would delay a restarted manager, which has Turns to
// continue. Only tests change it.
var structureTimeout = 2 * time.Second

// prepare checks the file, migrates its schema and prepares the frequent statements.
func (s *Store) prepare(ctx context.Context) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := checkStructure(ctx, s.writes)
		if err == nil {
			err = migrate(ctx, s.writes)
		}
		if isDamage(err) || errors.Is(err, journal.ErrNewer) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxTries(20),
		backoff.WithMaxElapsedTime(prepareFor))
	if err != nil {
		return err
	}
	for i, query := range frequent {
		if s.frequent[i], err = s.writes.PrepareContext(ctx, query); err != nil {
			return err
		}
	}
	if s.pages, err = s.db.PrepareContext(ctx, selectPage); err != nil {
		return err
	}
	_, err = s.file.ReadAt(s.header[:], 0)
	return err
}

// errDamaged means that the check for damage has failed.
var errDamaged = errors.New("its pages are inconsistent")

// checkStructure returns an error if it finds, within structureTimeout, that the structure of the file is damaged. It
// does not interpret payloads.
func checkStructure(ctx context.Context, db *sql.DB) error {
	bounded, cancel := context.WithTimeout(ctx, structureTimeout)
	defer cancel()
	var found string
	err := db.QueryRowContext(bounded, `PRAGMA quick_check(1)`).Scan(&found)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case bounded.Err() != nil:
		return nil // no damage found so far
	case err != nil:
		return err
	case found != "ok":
		return fmt.Errorf("%w: %s", errDamaged, found)
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	provider, err := newProvider(db)
	if err != nil {
		return err
	}
	return schema.Up(ctx, provider)
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectSQLite3, db, dir)
}

// versions returns the schema version of a file, and the newest version that this program knows. It changes
// nothing.
func versions(ctx context.Context, db *sql.DB) (has, newest int64, err error) {
	provider, err := newProvider(db)
	if err != nil {
		return 0, 0, err
	}
	sources := provider.ListSources()
	newest = sources[len(sources)-1].Version
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'goose_db_version'`).Scan(
		&tables); err != nil || tables == 0 {
		return 0, newest, err
	}
	err = db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version`).Scan(&has)
	return has, newest, err
}
