package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestInterruptedRetireIsRepeated makes Retire fail at each of the tables that it changes. The journal must not be
// marked as retired, because the next sweep retires only journals that UIDs returns.
func TestInterruptedRetireIsRepeated(t *testing.T) {
	for _, table := range []string{"capstan_budget_hold", "capstan_task", "capstan_turn", "capstan_memory", "capstan_observation"} {
		t.Run(table, func(t *testing.T) {
			databaseURL := postgrestest.Database(t)
			s := openAt(t, databaseURL)
			at := time.Unix(1000, 0)
			e := entry(1, 1)
			e.Kind = journal.Finalized
			e.Tasks = []task.Task{{UID: "one", Kind: task.Learn, Namespace: "helpdesk", Turn: "one", Agent: "desk", Created: at}}
			if err := s.Append(t.Context(), "one", e); err != nil {
				t.Fatal(err)
			}
			rename := `ALTER TABLE %s RENAME TO %s`
			if table == "capstan_turn" { // UIDs reads this table, so rename only a column
				rename = `ALTER TABLE %[1]s RENAME COLUMN retired_at TO %[2]s`
			}
			postgrestest.Exec(t, databaseURL, fmt.Sprintf(rename, table, "away"))
			if err := s.Retire(t.Context(), at, "one"); err == nil {
				t.Fatal("Retire succeeded without a table")
			}
			back := fmt.Sprintf(`ALTER TABLE away RENAME TO %s`, table)
			if table == "capstan_turn" {
				back = `ALTER TABLE capstan_turn RENAME COLUMN away TO retired_at`
			}
			postgrestest.Exec(t, databaseURL, back)
			left := func() []string {
				uids, err := s.UIDs(t.Context(), "", 10)
				if err != nil {
					t.Fatal(err)
				}
				return uids
			}
			if got := left(); !slices.Equal(got, []string{"one"}) {
				t.Fatalf("the journals for the next sweep are %q, want the journal that Retire has not marked", got)
			}
			if err := s.Retire(t.Context(), at, "one"); err != nil || len(left()) != 0 {
				t.Fatalf("Retire: %v, %q are left; want none", err, left())
			}
			k, err := s.ClaimTask(t.Context(), task.Search{Now: at.Add(time.Hour), Until: at.Add(2 * time.Hour)})
			if err != nil || k != nil {
				t.Errorf("ClaimTask: %+v, %v; want no task of a retired journal", k, err)
			}
		})
	}
}

// TestPartOfJournalIsNotRevived checks that a journal of which an unfinished purge has deleted a part stays retired.
func TestPartOfJournalIsNotRevived(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	if err := s.Append(t.Context(), "one", entry(1, 1), entry(2, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Retire(t.Context(), time.Unix(1000, 0), "one"); err != nil {
		t.Fatal(err)
	}
	postgrestest.Exec(t, databaseURL, `DELETE FROM capstan_journal WHERE seq = 1`)
	if err := s.Revive(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.RetiredUIDs(t.Context(), "", 10); err != nil || !slices.Equal(got, []string{"one"}) {
		t.Errorf("RetiredUIDs: %q, %v; want the journal of which a part is lost", got, err)
	}
}
