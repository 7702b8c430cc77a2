package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestPurgeLeavesRevivedJournals revives a journal after a purge has found it. The purge must delete only the other
// one.
func TestPurgeLeavesRevivedJournals(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // because the test only reads afterwards
	uids := []string{"one", "two"}
	for _, uid := range uids {
		e := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.ModelReplied, Version: 1, Time: time.Unix(1, 0), Payload: []byte(`{}`)}
		if err := s.Append(t.Context(), uid, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Retire(t.Context(), time.Unix(1000, 0), uids...); err != nil {
		t.Fatal(err)
	}
	if err := s.Revive(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.change(t.Context(), func(t *tx) error {
		_, err := t.purge(uids)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[string]int64{"one": 1, "two": 0} {
		if last, err := s.Last(t.Context(), uid); err != nil || last != want {
			t.Errorf("the last entry of journal %q is %d, %v; want %d", uid, last, err, want)
		}
	}
}
