package postgres_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// migrateTo migrates a database up or down to a version of the schema.
func migrateTo(t *testing.T, databaseURL string, version int64) {
	t.Helper()
	db, err := goose.OpenDBWithDriver("pgx", databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	migrations, err := postgres.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations, goose.WithTableName(postgres.Versions))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	if _, err := provider.DownTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}

// TestSchemaBeforeTheTables creates a schema with the name of the user, which comes first in the default search_path.
// No empty journal may be created there silently.
func TestSchemaBeforeTheTables(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	name := u.User.Username()
	postgrestest.Exec(t, databaseURL, `CREATE SCHEMA `+name)
	_, err = postgres.Open(t.Context(), databaseURL)
	for _, want := range []string{`schema "public" has the tables`, "search_path=public", "search_path=" + name} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open: %v, want an error with %q", err, want)
		}
	}
	for schema, want := range map[string]int64{"public": 1, name: 0} {
		query := u.Query()
		query.Set("search_path", schema)
		other := *u
		other.RawQuery = query.Encode()
		if last, err := openAt(t, other.String()).Last(t.Context(), "a"); err != nil || last != want {
			t.Errorf("with search_path=%s, the last entry is %d, %v; want %d", schema, last, err, want)
		}
	}
}

func TestJournalsOfPreviousVersionContinue(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	migrateTo(t, databaseURL, 1)
	// write appends an entry like a process of the previous version, which may use the database at the same time.
	write := func(seq int64) {
		postgrestest.Exec(t, databaseURL, `WITH head AS (
				INSERT INTO capstan_turn (turn_uid, seq, epoch) VALUES ('a', $1, 3)
				ON CONFLICT (turn_uid) DO UPDATE SET seq = excluded.seq, epoch = excluded.epoch
			)
			INSERT INTO capstan_journal (turn_uid, seq, epoch, kind, time, payload)
			VALUES ('a', $1, 3, 'model.replied', '1970-01-01T00:00:01.000000002Z', '{"epoch":3}')`, seq)
	}
	write(1)
	want := []journal.Entry{entry(1, 3)}
	for range 2 { // each pass ends with a migration of the schema down to version 1
		s, err := postgres.Open(t.Context(), databaseURL)
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		write(int64(len(want) + 1))
		want = append(want, entry(int64(len(want)+1), 3))
		if err := s.Append(t.Context(), "a", entry(int64(len(want)+1), 2)); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("Append with an older epoch: %v, want ErrFenced", err)
		}
		next := entry(int64(len(want)+1), 3)
		if err := s.Append(t.Context(), "a", next); err != nil {
			t.Errorf("Append: %v", err)
		}
		want = append(want, next)
		if diff := cmp.Diff(want, entries(t, s, "a")); diff != "" {
			t.Errorf("entries: -want +got:\n%s", diff)
		}
		if uids, err := s.UIDs(t.Context(), "", 10); err != nil || !slices.Equal(uids, []string{"a"}) {
			t.Errorf("UIDs: %v, %v; want a", uids, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		migrateTo(t, databaseURL, 1)
	}
}

// TestTasksOfPreviousVersionAreCompleted checks the tasks that an older version adds before or after the migration.
// They get the requester and the Session of the records of their Turns.
func TestTasksOfPreviousVersionAreCompleted(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	migrateTo(t, databaseURL, 10)
	// write adds a waiting task and the record of its Turn, like a process of version 10.
	write := func(uid string) {
		postgrestest.Exec(t, databaseURL, `INSERT INTO capstan_record (uid, namespace, turn, agent, session, requester, reason, completed,
			details) VALUES ($1, 'n', 'one', 'desk', 'talk', 'ada', 'Completed', now(), '{}')`, uid)
		postgrestest.Exec(t, databaseURL, `INSERT INTO capstan_task (uid, kind, namespace, turn, agent, created_at, due_at)
			VALUES ($1 || '/memory', 'memory', 'n', 'one', 'desk', 1, 1)`, uid)
	}
	write("a")
	s, err := postgres.Open(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(9, 0)
	k, err := s.ClaimTask(t.Context(), task.Search{Now: now, Until: now.Add(time.Hour)})
	if err != nil || k == nil || k.Session != "talk" || k.Requester != "ada" {
		t.Errorf("ClaimTask: %+v, %v; want the session and the requester of the record", k, err)
	}
	write("b")
	if _, err := s.DeleteMemories(t.Context(), store.MemorySelector{Namespace: "n", Requester: "ada"}, now, 1); err != nil {
		t.Fatal(err)
	}
	if use, err := s.TaskUse(t.Context()); len(use) > 0 || err != nil {
		t.Errorf("TaskUse: %v, %v; want no waiting task after the deletion", use, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenDoesNotChangeNewerSchema(t *testing.T) {
	for name, base := range map[string]int64{
		"all migrations of this program, and a newer one":   newest,
		"all but the last of this program, and a newer one": newest - 1,
	} {
		t.Run(name, func(t *testing.T) {
			databaseURL := postgrestest.Database(t)
			migrateTo(t, databaseURL, base)
			postgrestest.Exec(t, databaseURL, `INSERT INTO `+postgres.Versions+` (version_id, is_applied) VALUES (99, true)`)
			s, err := postgres.Open(t.Context(), databaseURL)
			if err == nil {
				t.Fatal(errors.Join(errors.New("Open succeeded with a newer schema"), s.Close()))
			}
			if !errors.Is(err, journal.ErrNewer) || postgres.IsAway(err) {
				t.Errorf("Open: %v, want ErrNewer, for which IsAway is false", err)
			}
			for _, want := range []string{
				"version 99", fmt.Sprintf("knows is %d", newest), "run that version, or a later one", "restore a backup",
				"upgrade this one, too",
			} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Open: %v, want it to say %q", err, want)
				}
			}
		})
	}
}

// newest is the version of the schema that this program creates.
const newest = 17

// TestConcurrentMigrationByTwoVersions checks that the newer program works in any order of migrations. The older
// program either opens the database before it has the newer schema, or returns ErrNewer.
func TestConcurrentMigrationByTwoVersions(t *testing.T) {
	t.Parallel()
	all, err := postgres.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	older := fstest.MapFS{}
	for _, name := range []string{"00001_journal.sql", "00002_retention.sql"} {
		data, err := fs.ReadFile(all, name)
		if err != nil {
			t.Fatal(err)
		}
		older[name] = &fstest.MapFile{Data: data}
	}
	for range 4 {
		databaseURL := postgrestest.Database(t)
		var group sync.WaitGroup
		for i := range 4 {
			group.Go(func() {
				dir := all
				if i%2 == 0 {
					dir = older
				}
				s, err := postgres.OpenWith(t.Context(), databaseURL, dir)
				if err == nil {
					err = s.Close()
				} else if i%2 == 0 && errors.Is(err, journal.ErrNewer) {
					err = nil
				}
				if err != nil {
					t.Errorf("Open of program %d: %v", i, err)
				}
			})
		}
		group.Wait()
		s, err := postgres.Open(t.Context(), databaseURL)
		if err != nil {
			t.Fatalf("Open: %v, want the complete newest schema", err)
		}
		if st, err := s.State(t.Context()); err != nil || st.ID == "" {
			t.Errorf("State: %+v, %v; want a state with an ID", st, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
