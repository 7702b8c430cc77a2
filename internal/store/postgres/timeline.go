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

// follow makes a pool use only connections to servers with the highest timeline.
func (l *timelines) follow(config *pgxpool.Config) {
	validate := config.ConnConfig.ValidateConnect
	config.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := validate(ctx, conn); err != nil {
			return err
		}
		return l.check(ctx, conn)
	}
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		of, known := conn.PgConn().CustomData()[identityKey].(server)
		return !known || l.isCurrent(of), nil
	}
}

// check reads the timeline of the server of a new connection. It returns errFormerPrimary if the timeline is less than
// the highest one. The driver then tries the next host. A server that withholds its identity is not checked.
func (l *timelines) check(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, "SELECT "+thisServer).ReadAll()
	if _, answered := errors.AsType[*pgconn.PgError](err); answered {
		return nil
	}
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return fmt.Errorf("failed to read the identity of the server: %d results", len(results))
	}
	system, timeline, _ := strings.Cut(string(results[0].Rows[0][0]), "-")
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
