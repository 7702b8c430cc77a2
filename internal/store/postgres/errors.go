package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// advice says what helps against an error of the server, by its SQLSTATE.
var advice = map[string]string{
	"25006": readOnly,
	"28000": "check the user, sslmode and the server's pg_hba.conf",
	"28P01": "check the user and the password",
	"3D000": "create the database, or name one that is there",
	"3F000": "create the schema, or name one that is there in search_path",
	"42501": "grant the user CREATE on the schema, or give it a database that it owns",
	"53100": "make room on the server's disk",
	"55000": readOnly,
	"53300": "raise the server's max_connections, or lower pool_max_conns in the URL",
	"55P03": "another process holds the turn's row: look for it in pg_stat_activity",
	"57014": "the server is too slow, or an administrator has stopped the statement",
	"57P01": "the server is stopping or failing over: wait for it",
	"57P02": "the server has crashed and starts again: wait for it",
	"57P03": "the server is starting or stopping: wait for it",
}

const readOnly = "this server takes no writes: it is a standby, or was demoted. The URL must lead to the primary; it may name all servers, " +
	"as in HOST1,HOST2, and the one that takes writes is used"

// explain adds to an error what to do about it. Of a failed connection it keeps the causes alone: the driver's error holds
// all that is in the URL.
func explain(err error) error {
	connect, unconnected := errors.AsType[*pgconn.ConnectError](err)
	if unconnected {
		err = fmt.Errorf("failed to connect to PostgreSQL: %w", connect.Unwrap())
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		if help := advice[server.Code]; help != "" {
			return fmt.Errorf("%w; %s", err, help)
		}
		return err
	}
	if errors.Is(err, pgconn.ErrReadOnlyConnection) {
		return fmt.Errorf("%w; %s", err, readOnly)
	}
	if unconnected {
		return fmt.Errorf("%w; check the host, the port and sslmode in the URL, that the server runs, and that no network policy is in the way", err)
	}
	return err
}

// passing are the states of a server, by their SQLSTATE, that end by themselves: a start, a stop, a failover, a rush.
var passing = []string{"25006", "53300", "55000", "57P01", "57P02", "57P03"}

// demoted are the answers of a server that takes no writes, by their SQLSTATE: read_only_sql_transaction, and
// object_not_in_prerequisite_state for the position of a server in recovery.
var demoted = []string{"25006", "55000"}

// gone are the answers that mean that a session has ended or is of no use any more, by their SQLSTATE: admin_shutdown, crash_shutdown,
// cannot_connect_now, database_dropped, idle_session_timeout. A server says so when it ends the session; a pooler between it and this
// process may say so and keep the connection.
var gone = []string{"57P01", "57P02", "57P03", "57P04", "57P05"}

// IsAway reports whether an error of Open means that the server is out of reach for now, so that it may be of use to try
// again. It is false if the server has answered and refused, and if the URL or a certificate is wrong.
func IsAway(err error) bool {
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains(passing, server.Code)
	}
	_, unreachable := errors.AsType[net.Error](err) // no such host, nobody listens, no answer in time
	return unreachable || errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// rejected reports whether the server has refused a statement and rolled it back. FATAL is no such thing: it ends the
// session, maybe after the commit. Nor is an answer that comes from a pooler that has lost the server.
func rejected(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (server.SeverityUnlocalized == "ERROR" || server.SeverityUnlocalized == "" && server.Severity == "ERROR") &&
		!slices.Contains(gone, server.Code) && !strings.HasPrefix(server.Code, "08")
}

// isDemoted reports whether a server has refused a statement because it takes no writes. Another one may have become the primary.
func isDemoted(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(demoted, server.Code)
}

// lost reports whether an error means that a connection has broken, or leads to a server that is of no use any more.
func lost(err error) bool {
	if err == nil || rejected(err) && !isDemoted(err) {
		return false
	}
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	return !unconnected
}
