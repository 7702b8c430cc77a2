package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestIsAway(t *testing.T) {
	good, err := url.Parse(postgrestest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	stranger, unknown := *good, *good
	stranger.User = url.UserPassword("nobody_of_that_name", "wrong")
	unknown.Path = "/nowhere"
	readOnly := postgrestest.Database(t)
	postgrestest.Exec(t, readOnly, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+
		`default_transaction_read_only TO on', current_database()); END $$`)
	gone := postgrestest.NewProxy(t, good.String())
	gone.Shut()
	for name, tc := range map[string]struct {
		reason, url string
		want        bool
	}{
		"no server listens": {"the server may not have started yet", gone.URL, true},
		"unknown host":      {"the host name may appear when the server starts", "postgres://u@db.invalid/d", true},
		"no socket":         {"the server may not have started yet", "postgres://u@/d?host=/nowhere", true},
		"read-only server":  {"a failover may be in progress", readOnly, true},
		"unknown user":      {"the server will reject the user again", stranger.String(), false},
		"unknown database":  {"waiting does not create the database", unknown.String(), false},
		"invalid URL":       {"the URL stays invalid", "postgres://u:p/q@h/d", false},
		"missing certificate": {
			"the configuration stays invalid", "postgres://u@h/d?sslmode=verify-full&sslrootcert=/nowhere.pem",
			false,
		},
		"URL of another database system": {"the URL stays invalid", "mysql://h/d", false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := postgres.Open(t.Context(), tc.url)
			if err == nil {
				t.Fatal(errors.Join(errors.New("Open did not fail"), s.Close()))
			}
			if got := postgres.IsAway(err); got != tc.want {
				t.Errorf("IsAway(%v) = %t, want %t: %s", err, got, tc.want, tc.reason)
			}
		})
	}
}

// withMigration returns the migrations with a further one.
func withMigration(t *testing.T, statements string) fs.FS {
	t.Helper()
	migrations, err := postgres.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	next := fstest.MapFS{"00099_next.sql": {Data: []byte("-- +goose Up\n" + statements + "\n")}}
	if err := fs.WalkDir(migrations, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(migrations, path)
		next[path] = &fstest.MapFile{Data: data}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return next
}

// limits notes which queries have a time limit.
type limits struct{ of map[string]bool }

func (l limits) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	_, l.of[data.SQL] = ctx.Deadline()
	return ctx
}

func (limits) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestMigrationHasNoTimeLimit checks that Open does not stop its own migration, which the next process would begin
// anew, and that the wait for the lock of another process ends.
func TestMigrationHasNoTimeLimit(t *testing.T) {
	const statement = "ALTER TABLE capstan_turn ADD COLUMN next text;"
	l := limits{map[string]bool{}}
	s, err := postgres.OpenTraced(t.Context(), postgrestest.Database(t), withMigration(t, statement), l)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for query, want := range map[string]bool{"SELECT pg_try_advisory_lock($1)": true, statement: false} {
		if got, executed := l.of[query]; !executed || got != want {
			t.Errorf("%s: it has a time limit: %t, executed: %t; want %t", query, got, executed, want)
		}
	}
}

// TestMigrationMayWaitForLocks checks that a migration that could not get a lock in time can be repeated.
func TestMigrationMayWaitForLocks(t *testing.T) {
	t.Parallel() // takes as long as the lock timeout
	databaseURL := postgrestest.Database(t)
	openAt(t, databaseURL) // creates the tables
	next := withMigration(t, "ALTER TABLE capstan_turn ADD COLUMN next text;")
	user, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := user.Exec(t.Context(), "BEGIN; LOCK TABLE capstan_turn IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.OpenWith(t.Context(), databaseURL, next)
	if err == nil {
		t.Fatal(errors.Join(errors.New("Open did not fail, but another process has locked the table"), s.Close()))
	}
	if !postgres.IsAway(err) {
		t.Errorf("IsAway(%v) is false, want true, because the other process may release its lock", err)
	}
	if err := user.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err = postgres.OpenWith(t.Context(), databaseURL, next); err != nil {
		t.Fatalf("Open when the lock is released: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if deadlock := fmt.Errorf("migration: %w", &pgconn.PgError{Code: "40P01"}); !postgres.IsAway(deadlock) {
		t.Error("IsAway of a deadlock is false, want true, because the server has rolled back the migration")
	}
}

func TestCheck(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	p := postgrestest.NewProxy(t, databaseURL)
	s := openAt(t, p.URL)
	if err := s.Check(t.Context()); err != nil {
		t.Fatalf("Check: %v", err)
	}
	postgrestest.Exec(t, databaseURL, `ALTER TABLE capstan_turn RENAME TO hidden`)
	if err := s.Check(t.Context()); err == nil {
		t.Error("Check returned no error for a missing table")
	}
	postgrestest.Exec(t, databaseURL, `ALTER TABLE hidden RENAME TO capstan_turn`)
	p.Shut()
	if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "check the host") {
		t.Errorf("Check of a server that is gone: %v, want an error that says what to check", err)
	}
}

// TestCheckOfFullDisk checks that a server without space for large entries makes the manager unready, although it still
// executes small statements.
func TestCheckOfFullDisk(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	large := func(seq int64) journal.Entry {
		e := entry(seq, 1)
		e.Artifacts = []journal.Artifact{{SHA256: "0123", Bytes: 1 << 10, Data: make([]byte, 1<<10)}}
		return e
	}
	fill := func() {
		t.Helper()
		postgrestest.Exec(t, databaseURL, `CREATE TRIGGER full_disk BEFORE INSERT ON capstan_artifact FOR EACH ROW
			WHEN (octet_length(NEW.data) >= 1024) EXECUTE FUNCTION full_disk()`)
	}
	free := func() { t.Helper(); postgrestest.Exec(t, databaseURL, `DROP TRIGGER full_disk ON capstan_artifact`) }
	wantFull := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "free space on the server's disk") {
			t.Errorf("%s: %v, want an error that says that the disk is full", what, err)
		}
	}
	works := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v, want no error", what, err)
		}
	}
	postgrestest.Exec(t, databaseURL, `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`)
	fill()
	wantFull("Append", s.Append(t.Context(), "a", large(1)))
	wantFull("Check", s.Check(t.Context()))
	works("Append of a small entry", s.Append(t.Context(), "b", entry(1, 1)))
	wantFull("Check after a small append", s.Check(t.Context()))
	free()
	works("Check with enough space", s.Check(t.Context()))
	fill()
	works("Check before an append", s.Check(t.Context()))
	wantFull("Append", s.Append(t.Context(), "a", large(1)))
	free()
	works("Append with enough space", s.Append(t.Context(), "a", large(1)))
	fill()
	works("Check after a large append", s.Check(t.Context()))
	if got := entries(t, s, ""); len(got) != 0 {
		t.Errorf("a check has left %d entries", len(got))
	}
	if a, err := s.Artifact(t.Context(), "", "probe"); !errors.Is(err, journal.ErrNoArtifact) {
		t.Errorf("Artifact of the check: %v, %v; want it to be rolled back", a, err)
	}
}

func TestTarget(t *testing.T) {
	const secret = "s3cr3t"
	for name, tc := range map[string]struct {
		url, database string
		hosts         []string
		bad           bool
	}{
		"TCP": {
			url:   "postgres://me:" + secret + "@db.example:6432/capstan?sslmode=require",
			hosts: []string{"db.example:6432"}, database: "capstan",
		},
		"TLSOrNot": {url: "postgresql://me:" + secret + "@db/capstan", hosts: []string{"db:5432"}, database: "capstan"},
		"Several":  {url: "postgres://me:" + secret + "@a:1,b:2/capstan", hosts: []string{"a:1", "b:2"}, database: "capstan"},
		"Socket": {
			url:   "postgres://me@/capstan?host=/run/postgresql&password=" + secret,
			hosts: []string{"/run/postgresql"}, database: "capstan",
		},
		"Unescaped": {url: "postgres://me:12/" + secret + "@db/capstan", bad: true},
		"Other":     {url: "mysql://me:" + secret + "@db/capstan", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			hosts, database, err := postgres.Target(tc.url)
			if diff := cmp.Diff(tc.hosts, hosts); diff != "" || database != tc.database || (err != nil) != tc.bad {
				t.Errorf("Target = %v, %q, %v; want %v, %q", hosts, database, err, tc.hosts, tc.database)
			}
			if text := strings.Join(append(hosts, database), " "); strings.Contains(text, secret) || err != nil &&
				strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in the hosts and the database %q, or in the error %v", text, err)
			}
		})
	}
}
