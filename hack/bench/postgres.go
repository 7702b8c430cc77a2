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
	// namedServer and postgresPrograms are the environment variables with the URL of a PostgreSQL and with the folder of
	// one's programs. The tests take them too.
	namedServer      = "CAPSTAN_TEST_POSTGRES"
	postgresPrograms = "CAPSTAN_POSTGRES_BIN"
)

// errNoPostgres says what to do.
var errNoPostgres = fmt.Errorf("there is no PostgreSQL: run through make, or set %s to the folder that hack/postgres/get.sh prints, "+
	"or %s to the URL of a server whose user may make databases", postgresPrograms, namedServer)

// havePostgres reports whether there is a PostgreSQL to work with.
func havePostgres() bool { return os.Getenv(namedServer) != "" || os.Getenv(postgresPrograms) != "" }

// startPostgres returns the URL of a server: the one that is named, or one that runs until the stack is stopped. It writes
// to disk as it would in earnest.
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
	b.stack.OnStop(server.Close)
	return server.URL("postgres"), nil
}

// newDatabase makes an empty database on a server and returns its URL. The database goes when the stack is stopped.
func (b *bench) newDatabase(ctx context.Context, server string) (string, error) {
	location, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("%s is not a URL", namedServer) // without the error: it shows the URL, which may hold a password
	}
	name := "capstan_bench_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := execute(ctx, server, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	b.stack.OnStop(func() error {
		return execute(context.WithoutCancel(ctx), server, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	location.Path = "/" + name
	return location.String(), nil
}

// execute runs a statement on a connection of its own.
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

// skipsExecutors reports whether the phase with PostgreSQL is left out, because nobody has asked for it by name.
func (b *bench) skipsExecutors() bool {
	return !havePostgres() && !slices.Contains(b.only, phaseExecutors)
}
