package postgres_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// bring brings a database to a version of the schema, from above or from below.
func bring(t *testing.T, databaseURL string, version int64) {
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

func TestJournalsOfTheVersionBeforeGoOn(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	bring(t, databaseURL, 1)
	// What a process of the version before writes, also while one of this version is at work.
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
	for range 2 { // the second time it has been down in between
		s, err := postgres.Open(t.Context(), databaseURL)
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		write(int64(len(want) + 1))
		want = append(want, entry(int64(len(want)+1), 3))
		if err := s.Append(t.Context(), "a", entry(int64(len(want)+1), 2)); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("Append of an epoch that was fenced off before: %v, want ErrFenced", err)
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
		bring(t, databaseURL, 1)
	}
}
