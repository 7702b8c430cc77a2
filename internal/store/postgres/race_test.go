package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestOfStoresThatRaceForAPlaceOneWins(t *testing.T) {
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
				seq += batch // whoever has won, this place is taken
			}
		})
	}
	group.Wait()
	got, err := stores[0].Load(t.Context(), "a")
	if err != nil || len(got) != rounds*batch || won.Load() != rounds {
		t.Fatalf("%d entries (error %v) of %d successful appends, want %d of %d", len(got), err, won.Load(), rounds*batch, rounds)
	}
	for i, e := range got {
		if e.Seq != int64(i+1) || string(e.Payload) != string(got[i-i%batch].Payload) {
			t.Fatalf("entry %d is %d of %s: the append of one writer was mixed with that of another", i+1, e.Seq, e.Payload)
		}
	}
}

func TestNewerEpochFencesOffARacingWriter(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	zombie, heir := openAt(t, databaseURL), openAt(t, databaseURL)
	for round := range 20 {
		uid := fmt.Sprintf("turn-%d", round)
		var taken atomic.Int64 // the last place that the old epoch has got
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
		for err := journal.ErrSequence; errors.Is(err, journal.ErrSequence); { // until it is the first at a place
			if err = heir.Append(t.Context(), uid, entry(taken.Load()+1, 2)); err != nil && !errors.Is(err, journal.ErrSequence) {
				t.Errorf("Append of the newer epoch: %v, want ErrSequence or nil", err)
			}
		}
		old.Wait()
		got, err := heir.Load(t.Context(), uid)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range got {
			if e.Seq != int64(i+1) || i > 0 && e.Epoch < got[i-1].Epoch {
				t.Fatalf("entry %d of %d has seq %d and epoch %d: the old epoch wrote after the newer one", i+1, len(got), e.Seq, e.Epoch)
			}
		}
		if last := got[len(got)-1]; last.Epoch != 2 {
			t.Fatalf("the last entry is of epoch %d, want the newer one's", last.Epoch)
		}
	}
}

func TestDeletionLeavesNothingOfARacingAppend(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	one, other := openAt(t, databaseURL), openAt(t, databaseURL)
	for round := range 30 {
		uid := fmt.Sprintf("turn-%d", round)
		var group sync.WaitGroup
		group.Go(func() {
			for seq := int64(1); ; seq++ {
				if err := one.Append(t.Context(), uid, entry(seq, 1)); err != nil {
					if !errors.Is(err, journal.ErrSequence) {
						t.Errorf("Append: %v, want ErrSequence once the turn is gone", err)
					}
					return
				}
			}
		})
		for known := false; !known; {
			entries, err := other.Load(t.Context(), uid)
			if err != nil {
				t.Fatal(err)
			}
			known = len(entries) > 1
		}
		if err := other.Delete(t.Context(), uid); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		group.Wait()
		if got, err := other.Load(t.Context(), uid); err != nil || len(got) != 0 {
			t.Fatalf("%d entries are left (error %v), want none", len(got), err)
		}
	}
}

func TestAppendIsOneRoundTrip(t *testing.T) {
	p := newProxy(t, postgrestest.Database(t))
	s := openAt(t, p.url)
	least := int64(100) // the first append of a kind prepares its statement, and one after a pause looks at the connection
	for seq := range int64(10) {
		before := p.asked.Load()
		if err := s.Append(t.Context(), "a", entry(2*seq+1, 1), entry(2*seq+2, 1)); err != nil {
			t.Fatal(err)
		}
		least = min(least, p.asked.Load()-before)
	}
	if least != 1 {
		t.Errorf("an append of two entries took %d round trips, want 1", least)
	}
}

func TestAppendDoesNotWaitForEverForAnotherWriter(t *testing.T) {
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
		t.Errorf("Append behind a writer that stands still: %v, want an error that says where to look, and no doubt that nothing was written", err)
	}
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), "a", entry(2, 1)); err != nil {
		t.Errorf("Append after it: %v", err)
	}
}
