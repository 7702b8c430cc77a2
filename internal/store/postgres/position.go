package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// thisServer is the server's system identifier and timeline. A promoted standby begins a new timeline, and so does a server
	// that was restored to a point in time; a dump that was loaded into another server has another system identifier.
	thisServer = `(SELECT system_identifier FROM pg_control_system()) || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8)`
	// noServer stands for it where the server does not tell which one it is. Aurora, for one, has no WAL of its own. It is compared with
	// nothing, because another process may use a user that is told.
	noServer = `'1'`
	// waits is whether a commit of this session is acknowledged only when a standby has it.
	waits = `current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_write', 'remote_apply')`
)

// withheld are the SQLSTATEs of a server that keeps such functions from this user, or does not have them.
var withheld = []string{"42501", "42883", "0A000"}

// row is the row of capstan_store, and what the server says of itself.
type row struct {
	store.State
	// unsettled is true where the row does not say yet what the server says of itself.
	unsettled bool
}

// State returns the ID that the database was given when its schema was made, its incarnation and its position. The first incarnation is
// the server's system identifier and timeline, or "1" where the server does not let this user ask for them. It takes at most 10 s,
// and fails on a server in recovery, which takes no writes.
func (s *Store) State(ctx context.Context) (store.State, error) {
	r, err := s.row(ctx)
	return r.State, err
}

func (s *Store) row(ctx context.Context) (r row, err error) {
	err = s.told(ctx, func(ctx context.Context, server string) error {
		return s.pool.QueryRow(ctx, primary+`SELECT s.id, CASE WHEN s.incarnation = '' THEN now.server ELSE s.incarnation END, s.position,
				now.unsure, now.unsure OR s.confirmed <> now.confirmed
			FROM capstan_store AS s, LATERAL (SELECT n.*, s.server <> n.server AND (n.server <> '1' OR s.server = '') AS unsure
				FROM (SELECT `+server+` AS server, `+waits+` AS confirmed) AS n) AS now`).
			Scan(&r.ID, &r.Incarnation, &r.Position, &r.Unsure, &r.unsettled)
	})
	if err != nil {
		return row{}, err
	}
	return r, nil
}

// Mark gives the database a new position if there is something to mark. It gives it a new incarnation if it is behind; if the server has
// another system identifier than at the last mark; or if it has another timeline, and commits did not wait for a standby before. It takes at
// most 20 s.
func (s *Store) Mark(ctx context.Context, least int64) (store.State, error) {
	r, err := s.row(ctx)
	if err != nil {
		return store.State{}, err
	}
	marks := s.unmarked.Swap(false) // before the write: what is acknowledged from now on needs the next mark
	if !marks && !r.unsettled && r.Position >= least {
		return r.State, nil
	}
	made := rand.Text()
	var st store.State
	err = s.told(ctx, func(ctx context.Context, server string) error {
		return s.pool.QueryRow(ctx, `UPDATE capstan_store AS s SET
				position = greatest(s.position, $1) + 1,
				incarnation = CASE
					WHEN s.position < $1 THEN $2
					WHEN s.server NOT IN ('', '1', now.server) AND now.server <> '1' AND NOT (s.confirmed AND split_part(s.server, '-', 1) = split_part(now.server, '-', 1)) THEN $2
					WHEN s.incarnation = '' THEN now.server
					ELSE s.incarnation
				END,
				server = CASE WHEN now.server = '1' AND s.server <> '' THEN s.server ELSE now.server END,
				confirmed = now.confirmed
			FROM (SELECT `+server+` AS server, `+waits+` AS confirmed) AS now
			RETURNING s.id, s.incarnation, s.position`, least, made).Scan(&st.ID, &st.Incarnation, &st.Position)
	})
	if err != nil {
		if marks {
			s.unmarked.Store(true)
		}
		return store.State{}, err
	}
	st.Lost = st.Incarnation == made
	return st, nil
}

// told does a query with the expression for the server, and without where the server withholds that.
func (s *Store) told(ctx context.Context, query func(ctx context.Context, server string) error) error {
	err := s.again(ctx, appendTimeout, func(ctx context.Context) error { return query(ctx, thisServer) })
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(withheld, server.Code) {
		return s.again(ctx, appendTimeout, func(ctx context.Context) error { return query(ctx, noServer) })
	}
	return err
}
