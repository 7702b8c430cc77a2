package postgres_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openAt(tb testing.TB, databaseURL string) *postgres.Store {
	tb.Helper()
	s, err := postgres.Open(tb.Context(), databaseURL)
	if err != nil {
		tb.Fatalf("Open: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return s
}

func entry(seq, epoch int64) journal.Entry {
	return journal.Entry{
		Seq: seq, Epoch: epoch, Kind: journal.ModelReplied, Time: time.Unix(1, 2).UTC(), Payload: fmt.Appendf(nil, `{"epoch":%d}`, epoch),
	}
}

// weaken gives a database the defaults that suit a journal least.
func weaken(tb testing.TB, databaseURL string) {
	tb.Helper()
	for _, set := range []string{"default_transaction_isolation TO serializable", "synchronous_commit TO off", "statement_timeout TO 3600000"} {
		postgrestest.Exec(tb, databaseURL, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+set+"', current_database()); END $$")
	}
}

func TestJournalContract(t *testing.T) {
	urls := map[journal.Journal]string{}
	journaltest.Run(t, func(t *testing.T) journal.Journal {
		databaseURL := postgrestest.Database(t)
		// What a server may have as its defaults must not weaken the promises of a journal.
		weaken(t, databaseURL)
		s := openAt(t, databaseURL)
		urls[s] = databaseURL
		return s
	}, func(t *testing.T, j journal.Journal) journal.Journal {
		if err := j.(*postgres.Store).Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		return openAt(t, urls[j])
	})
}

func TestPayloadsComeBackByteForByte(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	large, err := json.Marshal(string(bytes.Repeat([]byte("eight MiB "), 8<<20/10)))
	if err != nil {
		t.Fatal(err)
	}
	var want []journal.Entry
	for i, payload := range []string{
		`{"b":1,  "a":2, "a":3}`, `"\u0000 \ud800 \/"`, `1e400`, "\"\xff not UTF-8\"", "null", string(large),
	} {
		e := entry(int64(i+1), 1)
		e.Payload = json.RawMessage(payload)
		want = append(want, e)
	}
	if err := s.Append(t.Context(), "a", want...); err != nil {
		t.Fatalf("Append: %v", err)
	}
	got, err := s.Load(t.Context(), "a")
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	same := func(a, b journal.Entry) bool { return a.Seq == b.Seq && bytes.Equal(a.Payload, b.Payload) }
	if !slices.EqualFunc(want, got, same) {
		t.Error("what was loaded is not what was appended: a resumed run would see other payloads")
	}
}

func TestDeleteForgetsOneTurn(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	for _, uid := range []string{"a", "b"} {
		if err := s.Append(t.Context(), uid, entry(1, 3), entry(2, 3)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to forget
		if err := s.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.TurnUIDs(t.Context()); err != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("TurnUIDs: %v, %v; want [b]", got, err)
	}
	if got, err := s.Load(t.Context(), "a"); err != nil || len(got) != 0 {
		t.Errorf("Load of a turn that was forgotten: %v, %v; want nothing", got, err)
	}
	if err := s.Append(t.Context(), "a", entry(3, 3)); !errors.Is(err, journal.ErrSequence) {
		t.Errorf("Append of a run that goes on after its turn was forgotten: %v, want ErrSequence", err)
	}
}

func TestCallsAfterClose(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, load := s.Load(t.Context(), "a")
	_, list := s.TurnUIDs(t.Context())
	for name, err := range map[string]error{
		"Append": s.Append(t.Context(), "a", entry(1, 1)), "Load": load, "TurnUIDs": list, "Delete": s.Delete(t.Context(), "a"),
	} {
		if !errors.Is(err, postgres.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
}

func TestProcessesThatOpenANewDatabaseAtOnce(t *testing.T) {
	t.Parallel()
	databaseURL := postgrestest.Database(t)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			s, err := postgres.Open(t.Context(), databaseURL)
			if err != nil {
				t.Errorf("Open: %v, want all to get the new journal", err)
				return
			}
			if err := s.Append(t.Context(), fmt.Sprint(i), entry(1, 1)); err != nil {
				t.Errorf("Append: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	group.Wait()
}

func TestCancelledCalls(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, load := s.Load(ended, "a")
	for name, err := range map[string]error{"Append": s.Append(ended, "a", entry(1, 1)), "Load": load, "Delete": s.Delete(ended, "a")} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the context's error", name, err)
		}
	}
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Errorf("Append after cancelled calls: %v, want the store to go on", err)
	}
}
