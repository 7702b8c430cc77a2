//go:build unix

package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// writes are calls of a store that has the Turns "turn-0" to "turn-9", of which the last five are retired. Each call
// changes several pages in one transaction.
var writes = map[string]func(ctx context.Context, s *sqlite.Store) error{
	"Append": func(ctx context.Context, s *sqlite.Store) error {
		e := large(2)
		e.Ledger = &budget.Change{Outcome: &budget.Amount{Tokens: 1}}
		e.TurnNumber = &journal.TurnNumber{TurnUID: "turn-1", Number: 7}
		return s.Append(ctx, "turn-0", e)
	},
	"Retire": func(ctx context.Context, s *sqlite.Store) error {
		return s.Retire(ctx, time.Unix(50, 0), "turn-0", "turn-1", "turn-2")
	},
	"Purge": func(ctx context.Context, s *sqlite.Store) error {
		_, err := s.Purge(ctx, time.Unix(50, 0), 100)
		return err
	},
	"RaiseAccounts": func(ctx context.Context, s *sqlite.Store) error {
		return s.RaiseAccounts(ctx, budget.Account{Key: budget.Key{Budget: "other", End: 60}, Tokens: 9})
	},
	"AddRecords": func(ctx context.Context, s *sqlite.Store) error {
		_, err := s.AddRecords(ctx, turnrecord.Record{UID: "new", Namespace: "helpdesk", Turn: "new", Completed: time.Unix(9, 0)})
		return err
	},
	"PurgeRecords": func(ctx context.Context, s *sqlite.Store) error {
		_, err := s.PurgeRecords(ctx, time.Unix(50, 0), 100)
		return err
	},
	"DeleteMemories": func(ctx context.Context, s *sqlite.Store) error {
		_, err := s.DeleteMemories(ctx, store.MemorySelector{Namespace: "helpdesk", Requester: "ada"}, time.Unix(50, 0), 100)
		return err
	},
}

// failingDisk is the environment variable that is set in the child process whose disk fails.
const failingDisk = "CAPSTAN_TEST_FAILING_DISK"

// TestDiskFailsDuringEachKindOfWrite makes the disk fail at the first byte of a transaction, and in the middle of its
// second page. The error must say what to do, nothing may have changed, and the call must succeed afterwards. The disk
// fails for all files of a process, also for the log that go test has its process write. So a child process runs the
// calls.
func TestDiskFailsDuringEachKindOfWrite(t *testing.T) {
	if os.Getenv(failingDisk) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), failingDisk+"=true")
		output, err := child.CombinedOutput()
		if passed := strings.Count(string(output), "    --- PASS: "+t.Name()+"/"); err != nil || passed != 2*len(writes) {
			t.Errorf("%d cases passed in the child process, want %d: %v\n%s", passed, 2*len(writes), err, output)
		}
		return
	}
	for name, write := range writes {
		for _, bytes := range []uint64{0, 6000} {
			t.Run(fmt.Sprintf("%s after %d bytes", name, bytes), func(t *testing.T) {
				s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
				for i := range 10 {
					uid := fmt.Sprintf("turn-%d", i)
					e := entry(1)
					e.Ledger = &budget.Change{Reserve: []budget.Reservation{{
						Hold: budget.Hold{Key: budget.Key{Budget: "day", End: 60}, Tokens: 2, Unknown: budget.Amount{Tokens: 1}},
					}}}
					e.TurnRecord = &turnrecord.Record{UID: uid, Namespace: "helpdesk", Turn: uid, Requester: "ada", Completed: e.Time}
					e.Tasks = []task.Task{{UID: uid, Kind: task.Learn, Namespace: "helpdesk", Turn: uid, Requester: "ada", Created: e.Time}}
					if err := s.Append(t.Context(), uid, e); err != nil {
						t.Fatal(err)
					}
					if i >= 5 {
						if err := s.Retire(t.Context(), time.Unix(40, 0), uid); err != nil {
							t.Fatal(err)
						}
					}
				}
				db := s.SingleConns()[0]
				before := rows(t, db)
				pragma(t, []*sql.DB{db}, "wal_checkpoint(TRUNCATE)") // so that the next write is the first of the log
				restore := limitFileSize(t, bytes)
				err := write(t.Context(), s)
				restore()
				wantErrorText(t, name, err, "the disk reported an error", "check the volume and its limits")
				if diff := cmp.Diff(before, rows(t, db)); diff != "" {
					t.Errorf("the failed write has changed rows: -before +after:\n%s", diff)
				}
				if err := write(t.Context(), s); err != nil {
					t.Errorf("%s when the disk works again: %v", name, err)
				}
				if diff := cmp.Diff(before, rows(t, db)); diff == "" {
					t.Error("the write has changed nothing")
				}
				checkWorks(t, s, "turn-4", 1)
			})
		}
	}
}

// rows returns the rows of all tables that the writes change.
func rows(t *testing.T, db *sql.DB) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for table := range strings.FieldsSeq("head journal artifact total turn_record record_deleted task budget budget_hold") {
		found, err := db.QueryContext(t.Context(), `SELECT * FROM `+table)
		if err != nil {
			t.Fatal(err)
		}
		columns, err := found.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for found.Next() {
			values, into := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			if err := found.Scan(into...); err != nil {
				t.Fatal(err)
			}
			row := ""
			for i, v := range values {
				row += fmt.Sprintf("%s: %.100q; ", columns[i], v)
			}
			all[table] = append(all[table], row)
		}
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}
