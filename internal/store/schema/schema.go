// Package schema migrates the schema of a store to the version of this program.
package schema

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Up applies the pending migrations. It returns journal.ErrNewer if the schema is newer than the newest migration. It
// checks this before and after the migration, because a newer program may migrate the schema at the same time. Up logs
// the migration of a store that is not new to the logger of ctx, because it may take minutes.
func Up(ctx context.Context, p *goose.Provider) error {
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	has, err := check(ctx, p, newest)
	if err != nil {
		return err
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("from", has, "to", newest)
	shown := has > 0 && has < newest
	if shown {
		log.Info("Migrating the schema of the store; do not stop the process meanwhile")
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("failed to apply the migrations: %w", err)
	}
	if shown {
		log.Info("Migrated the schema of the store")
	}
	_, err = check(ctx, p, newest)
	return err
}

// check returns the version of the schema, and journal.ErrNewer if it is newer than newest.
func check(ctx context.Context, p *goose.Provider, newest int64) (has int64, err error) {
	if has, err = p.GetDBVersion(ctx); err != nil {
		return 0, err
	}
	return has, Check(has, newest)
}

// Check returns journal.ErrNewer if the schema is newer than the newest version that this program knows.
func Check(has, newest int64) error {
	if has <= newest {
		return nil
	}
	return fmt.Errorf("its schema has version %d, and the newest version that this program knows is %d: %w; to return "+
		"to this version, restore a backup from before the upgrade; if another installation shares the tables and was "+
		"upgraded, upgrade this one, too", has, newest, journal.ErrNewer)
}
