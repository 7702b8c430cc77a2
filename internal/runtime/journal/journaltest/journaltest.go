// Package journaltest is the contract of journal.Journal. Every store runs it against a real database.
package journaltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// at is a time with a fraction, in UTC, as entries bear it.
var at = time.Date(2026, 6, 11, 15, 4, 5, 123456789, time.UTC)

func entry(seq, epoch int64) journal.Entry {
	return journal.Entry{
		Seq: seq, Epoch: epoch, Kind: journal.ModelReplied, Time: at,
		Payload: json.RawMessage(fmt.Sprintf(`{"text":"reply %d \u2028 <&>","n":1e400}`, seq)),
	}
}

// Run runs the contract. open returns a new, empty journal and closes it when the test ends; reopen closes a journal
// that open returned and opens the same one again, as a restarted process would.
func Run(t *testing.T, open func(t *testing.T) journal.Journal, reopen func(t *testing.T, j journal.Journal) journal.Journal) {
	t.Run("an unknown turn has no entries", func(t *testing.T) {
		expect(t, open(t), "nobody")
	})
	t.Run("entries come back in order, as they were", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", nil, entry(1, 1), entry(2, 1))
		add(t, j, "b", nil, entry(1, 7))
		add(t, j, "a", nil, entry(3, 2))
		expect(t, j, "a", entry(1, 1), entry(2, 1), entry(3, 2))
		expect(t, j, "b", entry(1, 7))
	})
	t.Run("entries survive a restart", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", nil, entry(1, 1))
		j = reopen(t, j)
		expect(t, j, "a", entry(1, 1))
		add(t, j, "a", nil, entry(2, 2))
	})
	t.Run("an older epoch is fenced off and leaves no trace", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", nil, entry(1, 2))
		add(t, j, "a", journal.ErrFenced, entry(2, 1))
		add(t, j, "a", journal.ErrFenced, entry(2, 2), entry(3, 1))
		expect(t, j, "a", entry(1, 2))
	})
	t.Run("a gap or a repeat is refused and leaves no trace", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", journal.ErrSequence, entry(2, 1))
		add(t, j, "a", nil, entry(1, 1))
		add(t, j, "a", journal.ErrSequence, entry(1, 1))
		add(t, j, "a", journal.ErrSequence, entry(2, 1), entry(4, 1))
		expect(t, j, "a", entry(1, 1))
	})
	t.Run("of writers that race for a place one wins, and turns do not disturb each other", func(t *testing.T) {
		race(t, open(t))
	})
}

func race(t *testing.T, j journal.Journal) {
	const writers, turns = 8, 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for range writers {
		wg.Go(func() {
			for i := range turns {
				uid := fmt.Sprintf("turn-%d", i)
				switch err := j.Append(t.Context(), uid, entry(1, 1)); {
				case err == nil:
					mu.Lock()
					won[uid]++
					mu.Unlock()
				case !errors.Is(err, journal.ErrSequence):
					t.Errorf("Append(%s): %v, want ErrSequence or nil", uid, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range turns {
		uid := fmt.Sprintf("turn-%d", i)
		if won[uid] != 1 {
			t.Errorf("%d writers wrote entry 1 of %s, want exactly 1", won[uid], uid)
		}
		expect(t, j, uid, entry(1, 1))
	}
}

func add(t *testing.T, j journal.Journal, uid string, want error, entries ...journal.Entry) {
	t.Helper()
	if err := j.Append(t.Context(), uid, entries...); !errors.Is(err, want) {
		t.Fatalf("Append(%s): error %v, want %v", uid, err, want)
	}
}

func expect(t *testing.T, j journal.Journal, uid string, want ...journal.Entry) {
	t.Helper()
	got, err := j.Load(t.Context(), uid)
	if err != nil {
		t.Fatalf("Load(%s): %v", uid, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Load(%s): -want +got:\n%s", uid, diff)
	}
}
