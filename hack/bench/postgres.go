package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

const (
	// namedServer is the environment variable with the URL of a PostgreSQL server, and postgresPrograms the one with
	// the folder of the programs of PostgreSQL. The tests use the same variables.
	namedServer      = "CAPSTAN_TEST_POSTGRES"
	postgresPrograms = "CAPSTAN_POSTGRES_BIN"
)

// errNoPostgres tells the user how to provide a PostgreSQL server.
var errNoPostgres = fmt.Errorf("no PostgreSQL is available: run through make, or set %s to the folder that hack/postgres/get.sh prints, "+
	"or %s to the URL of a server whose user may create databases", postgresPrograms, namedServer)

// havePostgres reports whether a PostgreSQL is available.
func havePostgres() bool { return os.Getenv(namedServer) != "" || os.Getenv(postgresPrograms) != "" }

// startPostgres returns the URL of the server in namedServer. If there is none, it starts a server that runs until the
// harness stops, and that waits for the disk as in production.
func (b *bench) startPostgres(ctx context.Context) (string, error) {
	if named := os.Getenv(namedServer); named != "" {
		return named, nil
	}
	if !havePostgres() {
		return "", errNoPostgres
	}
	b.say("starting PostgreSQL")
	server, err := postgrestest.Start(ctx, os.Getenv(postgresPrograms))
	if err != nil {
		return "", fmt.Errorf("failed to start PostgreSQL: %w", err)
	}
	b.harness.OnStop(server.Close)
	return server.URL("postgres"), nil
}

// newDatabase creates an empty database on a server and returns its URL. The database is dropped when the harness
// stops.
func (b *bench) newDatabase(ctx context.Context, server string) (string, error) {
	location, err := url.Parse(server)
	if err != nil {
		// the error is left out because it shows the URL, which may contain a password
		return "", fmt.Errorf("%s is not a URL", namedServer)
	}
	name := "capstan_bench_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := execute(ctx, server, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	b.harness.OnStop(func() error {
		return execute(context.WithoutCancel(ctx), server, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	location.Path = "/" + name
	return location.String(), nil
}

// execute runs a statement on a new connection.
func execute(ctx context.Context, server, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("failed to connect to PostgreSQL: %w", err)
	}
	_, err = conn.Exec(ctx, statement)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("failed to execute %q: %w", statement, err)
	}
	return nil
}

// skipsExecutors reports whether the phase executors is left out because there is no PostgreSQL. If --only names the
// phase, it is never left out.
func (b *bench) skipsExecutors() bool {
	return !havePostgres() && !slices.Contains(b.only, phaseExecutors)
}
