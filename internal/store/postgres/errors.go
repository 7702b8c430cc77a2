package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// advice says what helps against an error of the server, by its SQLSTATE.
var advice = map[string]string{
	"25006": "the URL must name a server that takes writes",
	"28000": "check the user, sslmode and the server's pg_hba.conf",
	"28P01": "check the user and the password",
	"3D000": "create the database, or name one that is there",
	"3F000": "create the schema, or name one that is there in search_path",
	"42501": "grant the user CREATE on the schema, or give it a database that it owns",
	"53100": "make room on the server's disk",
	"53300": "raise the server's max_connections, or lower pool_max_conns in the URL",
	"55P03": "another process holds the turn's row: look for it in pg_stat_activity",
	"57014": "the server is too slow, or an administrator has stopped the statement",
	"57P03": "the server is starting or stopping: wait for it",
}

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
		return fmt.Errorf("%w; %s", err, advice["25006"])
	}
	if unconnected {
		return fmt.Errorf("%w; check the host, the port and sslmode in the URL, that the server runs, and that no network policy is in the way", err)
	}
	return err
}

// passing are the states of a server, by their SQLSTATE, that end by themselves: a start, a stop, a failover, a rush.
var passing = []string{"25006", "53300", "57P01", "57P02", "57P03"}

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
// session, maybe after the commit.
func rejected(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (server.SeverityUnlocalized == "ERROR" || server.SeverityUnlocalized == "" && server.Severity == "ERROR")
}

// lost reports whether an error means that a connection has broken.
func lost(err error) bool {
	if err == nil || rejected(err) {
		return false
	}
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	return !unconnected
}
