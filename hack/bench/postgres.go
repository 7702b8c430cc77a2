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
	// serverVariable is the environment variable with the URL of a PostgreSQL server. programsVariable is the
	// environment variable with the directory of PostgreSQL's programs. The tests use the same variables.
	serverVariable   = "CAPSTAN_TEST_POSTGRES"
	programsVariable = "CAPSTAN_POSTGRES_BIN"
)

// errNoPostgres is the error if no PostgreSQL server is available. It explains how to provide one.
var errNoPostgres = fmt.Errorf("no PostgreSQL is available: run through make, or set %s to the directory that "+
	"hack/postgres/get.sh prints, or %s to the URL of a server whose user may create databases", programsVariable, serverVariable)

// havePostgres reports whether a PostgreSQL server is available.
func havePostgres() bool { return os.Getenv(serverVariable) != "" || os.Getenv(programsVariable) != "" }

// startPostgres returns the URL in serverVariable. If the variable is not set, it starts a server that runs until the
// harness stops. The server waits for the disk (fsync), as in production.
func (b *bench) startPostgres(ctx context.Context) (string, error) {
	if named := os.Getenv(serverVariable); named != "" {
		return named, nil
	}
	if !havePostgres() {
		return "", errNoPostgres
	}
	b.logf("starting PostgreSQL")
	server, err := postgrestest.Start(ctx, os.Getenv(programsVariable))
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
		// Leave out the error, because it contains the URL, which may contain a password.
		return "", fmt.Errorf("%s is not a URL", serverVariable)
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

// skipsExecutors reports whether the phase executors is skipped because no PostgreSQL server is available. If --only
// names the phase, it is never skipped.
func (b *bench) skipsExecutors() bool {
	return !havePostgres() && !slices.Contains(b.only, phaseExecutors)
}
