package journaltest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

func testFeedback(t *testing.T, s RecordStore) {
	older, newer := recordOf("a", 1), recordOf("b", 2)
	newer.Turn = older.Turn
	if _, err := s.AddRecords(t.Context(), older, newer); err != nil {
		t.Fatal(err)
	}
	f := turnrecord.Feedback{User: "ada", Score: "0.5", Comment: "nul \u0000 <quote>", Time: entryTime.UTC()}
	if err := s.AddFeedback(t.Context(), "helpdesk", "unknown", "", f); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("AddFeedback: %v, want ErrNoRecord", err)
	}
	if err := s.AddFeedback(t.Context(), "sales", older.Turn, "", f); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("AddFeedback in another namespace: %v, want ErrNoRecord", err)
	}
	if err := s.AddFeedback(t.Context(), "helpdesk", older.Turn, "c", f); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("AddFeedback to a Turn of the same name without a record: %v, want ErrNoRecord", err)
	}
	if err := s.AddFeedback(t.Context(), "helpdesk", older.Turn, "a", f); err != nil {
		t.Errorf("AddFeedback to the older Turn: %v", err)
	}
	var all sync.WaitGroup
	for i := range turnrecord.MaxFeedback {
		all.Go(func() {
			mine := f
			mine.User = fmt.Sprintf("user %d", i)
			if err := s.AddFeedback(t.Context(), "helpdesk", older.Turn, "b", mine); err != nil {
				t.Errorf("AddFeedback: %v", err)
			}
		})
	}
	all.Wait()
	if err := s.AddFeedback(t.Context(), "helpdesk", older.Turn, "", f); err == nil || errors.Is(err, store.ErrNoRecord) {
		t.Errorf("AddFeedback: %v, want an error, because the record is full", err)
	}
	f.User, f.Score = "user 3", "1"
	if err := s.AddFeedback(t.Context(), "helpdesk", older.Turn, "", f); err != nil {
		t.Errorf("AddFeedback that replaces earlier feedback: %v", err)
	}
	got := records(t, s, store.RecordQuery{})
	if len(got[1].Feedback) != 1 || len(got[0].Feedback) != turnrecord.MaxFeedback {
		t.Fatalf("the newer record has %d feedback entries and the older record %d, want %d and 1",
			len(got[0].Feedback), len(got[1].Feedback), turnrecord.MaxFeedback)
	}
	if diff := cmp.Diff(f, got[0].Feedback[turnrecord.MaxFeedback-1]); diff != "" {
		t.Errorf("the newest feedback: -want +got:\n%s", diff)
	}
}

// testCommentedRecords checks a comment on a Turn that has a record and no journal, because it never ran.
func testCommentedRecords(t *testing.T, s RecordStore) {
	other := recordOf("d", 4)
	other.Namespace = "sales"
	if _, err := s.AddRecords(t.Context(), recordOf("a", 1), recordOf("b", 2), recordOf("c", 3), other); err != nil {
		t.Fatal(err)
	}
	f := turnrecord.Feedback{User: "ada", Score: "1", Comment: `"so, so"`}
	for _, r := range []turnrecord.Record{recordOf("a", 1), recordOf("c", 3), other} {
		if err := s.AddFeedback(t.Context(), r.Namespace, r.Turn, "", f); err != nil {
			t.Fatal(err)
		}
	}
	only := turnrecord.Feedback{User: `"comment":"x"`, Score: "1"}
	if err := s.AddFeedback(t.Context(), "helpdesk", "turn-b", "", only); err != nil {
		t.Fatal(err)
	}
	commented := store.RecordQuery{Commented: true, RecordSelector: store.RecordSelector{Namespace: "helpdesk"}}
	if got := uidsOf(records(t, s, commented)); got != "c a" {
		t.Errorf("records of the namespace with comments: %q, want those of c and a", got)
	}
	if got := uidsOf(records(t, s, store.RecordQuery{Commented: true})); got != "d c a" {
		t.Errorf("records with comments: %q, want those of d, c and a", got)
	}
	if err := s.Retire(t.Context(), entryTime, "c"); err != nil {
		t.Fatal(err)
	}
	if got := uidsOf(records(t, s, commented)); got != "a" {
		t.Errorf("records with comments after c was deleted: %q, want that of a", got)
	}
}
