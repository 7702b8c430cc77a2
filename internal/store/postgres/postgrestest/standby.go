//go:build unix

package postgrestest

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Standby starts an asynchronous standby of this server that accepts reads. The caller must call Close.
func (s *Server) Standby(ctx context.Context) (standby *Server, err error) {
	standby, err = newServer(s.bin)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, standby.Close())
		}
	}()
	if err := s.run(ctx, "pg_basebackup", "-D", standby.data(), "-d", s.URL("postgres"), "-R", "-X", "stream", "-c",
		"fast", "--no-sync"); err != nil {
		return standby, err
	}
	return standby, standby.Resume(ctx)
}

// Promote makes a standby the primary, and returns when it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	return s.run(ctx, "pg_ctl", "promote", "-D", s.data(), "-w", "-s")
}

// Both returns the URL of a database that names this server and another one.
func (s *Server) Both(other *Server, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(user, password), Path: "/" + database,
		RawQuery: url.Values{"host": {s.dir + "," + other.dir}, "port": {"5432,5432"}}.Encode(),
	}
	return u.String()
}

// Pair starts a primary and its standby for one test. They stop when the test ends.
func Pair(tb testing.TB, settings ...string) (primary, standby *Server) {
	tb.Helper()
	primary = NewServer(tb, settings...)
	standby, err := primary.Standby(tb.Context())
	if err != nil {
		tb.Fatalf("failed to start a standby: %v", err)
	}
	tb.Cleanup(func() {
		if err := standby.Close(); err != nil {
			tb.Errorf("failed to stop the standby: %v", err)
		}
	})
	return primary, standby
}

// Set changes a setting of a running server, and returns when all its sessions use the new value.
func (s *Server) Set(tb testing.TB, name, value string) {
	tb.Helper()
	Exec(tb, s.URL("postgres"), "ALTER SYSTEM SET "+name+" = '"+strings.ReplaceAll(value, "'", "''")+"'")
	Exec(tb, s.URL("postgres"), "SELECT pg_reload_conf()")
	// The server starts no session between reading its settings and applying them to the existing sessions.
	for s.show(tb, "SELECT current_setting('"+name+"')") != value {
	}
}

// FailOver stops this server without notice, and promotes a standby.
func (s *Server) FailOver(tb testing.TB, standby *Server) {
	tb.Helper()
	if err := s.Stop(tb.Context(), Immediate); err != nil {
		tb.Fatal(err)
	}
	if err := standby.Promote(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// Disconnect disconnects a standby from this server. It returns when this server sends the standby no more writes.
func (s *Server) Disconnect(tb testing.TB, standby *Server) {
	tb.Helper()
	standby.Set(tb, "primary_conninfo", "")
	for s.show(tb, "SELECT count(*) FROM pg_stat_replication") != "0" {
	}
}

// WaitForStandby waits until the standby has applied all writes of this server.
func (s *Server) WaitForStandby(tb testing.TB, standby *Server) {
	tb.Helper()
	at := s.show(tb, "SELECT pg_current_wal_flush_lsn()")
	for standby.show(tb, "SELECT pg_last_wal_replay_lsn() >= '"+at+"'::pg_lsn") != "true" {
	}
}

// show returns the only value of a query as text. It uses a new connection.
func (s *Server) show(tb testing.TB, query string) (value string) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), s.URL("postgres"))
	if err != nil {
		tb.Fatalf("failed to connect to the server under test: %v", err)
	}
	err = conn.QueryRow(tb.Context(), "SELECT x::text FROM ("+query+") AS q (x)").Scan(&value)
	if err := errors.Join(err, conn.Close(tb.Context())); err != nil {
		tb.Fatalf("failed to execute %q: %v", query, err)
	}
	return value
}
