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

const (
	// prepareFor bounds the attempts to bring a journal to the newest schema: another process may be at it.
	prepareFor = 10 * time.Second
	// lookFor bounds the look for damage. It is enough for some hundred MiB; the rest of a larger file is read when it is
	// needed, and damage is found then. A manager that restarts has Turns to go on with and cannot wait for minutes.
	lookFor = 2 * time.Second
)

// prepare looks whether the file is sound, brings it to the newest schema and prepares what the store does often.
func (s *Store) prepare(ctx context.Context) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := look(ctx, s.db)
		if err == nil {
			err = migrate(ctx, s.db)
		}
		if isDamage(err) || errors.Is(err, journal.ErrNewer) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxTries(20), backoff.WithMaxElapsedTime(prepareFor))
	if err != nil {
		return err
	}
	for i, query := range frequent {
		if s.frequent[i], err = s.db.PrepareContext(ctx, query); err != nil {
			return err
		}
	}
	_, err = s.file.ReadAt(s.header[:], 0)
	return err
}

// errDamaged is what a look has found.
var errDamaged = errors.New("its pages do not fit together")

// look fails if the structure of the file is damaged, as far as it gets in its time. It reads no payload's meaning.
func look(ctx context.Context, db *sql.DB) error {
	bounded, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	var found string
	err := db.QueryRowContext(bounded, `PRAGMA quick_check(1)`).Scan(&found)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case bounded.Err() != nil:
		return nil // no damage so far
	case err != nil:
		return err
	case found != "ok":
		return fmt.Errorf("%w: %s", errDamaged, found)
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	provider, err := provide(db)
	if err != nil {
		return err
	}
	return schema.Up(ctx, provider)
}

func provide(db *sql.DB) (*goose.Provider, error) {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectSQLite3, db, dir)
}

// versions returns the version of the schema that a file has, and the newest that this program knows. It changes nothing.
func versions(ctx context.Context, db *sql.DB) (has, newest int64, err error) {
	provider, err := provide(db)
	if err != nil {
		return 0, 0, err
	}
	sources := provider.ListSources()
	newest = sources[len(sources)-1].Version
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'goose_db_version'`).Scan(&tables); err != nil || tables == 0 {
		return 0, newest, err
	}
	err = db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version`).Scan(&has)
	return has, newest, err
}
