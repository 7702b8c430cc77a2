package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver with which the test locks and copies the file

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// postgresVariable is the environment variable that names the directory of PostgreSQL's programs.
const postgresVariable = "CAPSTAN_POSTGRES_BIN"

// keptJournal is a journal that the test has opened for reading.
type keptJournal interface {
	journal.Journal
	Accounts(ctx context.Context, at time.Time) ([]budget.Account, error)
	store.RecordPages
	Close() error
}

// journalStore is a store in which managers keep their journals.
type journalStore interface {
	// url returns the value for --store.
	url() string
	// open opens the store for reading while managers use it.
	open(ctx context.Context) (keptJournal, error)
	// outage makes the store fail for the duration d and returns a description of the failure.
	outage(ctx context.Context, d time.Duration) (how string, err error)
}

// copiedStore is a store that can be replaced by an older copy of itself.
type copiedStore interface {
	journalStore
	// backUp makes a copy and returns a function that replaces the store with the copy. No manager may use the
	// store during the replacement.
	backUp(ctx context.Context) (restore func(context.Context) error, err error)
}

// postgresStore is a PostgreSQL server that the test has started.
type postgresStore struct {
	server *postgrestest.Server
	// outages counts the outages: every second one is a demotion.
	outages atomic.Int64
}

// startPostgres starts a server that stops together with the rig. Commits need not reach the disk, because this test
// kills processes and never the machine.
func (r *rig) startPostgres(ctx context.Context) (journalStore, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	server, err := postgrestest.Start(context.WithoutCancel(ctx), bin, "fsync=off", "full_page_writes=off")
	if err != nil {
		return nil, fmt.Errorf("failed to start PostgreSQL: %w", err)
	}
	r.harness.OnStop(server.Close)
	return &postgresStore{server: server}, nil
}

func (s *postgresStore) url() string { return s.server.URL("postgres") }

func (s *postgresStore) open(ctx context.Context) (keptJournal, error) {
	return postgres.Open(ctx, s.url())
}

// backUp makes a dump of the database.
func (s *postgresStore) backUp(ctx context.Context) (func(context.Context) error, error) {
	return s.server.Dump(ctx, "postgres")
}

// outage either crashes the server and starts it again after d, or demotes it for d.
func (s *postgresStore) outage(ctx context.Context, d time.Duration) (string, error) {
	ctx = context.WithoutCancel(ctx) // restart the server even if ctx has ended
	if s.outages.Add(1)%2 == 0 {
		return "PostgreSQL demoted, with its connections kept", s.demote(ctx, d)
	}
	if err := s.server.Stop(ctx, postgrestest.Immediate); err != nil {
		return "", err
	}
	pause(ctx, d)
	return "PostgreSQL crashed", s.server.Resume(ctx)
}

// demote makes the server reject writes for the duration d and keep all connections, like a primary that a failover has
// demoted.
func (s *postgresStore) demote(ctx context.Context, d time.Duration) error {
	if err := configure(ctx, s.server, "ALTER SYSTEM SET default_transaction_read_only = on"); err != nil {
		return err
	}
	pause(ctx, d)
	return configure(ctx, s.server, "ALTER SYSTEM RESET default_transaction_read_only")
}

// sqliteStore is an SQLite file.
type sqliteStore struct{ path string }

func (r *rig) newSQLite(name string) journalStore {
	return &sqliteStore{path: filepath.Join(r.dir, name, "journal.db")}
}

func (s *sqliteStore) url() string { return "sqlite://" + s.path }

func (s *sqliteStore) open(ctx context.Context) (keptJournal, error) {
	return sqlite.OpenReader(ctx, s.path)
}

// backUp makes a consistent copy of the file.
func (s *sqliteStore) backUp(ctx context.Context) (_ func(context.Context) error, err error) {
	file := s.path + ".copy"
	db, err := sql.Open("sqlite", "file:"+s.path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", file); err != nil {
		return nil, fmt.Errorf("failed to copy the journal: %w", err)
	}
	return func(context.Context) error {
		for _, suffix := range []string{"-wal", "-shm"} {
			if err := os.Remove(s.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return os.Rename(file, s.path)
	}, nil
}

// outage locks the file for a while, so that no manager can write to it.
func (s *sqliteStore) outage(ctx context.Context, d time.Duration) (_ string, err error) {
	ctx = context.WithoutCancel(ctx)
	db, err := sql.Open("sqlite", "file:"+s.path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ExecContext(ctx, "BEGIN EXCLUSIVE"); err != nil {
		return "", fmt.Errorf("failed to lock the journal file: %w", err)
	}
	pause(ctx, d)
	_, err = conn.ExecContext(ctx, "ROLLBACK")
	return "SQLite file locked by another process", err
}
