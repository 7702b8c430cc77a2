package sqlite_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// migrateTo migrates a file up or down to a version of the schema and calls do.
func migrateTo(t *testing.T, path string, version int64, do func(db *sql.DB)) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	migrations, err := sqlite.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	if _, err := provider.DownTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	do(db)
}

// TestMigrationIsLogged checks that the log shows the migration of a store, which may take minutes, and nothing about a
// new store or a current one.
func TestMigrationIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	for _, tc := range []struct {
		name string
		want []string
	}{
		{"new", nil},
		{"current", nil},
		{"older", []string{"Migrating the schema of the store", "Migrated the schema of the store"}},
	} {
		if tc.name == "older" {
			migrateTo(t, path, 1, func(*sql.DB) {})
		}
		var lines []string
		log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
		s, err := sqlite.Open(logr.NewContext(t.Context(), log), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if !slices.EqualFunc(lines, tc.want, func(line, want string) bool {
			return strings.Contains(line, want) && strings.Contains(line, `"from"=1`)
		}) {
			t.Errorf("the log of a store that is %s has %q, want %q", tc.name, lines, tc.want)
		}
	}
}

func TestJournalsOfPreviousVersionContinue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	migrateTo(t, path, 1, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO journal (turn_uid, seq, epoch, kind, time, payload) VALUES
			('a', 1, 1, 'prepared', '1970-01-01T00:00:01Z', '{}'),
			('a', 2, 3, 'prepared', '1970-01-01T00:00:02.5Z', '[1]'),
			('b', 1, 9, 'prepared', '1970-01-01T00:00:01Z', '{}')`); err != nil {
			t.Fatal(err)
		}
	})
	want := []journal.Entry{entry(1), entry(2)}
	want[1].Epoch, want[1].Time, want[1].Payload = 3, time.Unix(2, 5e8).UTC(), []byte("[1]")
	for range 2 { // each pass ends with a migration of the schema down to version 1
		s := openAt(t, path)
		got, err := journal.Collect(t.Context(), s, "a")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("entries (error %v): -want +got:\n%s", err, diff)
		}
		if uids, err := s.UIDs(t.Context(), "", 10); err != nil || !slices.Equal(uids, []string{"a", "b"}) {
			t.Errorf("UIDs: %v, %v; want a and b", uids, err)
		}
		size, err := s.Size(t.Context())
		if diff := cmp.Diff(store.Size{Journals: 2, Entries: int64(len(want) + 1), Bytes: size.Bytes}, size); diff != "" || err != nil {
			t.Errorf("Size (error %v): -want +got:\n%s", err, diff)
		}
		next := entry(int64(len(want) + 1))
		next.Epoch = 2
		if err := s.Append(t.Context(), "a", next); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("Append with an older epoch: %v, want ErrFenced", err)
		}
		next.Epoch = 3
		if err := s.Append(t.Context(), "a", next); err != nil {
			t.Errorf("Append: %v", err)
		}
		want = append(want, next)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		migrateTo(t, path, 1, func(*sql.DB) {})
	}
}

// TestTasksOfPreviousVersionAreCompleted checks that the migration sets the requester and the Session of waiting tasks
// whose Turns have records.
func TestTasksOfPreviousVersionAreCompleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	migrateTo(t, path, 10, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO turn_record (uid, namespace, turn, agent, session, requester, reason,
				completed, details) VALUES ('a', 'n', 'one', 'desk', 'talk', 'ada', 'Completed', 1, '{}');
			INSERT INTO task (uid, kind, namespace, turn, agent, created_at, due_at) VALUES ('a', 'evaluation', 'n', 'one', 'desk', 1, 1),
				('a/memory', 'memory', 'n', 'one', 'desk', 1, 2), ('b', 'evaluation', 'n', 'two', 'desk', 1, 3)`); err != nil {
			t.Fatal(err)
		}
	})
	s := openAt(t, path)
	var got [][]string
	for range 3 {
		k, err := s.ClaimTask(t.Context(), task.Search{Now: time.Unix(9, 0), Until: time.Unix(99, 0)})
		if err != nil || k == nil {
			t.Fatalf("ClaimTask: %v, %v", k, err)
		}
		got = append(got, []string{k.Key(), k.Session, k.Requester})
	}
	if diff := cmp.Diff([][]string{{"a", "talk", "ada"}, {"a/memory", "talk", "ada"}, {"b", "", ""}}, got); diff != "" {
		t.Errorf("tasks with their session and requester: -want +got:\n%s", diff)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenDoesNotChangeNewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	migrateTo(t, path, 2, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`); err != nil {
			t.Fatal(err)
		}
	})
	s, err := sqlite.Open(t.Context(), path)
	if err == nil {
		t.Fatal(errors.Join(errors.New("Open succeeded with a newer schema"), s.Close()))
	}
	if !errors.Is(err, journal.ErrNewer) {
		t.Errorf("Open: %v, want ErrNewer", err)
	}
	wantErrorText(t, "Open", err, path, "version 99", "knows is 16", "run that version, or a later one")
}

func TestReaderOfOlderAndNewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	migrateTo(t, path, 1, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO journal (turn_uid, seq, epoch, kind, time, payload) VALUES
			('a', 1, 1, 'prepared', '1970-01-01T00:00:01Z', '{}')`); err != nil {
			t.Fatal(err)
		}
	})
	r, err := sqlite.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatalf("OpenReader: %v, want it to read a file of the previous version", err)
	}
	got, err := journal.Collect(t.Context(), r, "a")
	if diff := cmp.Diff([]journal.Entry{entry(1)}, got); diff != "" || err != nil {
		t.Errorf("entries (error %v): -want +got:\n%s", err, diff)
	}
	if uids, err := r.UIDs(t.Context(), "", 10); err != nil || !slices.Equal(uids, []string{"a"}) {
		t.Errorf("UIDs: %v, %v; want a", uids, err)
	}
	if !r.IsCopy() {
		t.Error("the reader has opened the file itself")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	s := openAt(t, path)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	migrateTo(t, path, 4, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`); err != nil {
			t.Fatal(err)
		}
	})
	if r, err := sqlite.OpenReader(t.Context(), path); !errors.Is(err, journal.ErrNewer) {
		t.Errorf("OpenReader = %v, %v; want ErrNewer", r, err)
	}
}

// TestReaderDoesNotMigrate checks that a reader leaves a file with an older schema as it is, because programs of the
// older version could not open it afterwards, and that it deletes its copy.
func TestReaderDoesNotMigrate(t *testing.T) {
	temporary, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"TMPDIR", "TMP", "TEMP"} {
		t.Setenv(name, temporary)
	}
	path := filepath.Join(dir, "journal.db")
	migrateTo(t, path, 1, func(*sql.DB) {})
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := sqlite.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the reader has changed the file (%v)", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the directory has the files %v (%v), want the journal only", files, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(temporary); err != nil || len(files) != 0 {
		t.Errorf("the reader has left %v (%v)", files, err)
	}
}

// TestCopiesOfKilledReadersAreRemoved checks that a reader removes the copies of readers that were killed, and no other
// directory.
func TestCopiesOfKilledReadersAreRemoved(t *testing.T) {
	temporary := t.TempDir()
	for _, name := range []string{"TMPDIR", "TMP", "TEMP"} {
		t.Setenv(name, temporary)
	}
	path := filepath.Join(t.TempDir(), "journal.db")
	migrateTo(t, path, 1, func(*sql.DB) {})
	open := func() *sqlite.Reader {
		t.Helper()
		r, err := sqlite.OpenReader(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	makeOld := func(dir string) {
		t.Helper()
		long := time.Now().Add(-time.Hour)
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
	}
	// leave creates a directory that no process uses.
	leave := func(name, lock string) (dir string) {
		t.Helper()
		dir = filepath.Join(temporary, name)
		err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, lock), nil, 0o600),
			os.WriteFile(filepath.Join(dir, "copy.db"), nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		makeOld(dir)
		return dir
	}
	running := open()
	used, err := filepath.Glob(filepath.Join(temporary, "capstan-read-*"))
	if err != nil || len(used) != 1 {
		t.Fatalf("the copies are %v (%v), want one", used, err)
	}
	makeOld(used[0])
	killed := leave("capstan-read-1", "owner.lock")
	elsewhere := leave("capstan-read-4", "owner.lock") // locks may not exclude the processes of another host
	if err := os.WriteFile(filepath.Join(elsewhere, "owner.lock"), []byte("process 1 on elsewhere.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := []string{used[0], leave("capstan-read-2", "other"), leave("other-1", "owner.lock"), elsewhere}
	starting := leave("capstan-read-3", "owner.lock")
	if err := os.Chtimes(starting, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := open().Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(killed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy of a killed reader: %v, want it removed", err)
	}
	for _, dir := range append(kept, starting) {
		if files, err := os.ReadDir(dir); err != nil || len(files) < 2 {
			t.Errorf("%s has the files %v (%v), want it kept", filepath.Base(dir), files, err)
		}
	}
	if err := running.Close(); err != nil {
		t.Error(err)
	}
}

// TestChangelogNamesTheSchema checks that the changelog names the newest version of the schema, which older programs
// refuse, and that both stores have this version.
func TestChangelogNamesTheSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Glob(filepath.Join("migrations", "*.sql"))
	if err != nil || len(ours) == 0 {
		t.Fatalf("the migrations are %v, %v", ours, err)
	}
	newest := filepath.Base(ours[len(ours)-1])
	if _, err := os.Stat(filepath.Join("..", "postgres", "migrations", newest)); err != nil {
		t.Errorf("PostgreSQL lacks the newest migration: %v", err)
	}
	digits, _, _ := strings.Cut(newest, "_")
	version, err := strconv.Atoi(digits)
	if want := fmt.Sprintf("The store has a new schema (version %d)", version); err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the changelog lacks the text %q (%v)", want, err)
	}
}
