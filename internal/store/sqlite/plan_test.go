package sqlite_test

import (
	"path/filepath"
	"strings"
	"testing"

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
