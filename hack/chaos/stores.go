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

	_ "modernc.org/sqlite" // the driver by which the test holds the file

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// postgresVariable names the folder of PostgreSQL's programs.
const postgresVariable = "CAPSTAN_POSTGRES_BIN"

// keptJournal is a journal that was opened to be read.
type keptJournal interface {
	journal.Journal
	Close() error
}

// journalStore is where managers keep their journals.
type journalStore interface {
	// url is what --store takes.
	url() string
	// open opens it beside the managers.
	open(ctx context.Context) (keptJournal, error)
	// outage makes it fail for a while. how says in which way.
	outage(ctx context.Context, d time.Duration) (how string, err error)
}

// copiedStore is a store of which an older copy can take the place.
type copiedStore interface {
	journalStore
	// copied makes a copy of now, and returns what puts it in the place of the store. No manager may use the store then.
	copied(ctx context.Context) (restore func(context.Context) error, err error)
}

// postgresStore is a server of the test's own.
type postgresStore struct {
	server *postgrestest.Server
	// outages counts them: every other one is a demotion.
	outages atomic.Int64
}

// startPostgres starts a server that is stopped with the rest. Commits need not reach the disk: processes die here, and the
// machine does not.
func (r *rig) startPostgres(ctx context.Context) (journalStore, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	server, err := postgrestest.Start(context.WithoutCancel(ctx), bin, "fsync=off", "full_page_writes=off")
	if err != nil {
		return nil, fmt.Errorf("failed to start PostgreSQL: %w", err)
	}
	r.stack.OnStop(server.Close)
	return &postgresStore{server: server}, nil
}

func (s *postgresStore) url() string { return s.server.URL("postgres") }

func (s *postgresStore) open(ctx context.Context) (keptJournal, error) {
	return postgres.Open(ctx, s.url())
}

// copied is a dump of the database.
func (s *postgresStore) copied(ctx context.Context) (func(context.Context) error, error) {
	return s.server.Dump(ctx, "postgres")
}

// outage crashes the server, and starts it again after a while; or it demotes it.
func (s *postgresStore) outage(ctx context.Context, d time.Duration) (string, error) {
	ctx = context.WithoutCancel(ctx) // what was stopped is started again
	if s.outages.Add(1)%2 == 0 {
		return "PostgreSQL demoted, with its connections kept", s.demoted(ctx, d)
	}
	if err := s.server.Stop(ctx, postgrestest.Immediate); err != nil {
		return "", err
	}
	pause(ctx, d)
	return "PostgreSQL crashed", s.server.Resume(ctx)
}

// demoted makes the server refuse to write for a while, as a primary does that a failover has demoted, and keeps all connections.
func (s *postgresStore) demoted(ctx context.Context, d time.Duration) error {
	if err := configure(ctx, s.server, "ALTER SYSTEM SET default_transaction_read_only = on"); err != nil {
		return err
	}
	pause(ctx, d)
	return configure(ctx, s.server, "ALTER SYSTEM RESET default_transaction_read_only")
}

// sqliteStore is a file.
type sqliteStore struct{ path string }

func (r *rig) newSQLite(name string) journalStore {
	return &sqliteStore{path: filepath.Join(r.dir, name, "journal.db")}
}

func (s *sqliteStore) url() string { return "sqlite://" + s.path }

func (s *sqliteStore) open(ctx context.Context) (keptJournal, error) {
	return sqlite.OpenReader(ctx, s.path)
}

// copied is a copy of the file as it is at one moment.
func (s *sqliteStore) copied(ctx context.Context) (_ func(context.Context) error, err error) {
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

// outage holds the file for itself for a while, so that nobody can write to it.
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
		return "", fmt.Errorf("failed to hold the file of the journal: %w", err)
	}
	pause(ctx, d)
	_, err = conn.ExecContext(ctx, "ROLLBACK")
	return "SQLite's file held by another process", err
}
