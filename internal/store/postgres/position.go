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
	// thisServer is the server's system identifier and timeline. A promoted standby and a server that was restored
	// to a point in time start a new timeline. A new server that loaded a dump has another system identifier.
	thisServer = `(SELECT system_identifier FROM pg_control_system()) || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8)`
	// noServer replaces thisServer if the server does not reveal its identity; Aurora, for example, has no WAL of its
	// own. A difference between noServer and another value does not mean that the server changed: the user of another
	// process may be able to read the identity.
	noServer = `'1'`
	// standbyConfirms is true if a commit of each session is acknowledged only after a standby has it. This session may
	// have a value from before a change of the server's value to local, which new sessions have: see session.
	standbyConfirms = `current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ` +
		`('on', 'remote_write', 'remote_apply') ` +
		`AND (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') <> 'local'`
)

// withheld lists the SQLSTATEs of a server that does not let the user execute the functions of thisServer, or does not
// have them.
var withheld = []string{"42501", "42883", "0A000"}

// row is the row of capstan_store, together with facts that the server reports about itself.
type row struct {
	store.State
	// unsettled is true if the row does not hold the current facts about the server.
	unsettled bool
}

// State returns the ID that the migration gave to the database, its incarnation and its position. The first
// incarnation is the server's system identifier and timeline, or "1" if this user may not read them. State takes at
// most 10 s, and fails on a server in recovery, which takes no writes.
func (s *Store) State(ctx context.Context) (store.State, error) {
	r, err := s.row(ctx)
	return r.State, err
}

func (s *Store) row(ctx context.Context) (r row, err error) {
	err = s.withServerIdentity(ctx, func(ctx context.Context, server string) error {
		return s.pool.QueryRow(ctx, onPrimary+`SELECT s.id, CASE WHEN s.incarnation = '' THEN now.server ELSE s.incarnation END, s.position,
				now.unsure, now.unsure OR s.confirmed <> now.confirmed
			FROM capstan_store AS s, LATERAL (SELECT n.*, s.server <> n.server AND (n.server <> '1' OR s.server = '') AS unsure
				FROM (SELECT `+server+` AS server, `+standbyConfirms+` AS confirmed) AS n) AS now`).
			Scan(&r.ID, &r.Incarnation, &r.Position, &r.Unsure, &r.unsettled)
	})
	if err != nil {
		return row{}, err
	}
	return r, nil
}

// Mark gives the database a new position in each of the following cases:
//
// 1. There may be appends since the last mark.
// 2. The position of the database is less than least.
// 3. The database does not have the current facts about the server: whether it is another server, and whether its
// commits wait for a standby.
//
// Mark also assigns a new incarnation in each of the following cases:
//
// 1. The position of the database is less than least.
// 2. The server has another system identifier than at the last mark.
// 3. The server has another timeline than at the last mark, and at that mark commits did not wait for a standby.
//
// If another process has given the database a position greater than least, Mark writes this position again. It then
// returns after the server has confirmed all earlier commits: see confirm. Otherwise the position could be that of a
// mark that no standby has confirmed.
//
// It takes at most 20 s.
func (s *Store) Mark(ctx context.Context, least int64) (store.State, error) {
	r, err := s.row(ctx)
	if err != nil {
		return store.State{}, err
	}
	hadUnmarked := s.unmarked.Swap(false) // before the write: appends that are acknowledged from now on need the next mark
	raise := hadUnmarked || r.unsettled
	if !raise && r.Position == least {
		return r.State, nil
	}
	newIncarnation := rand.Text()
	var st store.State
	err = s.withServerIdentity(ctx, func(ctx context.Context, server string) error {
		return s.pool.QueryRow(ctx, `UPDATE capstan_store AS s SET
				position = CASE WHEN $3 OR s.position < $1 THEN greatest(s.position, $1) + 1 ELSE s.position END,
				incarnation = CASE
					WHEN s.position < $1 THEN $2
					WHEN s.server NOT IN ('', '1', now.server) AND now.server <> '1' `+
			`AND NOT (s.confirmed AND split_part(s.server, '-', 1) = split_part(now.server, '-', 1)) THEN $2
					WHEN s.incarnation = '' THEN now.server
					ELSE s.incarnation
				END,
				server = CASE WHEN now.server = '1' AND s.server <> '' THEN s.server ELSE now.server END,
				confirmed = now.confirmed
			FROM (SELECT `+server+` AS server, `+standbyConfirms+` AS confirmed) AS now
			RETURNING s.id, s.incarnation, s.position`, least, newIncarnation, raise).Scan(&st.ID, &st.Incarnation, &st.Position)
	})
	if err != nil {
		if hadUnmarked {
			s.unmarked.Store(true)
		}
		return store.State{}, err
	}
	st.Lost = st.Incarnation == newIncarnation
	return st, nil
}

// withServerIdentity runs a query with thisServer, and again with noServer if the server withholds its identity.
func (s *Store) withServerIdentity(ctx context.Context, query func(ctx context.Context, server string) error) error {
	return s.checked(ctx, appendTimeout, func(ctx context.Context) error { // both queries share the time limit
		err := query(ctx, thisServer)
		if server, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(withheld, server.Code) {
			return query(ctx, noServer)
		}
		return err
	})
}
