package journals

import (
	"context"
	"database/sql"
	"iter"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// pageless is a store whose journals must not be read page by page.
type pageless struct {
	*sqlite.Store
	t *testing.T
}

func (p *pageless) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	p.t.Errorf("want only the first entry of the journal %q to be read", uid)
	return p.Store.Read(ctx, uid, after)
}

// TestSearchReadsOnlyFirstEntries checks that the search for the open Turns of a Session reads only the first entries
// of the journals of other Turns, because a page of each journal of a directory may be large.
func TestSearchReadsOnlyFirstEntries(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = s.Append(t.Context(), "a", journal.Entry{
		Seq: 1, Epoch: 1, Kind: journal.RunStarted, Version: 1, Time: time.Date(2026, 4, 9, 12, 0, 0, 0, time.UTC),
		Payload: []byte(`{"namespace":"default","name":"first","session":{"uid":"chat"}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := &pageless{s, t}
	if title, err := OpenTurn(t.Context(), dir, "other", "default/second"); title != "" || err != nil {
		t.Errorf("OpenTurn = %q, %v; want none", title, err)
	}
	if uid, err := Newest(t.Context(), dir, "default", "first", ""); uid != "a" || err != nil {
		t.Errorf("Newest = %q, %v; want a", uid, err)
	}
	if first, err := s.First(t.Context(), "unknown"); first.Seq != 0 || err != nil {
		t.Errorf("First = %+v, %v; want no entry", first, err)
	}
}

// TestFollowOfAnOlderJournalEnds checks that following ends with an error if a copy of the journal is read, because an
// older version wrote it: no new entry would ever appear.
func TestFollowOfAnOlderJournalEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	migrations := os.DirFS(filepath.Join("..", "..", "store", "sqlite", "migrations"))
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO journal (turn_uid, seq, epoch, kind, time, payload) VALUES
		('a', 1, 1, 'run.started', '1970-01-01T00:00:01Z', '{}')`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := openDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	l := &local{store: s, uid: "a"}
	for _, follow := range []bool{false, true} {
		read, failed := 0, error(nil)
		for _, err := range l.Entries(t.Context(), readapi.Query{Follow: follow}) {
			if err != nil {
				failed = err
				break
			}
			read++
		}
		if read != 1 || (failed != nil) != follow {
			t.Errorf("follow %t: %d entries, error %v; want one entry, and an error only if the journal is followed", follow, read, failed)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
