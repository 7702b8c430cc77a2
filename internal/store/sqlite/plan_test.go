package sqlite_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// planOf returns the steps of the plan of a statement, one per line.
func planOf(t *testing.T, s *sqlite.Store, statement string, args ...any) string {
	t.Helper()
	rows, err := s.Reads().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil || len(steps) == 0 {
		t.Fatalf("the plan of %s has %d steps: %v", statement, len(steps), err)
	}
	return strings.Join(steps, "\n")
}

// TestExpiryReadsNoTable checks that the end of a time to live reads the tables with their indexes only.
func TestExpiryReadsNoTable(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	plan := planOf(t, s, sqlite.ExpiryMatters, "uid", 1)
	if !strings.Contains(plan, "INDEX memory_session (session_uid=?)") || strings.Contains(plan, "SCAN memory") {
		t.Errorf("the plan is %q, want a search with the index memory_session", plan)
	}
}

// TestSearchForSurplusRecords checks that the search for surplus records reads an index in its order.
func TestSearchForSurplusRecords(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	const index = "SEARCH turn_record USING COVERING INDEX turn_record_namespace "
	if plan, want := planOf(t, s, sqlite.NewestSurplus, "helpdesk", 3), index+"(namespace=?)"; plan != want {
		t.Errorf("the plan of the search for the newest surplus record is %q, want %q", plan, want)
	}
	plan := planOf(t, s, sqlite.OldestSurplus, "helpdesk", 1, "uid", 500)
	if want := index + "(namespace=? AND (completed,uid)<(?,?))"; plan != want {
		t.Errorf("the plan of the search for the oldest surplus records is %q, want %q", plan, want)
	}
}

// TestTrimmingContinues runs the shared test.
func TestTrimmingContinues(t *testing.T) {
	journaltest.TrimmingContinues(t, openAt(t, filepath.Join(t.TempDir(), "journal.db")))
}

// TestTrimmingBesideAnotherDeletion checks that TrimRecords keeps enough records if another call deletes a record at
// the same time.
func TestTrimmingBesideAnotherDeletion(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	for i := range 3 {
		r := turnrecord.Record{UID: fmt.Sprint(i), Namespace: "helpdesk", Turn: fmt.Sprint(i), Completed: time.Unix(int64(i), 0)}
		if _, err := s.AddRecords(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	writer, err := s.Pools()[0].Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	calls.Go(func() {
		n, err := s.DeleteRecords(t.Context(), store.RecordSelector{Namespace: "helpdesk", Turn: "2"}, 10)
		if n != 1 || err != nil {
			t.Errorf("DeleteRecords: %d, %v; want 1", n, err)
		}
	})
	for s.Pools()[0].Stats().WaitCount == 0 { // until the deletion waits for the connection of the writer
		runtime.Gosched()
	}
	calls.Go(func() {
		if n, err := s.TrimRecords(t.Context(), 2, 10); n != 0 || err != nil {
			t.Errorf("TrimRecords: %d, %v; want 0, because another call has deleted the surplus", n, err)
		}
	})
	for range 1000 { // give TrimRecords the time to find a surplus, if it does not wait
		if _, err := s.Unrecorded(t.Context(), []string{"0"}); err != nil {
			t.Error(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	calls.Wait()
}
