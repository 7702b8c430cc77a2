package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestPartOfJournalIsNotRevived checks that a journal of which an unfinished purge has deleted a part stays retired.
func TestPartOfJournalIsNotRevived(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s := openAt(t, path)
	if err := s.Append(t.Context(), "one", entry(1), entry(2)); err != nil {
		t.Fatal(err)
	}
	if err := s.Retire(t.Context(), time.Unix(1000, 0), "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `DELETE FROM journal WHERE seq = 1`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, path)
	if err := s.Revive(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.RetiredUIDs(t.Context(), "", 10); err != nil || !slices.Equal(got, []string{"one"}) {
		t.Errorf("RetiredUIDs: %q, %v; want the journal of which a part is lost", got, err)
	}
}
