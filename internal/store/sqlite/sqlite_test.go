package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(nobody); path != "" {
		if err := openAsNobody(path); err != nil {
			panic(err)
		}
		return
	}
	if path := os.Getenv(readingNobody); path != "" {
		if err := readAsNobody(path); err != nil {
			panic(err)
		}
		return
	}
	if path := os.Getenv(holder); path != "" {
		if err := holdOpen(path); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func openAt(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func entry(seq int64) journal.Entry {
	return journal.Entry{Seq: seq, Epoch: 1, Kind: journal.Prepared, Version: 1, Time: time.Unix(seq, 0).UTC(), Payload: []byte("{}")}
}

var _ store.Store = (*sqlite.Store)(nil)

// shelf opens stores, and reopens them. It maps each store to the path of its file.
type shelf map[journal.Journal]string

func (f shelf) open(t *testing.T) *sqlite.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "odd ?name#%", "journal.db")
	s := openAt(t, path)
	f[s] = path
	return s
}

func (f shelf) reopen(t *testing.T, j journal.Journal) *sqlite.Store {
	t.Helper()
	if err := j.(*sqlite.Store).Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s := openAt(t, f[j])
	f[s] = f[j]
	return s
}

func TestJournalContract(t *testing.T) {
	f := shelf{}
	journaltest.Run(t,
		func(t *testing.T) journal.Journal { return f.open(t) },
		func(t *testing.T, j journal.Journal) journal.Journal { return f.reopen(t, j) })
}

func TestKeeperContract(t *testing.T) {
	f := shelf{}
	journaltest.RunKeeper(t,
		func(t *testing.T) journaltest.Keeper { return f.open(t) },
		func(t *testing.T, k journaltest.Keeper) journaltest.Keeper { return f.reopen(t, k) })
}

func TestLedgerContract(t *testing.T) {
	f := shelf{}
	journaltest.RunLedger(t, func(t *testing.T) journaltest.LedgerStore { return f.open(t) })
}

func TestLossContract(t *testing.T) {
	f := shelf{}
	journaltest.RunLoss(t,
		func(t *testing.T) journal.Journal { return f.open(t) },
		func(t *testing.T, j journal.Journal, uid string, after int64) {
			db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: f[j]}).EscapedPath()}).String())
			if err != nil {
				t.Fatal(err)
			}
			for _, statement := range []string{
				`DELETE FROM journal WHERE uid = ?1 AND seq > ?2`, `UPDATE head SET seq = ?2 WHERE uid = ?1`,
				`DELETE FROM head WHERE uid = ?1 AND ?2 = 0`,
			} {
				if _, err := db.ExecContext(t.Context(), statement, uid, after); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		})
}

func TestPositionContract(t *testing.T) {
	journaltest.RunPosition(t, func(t *testing.T) func() (journaltest.PositionStore, error) {
		path := filepath.Join(t.TempDir(), "journal.db")
		return func() (journaltest.PositionStore, error) {
			for { // as a manager does: on a busy machine, others may have the file for longer than Open waits
				s, err := sqlite.Open(t.Context(), path)
				if !sqlite.IsInUse(err) || t.Context().Err() != nil {
					return s, err
				}
			}
		}
	})
}

func TestCopiedFileHasSameID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := s.State(t.Context())
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := path + ".copy"
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := openAt(t, copied).State(t.Context()); got != want || err != nil {
		t.Errorf("State: %+v, %v; want %+v", got, err, want)
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "journal.db")
	openAt(t, path)
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s is %v, want %v: a journal holds prompts and answers", filepath.Base(p), info.Mode(), want)
		}
	}
}

func TestCallsAfterClose(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, read := journal.Collect(t.Context(), s, "a")
	_, artifact := s.Artifact(t.Context(), "a", "b")
	_, list := s.UIDs(t.Context(), "", 1)
	_, purge := s.Purge(t.Context(), time.Unix(1, 0), 1)
	_, size := s.Size(t.Context())
	_, state := s.State(t.Context())
	for name, err := range map[string]error{
		"Append": s.Append(t.Context(), "a", entry(2)), "Read": read, "Artifact": artifact, "UIDs": list, "Purge": purge, "Size": size,
		"State":  state,
		"Retire": s.Retire(t.Context(), time.Unix(1, 0), "a"), "Check": s.Check(t.Context()),
	} {
		if !errors.Is(err, sqlite.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

func TestConcurrentOpenOfNewJournal(t *testing.T) {
	for range 3 {
		path := filepath.Join(t.TempDir(), "journal.db")
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				s, err := sqlite.Open(t.Context(), path)
				if err != nil {
					t.Errorf("Open: %v, want all calls to open the new file", err)
					return
				}
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		group.Wait()
	}
}

// TestReadsDoNotDelayOthers checks that the store writes, and that its check works, while all connections for the reads
// of runs or for lists are in use, and that neither kind needs the connections of the other.
func TestReadsDoNotDelayOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		busy func(s *sqlite.Store) *sql.DB
		call func(ctx context.Context, s *sqlite.Store) error
	}{
		"lists while runs read": {(*sqlite.Store).Reads, func(ctx context.Context, s *sqlite.Store) error {
			_, _, records := s.Records(ctx, store.RecordQuery{})
			_, memories := s.ListMemories(ctx, store.MemoryQuery{})
			return errors.Join(records, memories)
		}},
		"reads of runs while people list": {(*sqlite.Store).Lists, func(ctx context.Context, s *sqlite.Store) error {
			_, err := journal.Collect(ctx, s, "a")
			_, until := s.DeletedUntil(ctx, "") // the record keeper needs it, and must not wait for lists
			return errors.Join(err, until)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
			db := tc.busy(s)
			if db.Stats().MaxOpenConnections < 1 {
				t.Fatal("the number of connections is not limited")
			}
			for range db.Stats().MaxOpenConnections {
				c, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close() //nolint:errcheck // because the test ends
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.Append(ctx, "a", entry(1)); err != nil {
				t.Errorf("Append: %v", err)
			}
			if err := tc.call(ctx, s); err != nil {
				t.Errorf("the call for others: %v", err)
			}
			_, err := s.State(ctx)
			if err := errors.Join(err, s.Check(ctx)); err != nil {
				t.Errorf("State and Check: %v", err)
			}
		})
	}
}

// TestTrimmingDoesNotWaitForLists checks that the deletion of surplus records does not use the connections of lists,
// which may wait for a minute.
func TestTrimmingDoesNotWaitForLists(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	for i := range 2 {
		r := turnrecord.Record{UID: fmt.Sprint(i), Namespace: "helpdesk", Turn: fmt.Sprint(i), Completed: time.Unix(int64(i), 0)}
		if _, err := s.AddRecords(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Lists().Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.TrimRecords(t.Context(), 1, 10); n != 1 || err != nil {
		t.Errorf("TrimRecords without the connections of lists: %d, %v; want 1 deleted record", n, err)
	}
}

// TestFeedbackIsFoundOutsideOfTheWriter checks that the search for the record does not need the writer, and that it
// uses an index. The writer serves all Turns.
func TestFeedbackIsFoundOutsideOfTheWriter(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	plan := planOf(t, s, sqlite.RecordOfTurn, "helpdesk", "t", "")
	if !strings.Contains(plan, "INDEX turn_record_turn (namespace=? AND turn=?)") {
		t.Errorf("the plan of the search is %q, want a search with the index turn_record_turn", plan)
	}
	writer, err := s.Pools()[0].Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close() //nolint:errcheck // because the test ends
	f := turnrecord.Feedback{User: "ada", Score: "1"}
	if err := s.AddFeedback(t.Context(), "helpdesk", "t", "", f); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("AddFeedback while the writer is busy: %v, want ErrNoRecord", err)
	}
}

// TestAppendsSurviveTheLossOfPower checks that all connections wait until the drive has written its cache, on macOS,
// too.
func TestAppendsSurviveTheLossOfPower(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	for i, pool := range s.Pools() {
		for setting, want := range map[string]int{"synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1} {
			var have int
			if err := pool.QueryRowContext(t.Context(), "PRAGMA "+setting).Scan(&have); err != nil || have != want {
				t.Errorf("pool %d: %s is %d (error %v), want %d", i, setting, have, err, want)
			}
		}
	}
}
