package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errFormerPrimary means that a server takes writes, but has an older timeline than a server of the same system that
// the store has used before.
var errFormerPrimary = errors.New("this server is a former primary: another server of the same system has been promoted. Make it " +
	"a standby of the new primary, for example with pg_rewind. After a deliberate restore, restart the manager")

// timelines holds the highest timeline of each database system to which a store has connected. All connections of the
// store use this timeline. Otherwise a former primary that is started again without a rewind, and takes writes, would
// get new connections, while open connections stay on the new primary.
type timelines struct {
	mu      sync.Mutex
	highest map[string]string // by system identifier: eight hexadecimal digits
}

// identityKey is the key of a connection's custom data under which its server is stored.
const identityKey = "capstan-server"

// server is the identity of the server of a connection.
type server struct{ system, timeline string }

// follow makes a pool use only connections to servers with the highest timeline. If the URL has no
// target_session_attrs, the servers must also take writes, so that the former primary is not used after a failover.
func (l *timelines) follow(config *pgxpool.Config) {
	validate := config.ConnConfig.ValidateConnect
	config.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := checkEncoding(conn.ParameterStatus("server_encoding")); err != nil {
			return err
		}
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		return l.setUp(ctx, conn, validate == nil)
	}
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		of, known := conn.PgConn().CustomData()[identityKey].(server)
		return !known || l.isCurrent(of), nil
	}
}

// setUp sets up a session, and reads the timeline of its server. It returns pgconn.ErrReadOnlyConnection if the server
// must take writes and does not, and errFormerPrimary if the timeline is less than the highest one. The driver then
// tries the next host. A server that withholds its identity is not checked.
func (l *timelines) setUp(ctx context.Context, conn *pgconn.PgConn, mustWrite bool) error {
	results, err := conn.Exec(ctx, sessionQuery(thisServer)).ReadAll()
	if refused, answered := errors.AsType[*pgconn.PgError](err); answered && isRejected(refused) {
		results, err = conn.Exec(ctx, sessionQuery("NULL")).ReadAll()
	}
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return fmt.Errorf("failed to set up the session: %d results", len(results))
	}
	readsOnly, identity := results[0].Rows[0][0], results[0].Rows[0][1]
	if mustWrite && string(readsOnly) == "on" {
		return pgconn.ErrReadOnlyConnection
	}
	if identity == nil {
		return nil
	}
	system, timeline, _ := strings.Cut(string(identity), "-")
	of := server{system, timeline}
	if !l.isCurrent(of) {
		return fmt.Errorf("%w (timeline %s)", errFormerPrimary, timeline)
	}
	conn.CustomData()[identityKey] = of
	return nil
}

// isCurrent reports whether no higher timeline of the same system is known, and stores a higher one.
func (l *timelines) isCurrent(of server) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.highest == nil {
		l.highest = map[string]string{}
	}
	if of.timeline > l.highest[of.system] {
		l.highest[of.system] = of.timeline
	}
	return of.timeline == l.highest[of.system]
}
