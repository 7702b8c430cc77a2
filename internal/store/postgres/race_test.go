package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestOneOfConcurrentAppendsWins(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	stores := []*postgres.Store{openAt(t, databaseURL), openAt(t, databaseURL)}
	const rounds, batch = 100, 3
	var won atomic.Int64
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for seq := int64(1); seq <= rounds*batch; {
				entries := make([]journal.Entry, 0, batch)
				for i := range int64(batch) {
					e := entry(seq+i, 1)
					e.Payload = fmt.Appendf(nil, `"writer %d"`, w)
					entries = append(entries, e)
				}
				switch err := stores[w%2].Append(t.Context(), "a", entries...); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, journal.ErrSequence):
					t.Errorf("Append: %v, want ErrSequence or nil", err)
					return
				}
				seq += batch // one of the writers has written these sequence numbers
			}
		})
	}
	group.Wait()
	got := entries(t, stores[0], "a")
	if len(got) != rounds*batch || won.Load() != rounds {
		t.Fatalf("%d entries of %d successful appends, want %d of %d", len(got), won.Load(), rounds*batch, rounds)
	}
	for i, e := range got {
		if e.Seq != int64(i+1) || string(e.Payload) != string(got[i-i%batch].Payload) {
			t.Fatalf("entry %d has seq %d and payload %s, want each append to be contiguous", i+1, e.Seq, e.Payload)
		}
	}
}

func TestNewerEpochFencesConcurrentWriter(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	zombie, heir := openAt(t, databaseURL), openAt(t, databaseURL)
	for round := range 20 {
		uid := fmt.Sprintf("turn-%d", round)
		var taken atomic.Int64 // the last sequence number that the old epoch has written
		var old sync.WaitGroup
		old.Go(func() {
			for seq := int64(1); ; seq++ {
				err := zombie.Append(t.Context(), uid, entry(seq, 1))
				if errors.Is(err, journal.ErrFenced) {
					return
				}
				if err != nil {
					t.Errorf("Append of the old epoch: %v, want ErrFenced or nil", err)
					return
				}
				taken.Store(seq)
			}
		})
		for err := journal.ErrSequence; errors.Is(err, journal.ErrSequence); { // until the newer epoch writes an entry
			if err = heir.Append(t.Context(), uid, entry(taken.Load()+1, 2)); err != nil && !errors.Is(err, journal.ErrSequence) {
				t.Errorf("Append of the newer epoch: %v, want ErrSequence or nil", err)
			}
		}
		old.Wait()
		got := entries(t, heir, uid)
		for i, e := range got {
			if e.Seq != int64(i+1) || i > 0 && e.Epoch < got[i-1].Epoch {
				t.Fatalf("entry %d of %d has seq %d and epoch %d: the old epoch wrote after the newer one", i+1, len(got), e.Seq, e.Epoch)
			}
		}
		if last := got[len(got)-1]; last.Epoch != 2 {
			t.Fatalf("the last entry has epoch %d, want 2", last.Epoch)
		}
	}
}

func TestConcurrentPurgesDeleteAll(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	one, other := openAt(t, databaseURL), openAt(t, databaseURL)
	at := time.Unix(1, 0)
	for range 10 {
		var uids []string
		for i := range 30 {
			uid := fmt.Sprint("turn-", i)
			e := entry(1, 1)
			e.Artifacts = []journal.Artifact{journal.NewArtifact([]byte(uid))}
			if err := one.Append(t.Context(), uid, e, entry(2, 1)); err != nil {
				t.Fatal(err)
			}
			uids = append(uids, uid)
		}
		if err := one.Retire(t.Context(), at, uids...); err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for _, s := range []*postgres.Store{one, other} {
			group.Go(func() {
				if _, err := s.Purge(t.Context(), at, 100); err != nil {
					t.Errorf("Purge: %v, want no error, although another Purge runs at the same time", err)
				}
			})
		}
		group.Wait()
		for _, uid := range uids {
			if got := entries(t, one, uid); len(got) != 0 {
				t.Fatalf("%d entries of %s are left, want none", len(got), uid)
			}
		}
	}
}

func TestAppendIsOneRoundTrip(t *testing.T) {
	p := postgrestest.NewProxy(t, postgrestest.Database(t))
	s := openAt(t, p.URL)
	// The first append of each kind also prepares its statement, and an append after a pause also checks the
	// connection.
	least := int64(100)
	for seq := range int64(10) {
		first := entry(2*seq+1, 1)
		first.Artifacts = []journal.Artifact{journal.NewArtifact(fmt.Append(nil, seq)), journal.NewArtifact([]byte("the same each time"))}
		before := p.Requests.Load()
		if err := s.Append(t.Context(), "a", first, entry(2*seq+2, 1)); err != nil {
			t.Fatal(err)
		}
		least = min(least, p.Requests.Load()-before)
	}
	if least != 1 {
		t.Errorf("an append of two entries with artifacts took %d round trips, want 1", least)
	}
}

// TestAppendWithLedgerTakesFewRoundTrips counts the round trips of appends that change Budgets, on new connections, on
// which each statement must be prepared first, and on used ones.
//
// The transaction must not begin before the entries are sent: the server ends a transaction that waits for the next
// statement for longer than idle_in_transaction_session_timeout, and large entries take long on a slow network.
func TestAppendWithLedgerTakesFewRoundTrips(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	request := func(seq int64, key string) journal.Entry {
		e := entry(seq, 1)
		e.Kind, e.Ledger = journal.ModelRequested, &budget.Change{Reserve: []budget.Reservation{{
			Hold: budget.Hold{Key: budget.Key{Budget: key, End: 60}, Tokens: 2}, Limits: budget.Limits{Tokens: new(int64(1 << 40))},
		}}}
		return e
	}
	settle := func(seq int64) journal.Entry {
		e := entry(seq, 1)
		e.Ledger = &budget.Change{Outcome: &budget.Amount{Tokens: 1}}
		return e
	}
	refused := request(1, "closed")
	refused.Ledger.Reserve[0].Limits.Tokens = new(int64(1))
	for name, tc := range map[string]struct {
		first []journal.Entry // appended on another connection before
		entry journal.Entry
		// cold and warm are the maximum numbers of round trips on a new and on a used connection.
		cold, warm int64
		want       error
	}{
		"a request":                {nil, request(1, "x"), 6, 3, nil},
		"the end of a request":     {[]journal.Entry{request(1, "x")}, settle(2), 6, 3, nil},
		"nothing to settle":        {[]journal.Entry{entry(1, 1)}, settle(2), 3, 2, nil},
		"an entry of another run":  {[]journal.Entry{entry(1, 1)}, request(1, "x"), 5, 3, journal.ErrSequence},
		"a request without budget": {nil, refused, 5, 3, &budget.Refusal{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := postgrestest.NewProxy(t, databaseURL)
			other, s := openAt(t, databaseURL), openAt(t, p.URL)
			if err := s.Check(t.Context()); err != nil { // connects
				t.Fatal(err)
			}
			for i, limit := range []int64{tc.cold, tc.warm, tc.warm} {
				uid := fmt.Sprintf("%s %d", name, i)
				if len(tc.first) > 0 {
					if err := other.Append(t.Context(), uid, tc.first...); err != nil {
						t.Fatal(err)
					}
				}
				before := p.Requests.Load()
				err := s.Append(t.Context(), uid, tc.entry)
				if _, isRefused := errors.AsType[*budget.Refusal](tc.want); isRefused {
					if _, ok := errors.AsType[*budget.Refusal](err); !ok {
						t.Errorf("Append: %v, want a refusal by the Budget", err)
					}
				} else if !errors.Is(err, tc.want) {
					t.Errorf("Append: %v, want %v", err, tc.want)
				}
				if got := p.Requests.Load() - before; got > limit {
					t.Errorf("append number %d took %d round trips, want at most %d", i+1, got, limit)
				}
			}
		})
	}
}

// TestProbeBeginsWithItsContent checks that the transaction of a probe for free space is never idle: see
// TestAppendWithLedgerTakesFewRoundTrips.
func TestProbeBeginsWithItsContent(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	p := postgrestest.NewProxy(t, databaseURL)
	s := openAt(t, p.URL)
	postgrestest.Exec(t, databaseURL, `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`)
	least := int64(100)
	for range 3 {
		postgrestest.Exec(t, databaseURL, `CREATE TRIGGER full_disk BEFORE INSERT ON capstan_journal FOR EACH ROW
			EXECUTE FUNCTION full_disk()`)
		if err := s.Append(t.Context(), "a", entry(1, 1)); err == nil {
			t.Fatal("Append: no error, want the disk to be full")
		}
		postgrestest.Exec(t, databaseURL, `DROP TRIGGER full_disk ON capstan_journal`)
		// After an error, the next statement on the connection costs another round trip.
		if _, err := s.Last(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		before := p.Requests.Load()
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		least = min(least, p.Requests.Load()-before)
	}
	if least > 2 {
		t.Errorf("a check that probes for space took %d round trips, want 2: one for the server, and one for the probe", least)
	}
}

func TestAppendWaitsForOtherWriterWithTimeout(t *testing.T) {
	t.Parallel()
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM capstan_turn FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	err = s.Append(t.Context(), "a", entry(2, 1)) // takes as long as lock_timeout
	if err == nil || !strings.Contains(err.Error(), "pg_stat_activity") || strings.Contains(err.Error(), "not known") {
		t.Errorf("Append behind a writer that keeps its lock: %v, want an error that says where to look, and not that "+
			"the outcome is unknown", err)
	}
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), "a", entry(2, 1)); err != nil {
		t.Errorf("Append after the lock was released: %v", err)
	}
}

// TestMarkBesideAnAppendThatWaits checks that an append that is acknowledged after a mark needs another mark, although
// its transaction began before the mark: it waited for the account of a Budget.
func TestMarkBesideAnAppendThatWaits(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	reserving := entry(1, 1)
	reserving.Ledger = &budget.Change{Reserve: []budget.Reservation{{
		Hold: budget.Hold{Key: budget.Key{Budget: "x", Start: 0, End: 60}, Tokens: 1},
	}}}
	if err := s.Append(t.Context(), "a", reserving); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test ends
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM capstan_budget FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	appended := make(chan error, 1)
	go func() { appended <- s.Append(t.Context(), "b", reserving) }()
	for waiting := 0; waiting == 0; {
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	marked, err := s.Mark(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	next, err := s.Mark(t.Context(), marked.Position)
	if err != nil || next.Position <= marked.Position {
		t.Errorf("the mark after the append: position %d, %v; want more than %d", next.Position, err, marked.Position)
	}
}
