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

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// advice maps the SQLSTATE of a server error to a text that says what to do.
var advice = map[string]string{
	"25006": readOnly,
	"25P03": "this process was paused, or cut off from the server, in the middle of a transaction",
	"28000": "check the user, sslmode and the server's pg_hba.conf",
	"28P01": "check the user and the password",
	"3D000": "create the database, or name an existing one",
	"3F000": "create the schema, or name an existing one in search_path",
	"42501": "grant the user CREATE on the schema, or give it a database that it owns",
	"53100": "free space on the server's disk",
	"55000": readOnly,
	"53300": "raise the server's max_connections, or lower pool_max_conns in the URL",
	"55P03": "another transaction holds the lock of a row: look for that transaction in pg_stat_activity",
	"57014": "the server is too slow, or an administrator has cancelled the statement",
	"57P01": "the server is stopping or failing over: wait for it",
	"57P02": "the server has crashed and is restarting: wait for it",
	"57P03": "the server is starting or stopping: wait for it",
}

const readOnly = "this server takes no writes: it is a standby, or was demoted. The URL must lead to the primary. It may " +
	"name all servers, as in HOST1,HOST2; Capstan then uses the server that takes writes"

// standbyWait is the function of PostgreSQL in which a commit waits for standbys. If the wait is cancelled, for example
// with pg_cancel_backend, the server reports the commit as usual, after a warning of this function. The warning has no
// code of its own, and its text is in the language of the server.
const standbyWait = "SyncRepWaitForLSN"

// errUnconfirmed means that a wait for the standbys was cancelled during a call. The commit of this call may be on the
// server's own disk only. With several calls at the same time, the commit may also be that of another call.
var errUnconfirmed = errors.New("the standbys may not have what was written, because an administrator or the server has " +
	"cancelled the wait for them: check the standbys in pg_stat_replication")

// explain adds the matching advice to an error, if there is any. If a connection has failed, explain keeps only the
// cause of the driver's error, because the error itself contains the configuration of the connection.
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
	if _, isShort := errors.AsType[*netpolicy.Shortage](err); isShort || errors.Is(err, errFormerPrimary) || errors.Is(err, errEncoding) {
		return err // says what to do
	}
	if errors.Is(err, pgconn.ErrReadOnlyConnection) {
		return fmt.Errorf("%w; %s", err, readOnly)
	}
	if unconnected {
		return fmt.Errorf("%w; check the host, the port and sslmode in the URL, that the server is running, and "+
			"that no network policy blocks the connection", err)
	}
	return err
}

// temporary lists the SQLSTATEs of a server that is starting, stopping, failing over, or has too many clients. It also
// lists deadlock_detected and lock_not_available: during a rolling upgrade, a migration waits for the locks of
// processes that use the tables. The server has then rolled back the migration, so it can be repeated.
var temporary = []string{"25006", "40P01", "53300", "55000", "55P03", "57P01", "57P02", "57P03"}

// demoted lists the SQLSTATEs of a server that takes no writes: read_only_sql_transaction, and
// object_not_in_prerequisite_state for the position of a server in recovery.
var demoted = []string{"25006", "55000"}

// sessionEnded lists the SQLSTATEs that a server sends when it ends a session: idle_in_transaction_session_timeout,
// admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout. A pooler between this
// process and the server may send them, too, and keep the connection open.
var sessionEnded = []string{"25P03", "57P01", "57P02", "57P03", "57P04", "57P05"}

// IsAway reports whether an error of Open means that the server is temporarily out of reach, or that other processes
// held locks for too long, so that another attempt may succeed. It returns false if the server rejected the user, or if
// the URL or a certificate is invalid.
func IsAway(err error) bool {
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains(temporary, server.Code)
	}
	_, unreachable := errors.AsType[net.Error](err) // unknown host, connection refused, or timeout
	return unreachable || errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isRejected reports whether the server has rejected a statement and rolled it back. It returns false for an error of
// severity FATAL, because the server may end a session after the commit, and for an error of a pooler that has lost the
// server.
func isRejected(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (server.SeverityUnlocalized == "ERROR" || server.SeverityUnlocalized == "" && server.Severity == "ERROR") &&
		!slices.Contains(sessionEnded, server.Code) && !strings.HasPrefix(server.Code, "08")
}

// isFull reports whether a server has no disk space or memory left for a statement: class 53 without
// too_many_connections.
func isFull(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && strings.HasPrefix(server.Code, "53") && server.Code != "53300"
}

// isDemoted reports whether a server has rejected a statement because the server takes no writes. Another server may be
// the primary now.
func isDemoted(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(demoted, server.Code)
}

// isDeadlock reports whether the server has rolled back a transaction because it and others waited for each other.
func isDeadlock(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && server.Code == "40P01"
}

// isConnectionLost reports whether an error means that an established connection is broken, or that its server takes no
// writes. It returns false for an error of Capstan, such as a refusal by a Budget.
func isConnectionLost(err error) bool {
	if _, unconnected := errors.AsType[*pgconn.ConnectError](err); unconnected {
		return false
	}
	if _, answered := errors.AsType[*pgconn.PgError](err); answered {
		return !isRejected(err) || isDemoted(err)
	}
	_, broken := errors.AsType[net.Error](err) // includes a timeout
	return broken || pgconn.SafeToRetry(err) || errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
