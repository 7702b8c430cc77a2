package postgres

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/capstan-dev/capstan/internal/store"
)

// noIncarnation is the incarnation where the server does not tell which one it is. Aurora, for one, has no WAL of its own.
const noIncarnation = "1"

// incarnation is the server's system identifier and timeline. A promoted standby begins a new timeline, and so does a server
// that was restored to a point in time; a dump that was loaded into another server has another system identifier.
const incarnation = `(SELECT system_identifier FROM pg_control_system()) || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8)`

// withheld are the SQLSTATEs of a server that keeps such functions from this user, or does not have them.
var withheld = []string{"42501", "42883", "0A000"}

// Identity returns the ID that the database was given when its schema was made, and the server's incarnation. Where the server
// does not let this user ask for it, the incarnation is "1". It takes at most 10 s, and fails on a server in recovery, which takes no
// writes.
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	i, err := s.identity(ctx, incarnation)
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(withheld, server.Code) {
		i, err = s.identity(ctx, `'`+noIncarnation+`'`)
	}
	return i, err
}

func (s *Store) identity(ctx context.Context, incarnation string) (i store.Identity, err error) {
	err = s.again(ctx, appendTimeout, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, primary+`SELECT id, `+incarnation+` FROM capstan_store`).Scan(&i.ID, &i.Incarnation)
	})
	if err != nil {
		return store.Identity{}, err
	}
	return i, nil
}
