package postgres_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
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

// counted is a connection that counts what it sends.
type counted struct {
	net.Conn

	writes *atomic.Int64
}

// Write sends data.
func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// TestRetireOfManyComments checks that Retire needs as many round trips for many commented Turns as for one. Otherwise
// the time limit of its transaction would be too short for them, each time.
func TestRetireOfManyComments(t *testing.T) {
	var writes atomic.Int64
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return counted{c, &writes}, err
	}
	s, err := postgres.OpenDialing(t.Context(), postgrestest.Database(t), dial)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // because Close never fails
	at := time.Unix(1000, 0)
	retire := func(prefix string, number int) int64 {
		var uids []string
		for i := range number {
			uid := fmt.Sprint(prefix, i)
			uids = append(uids, uid)
			e := entry(1, 1)
			e.Kind = journal.Finalized
			e.TurnRecord = &turnrecord.Record{UID: uid, Namespace: "helpdesk", Turn: uid, Agent: "desk", Reason: "Completed", Completed: at}
			if err := s.Append(t.Context(), uid, e); err != nil {
				t.Fatal(err)
			}
			comment := turnrecord.Feedback{User: "ada", Score: "1", Comment: "wrong printer", Time: at}
			if err := s.AddFeedback(t.Context(), "helpdesk", uid, uid, comment); err != nil {
				t.Fatal(err)
			}
		}
		before := writes.Load()
		if err := s.Retire(t.Context(), at, uids...); err != nil {
			t.Fatal(err)
		}
		return writes.Load() - before
	}
	retire("prepares the statements ", 1)
	if one, many := retire("one ", 1), retire("many ", 40); many != one {
		t.Errorf("Retire sends %d times for 40 commented Turns, want %d as for one", many, one)
	}
	records, _, err := s.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(records) != 42 {
		t.Fatalf("%d records, %v; want 42", len(records), err)
	}
	for _, r := range records {
		if len(r.Feedback) != 1 || r.Feedback[0].Comment != "" || r.Feedback[0].Score != "1" {
			t.Errorf("the feedback on a deleted Turn is %+v, want the score without the comment", r.Feedback)
		}
	}
}

// TestPurgeLeavesRevivedJournals revives a small and a large journal that a purge has already found. The purge must not
// delete them, and must delete the other one.
func TestPurgeLeavesRevivedJournals(t *testing.T) {
	for name, number := range map[string]int{"small": 2, "large": 1100} {
		t.Run(name, func(t *testing.T) {
			databaseURL := postgrestest.Database(t)
			s := openAt(t, databaseURL)
			var entries []journal.Entry
			for seq := range int64(number) {
				entries = append(entries, entry(seq+1, 1))
			}
			for _, uid := range []string{"one", "two"} {
				if err := s.Append(t.Context(), uid, entries...); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Retire(t.Context(), time.Unix(1000, 0), "one", "two"); err != nil {
				t.Fatal(err)
			}
			admin, err := pgx.Connect(t.Context(), databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test ends
			if _, err := admin.Exec(t.Context(), `BEGIN; SELECT FROM capstan_turn WHERE turn_uid = 'one' FOR NO KEY UPDATE`); err != nil {
				t.Fatal(err)
			}
			purged := make(chan error, 1)
			go func() { _, err := s.Purge(t.Context(), time.Unix(2000, 0), 10); purged <- err }()
			for waiting := 0; waiting == 0; {
				if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted
					AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := admin.Exec(t.Context(), `UPDATE capstan_turn SET retired_at = NULL WHERE turn_uid = 'one'; COMMIT`); err != nil {
				t.Fatal(err)
			}
			if err := <-purged; err != nil {
				t.Fatal(err)
			}
			left, err := journal.Collect(t.Context(), s, "one")
			if err != nil || len(left) != number {
				t.Errorf("the revived journal has %d entries, %v; want %d", len(left), err, number)
			}
			if left, err := journal.Collect(t.Context(), s, "two"); err != nil || len(left) != 0 {
				t.Errorf("the retired journal has %d entries, %v; want none", len(left), err)
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
