// Package schema migrates the schema of a store to the version of this program.
package schema

import (
	"context"
	"fmt"

	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Up applies the pending migrations. It returns journal.ErrNewer if the schema is newer than the newest migration. It
// checks this before and after the migration, because a newer program may migrate the schema at the same time.
func Up(ctx context.Context, p *goose.Provider) error {
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	if err := check(ctx, p, newest); err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("failed to apply the migrations: %w", err)
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

// Check returns journal.ErrNewer if the schema is newer than the newest version that this program knows.
func Check(has, newest int64) error {
	if has <= newest {
		return nil
	}
	return fmt.Errorf("its schema has version %d, and the newest version that this program knows is %d: %w; to return "+
		"to this version, restore a backup from before the upgrade", has, newest, journal.ErrNewer)
}
