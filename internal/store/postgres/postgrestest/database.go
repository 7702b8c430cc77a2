//go:build unix

package postgrestest

import (
	"context"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// namedServer is the environment variable with the URL of a server for tests. The user in the URL must have
	// permission to create databases.
	namedServer = "CAPSTAN_TEST_POSTGRES"
	// programs is the environment variable with the directory of initdb, pg_ctl and postgres.
	programs = "CAPSTAN_POSTGRES_BIN"
)

// shared returns the server that all tests of this process share. The server stops when the process exits.
var shared = sync.OnceValues(func() (*Server, error) {
	return Start(context.Background(), os.Getenv(programs), "fsync=off", "full_page_writes=off")
})

// Database returns the URL of a new, empty database, which is dropped when the test ends.
func Database(tb testing.TB) string {
	tb.Helper()
	if named := os.Getenv(namedServer); named != "" {
		return database(tb, named)
	}
	mustHavePrograms(tb)
	s, err := shared()
	if err != nil {
		tb.Fatalf("failed to start PostgreSQL: %v", err)
	}
	return database(tb, s.URL("postgres"))
}

// Restartable returns the URL of a new, empty database, and a function that restarts its server. Only this test
// uses the server. The server of CAPSTAN_TEST_POSTGRES is not restarted; instead, all connections to the database
// are closed, which looks the same to a client.
func Restartable(tb testing.TB, settings ...string) (databaseURL string, restart func(Mode)) {
	tb.Helper()
	if named := os.Getenv(namedServer); named != "" {
		databaseURL = database(tb, named)
		return databaseURL, func(Mode) { closeConnections(tb, named, databaseURL) }
	}
	s := NewServer(tb, settings...)
	return s.URL("postgres"), func(mode Mode) {
		tb.Helper()
		if err := s.Stop(tb.Context(), mode); err != nil {
			tb.Fatal(err)
		}
		if err := s.Resume(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
}

// NewServer starts a server for one test. The server stops when the test ends.
func NewServer(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	mustHavePrograms(tb)
	s, err := Start(tb.Context(), os.Getenv(programs), settings...)
	if err != nil {
		tb.Fatalf("failed to start PostgreSQL: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("failed to stop PostgreSQL: %v", err)
		}
	})
	return s
}

// Exec runs a statement on a new connection.
func Exec(tb testing.TB, databaseURL, statement string, args ...any) {
	tb.Helper()
	execute(tb.Context(), tb, databaseURL, statement, args...)
}

func execute(ctx context.Context, tb testing.TB, databaseURL, statement string, args ...any) {
	tb.Helper()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		tb.Fatalf("failed to connect to the server under test: %v", err)
	}
	_, err = conn.Exec(ctx, statement, args...)
	if closing := conn.Close(ctx); err == nil {
		err = closing
	}
	if err != nil {
		tb.Fatalf("failed to execute %q: %v", statement, err)
	}
}

func mustHavePrograms(tb testing.TB) {
	tb.Helper()
	if os.Getenv(programs) == "" {
		tb.Fatalf("there is no PostgreSQL for the tests: run `make test`, or set %s to the directory that hack/postgres/get.sh prints, "+
			"or %s to the URL of a server", programs, namedServer)
	}
}

// database creates a database on a server.
func database(tb testing.TB, server string) string {
	tb.Helper()
	name := "test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatalf("%s is not a URL", namedServer)
	}
	Exec(tb, server, "CREATE DATABASE "+name)
	ctx := context.WithoutCancel(tb.Context()) // the context of the test has ended at cleanup
	tb.Cleanup(func() { execute(ctx, tb, server, "DROP DATABASE "+name+" WITH (FORCE)") })
	u.Path = "/" + name
	return u.String()
}

// closeConnections closes all connections to a database.
func closeConnections(tb testing.TB, server, databaseURL string) {
	tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	Exec(tb, server, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1", strings.TrimPrefix(u.Path, "/"))
}
