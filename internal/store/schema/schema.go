// Package schema brings the schema of a store to the version that this program knows.
package schema

import (
	"context"
	"fmt"

	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Up does the migrations that a store has not had. It returns journal.ErrNewer for a store with a schema that is newer than the newest
// migration, also if a newer program has migrated it at the same time.
func Up(ctx context.Context, p *goose.Provider) error {
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	if err := check(ctx, p, newest); err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("failed to bring it to the newest schema: %w", err)
	}
	return check(ctx, p, newest)
}

func check(ctx context.Context, p *goose.Provider, newest int64) error {
	has, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	return Check(has, newest)
}

// Check returns journal.ErrNewer if a schema has a newer version than the newest that this program knows.
func Check(has, newest int64) error {
	if has <= newest {
		return nil
	}
	return fmt.Errorf("its schema has version %d, and the newest that this program knows is %d: %w; to go back to this version, restore a backup "+
		"from before the upgrade", has, newest, journal.ErrNewer)
}
