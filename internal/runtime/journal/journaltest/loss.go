package journaltest

import (
	"errors"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// RunLoss tests the errors that a run receives from a store that has lost its last entries. open returns a new, empty
// journal and closes it when the test ends. lose drops the entries of a UID after a sequence number, as a failover to a
// lagging replica would.
func RunLoss(t *testing.T, open func(t *testing.T) journal.Journal, lose func(t *testing.T, j journal.Journal, uid string, after int64)) {
	for name, tc := range map[string]struct {
		reason string
		left   int64 // the number of entries that are left in the store
		known  int64 // the number of entries that was recorded outside of the store, or 0
		opened error // the error of a run that takes over the Turn
		append error // the error of the run that has written three entries
	}{
		"nothing is lost":        {"all entries are there", 3, 3, nil, nil},
		"the last entry is lost": {"the lost entry may have recorded a call", 2, 3, journal.ErrLost, journal.ErrLost},
		"all entries are lost":   {"an empty journal must not be mistaken for a new one", 0, 3, journal.ErrLost, journal.ErrLost},
		"Open misses the loss":   {"Open notices a loss only if the number of entries was recorded elsewhere", 2, 2, nil, journal.ErrLost},
		"no number was recorded": {"Open cannot notice a loss without a recorded number", 0, 0, nil, journal.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t)
			log, err := openLog(t, j, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: i}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.left < 3 {
				lose(t, j, "a", tc.left)
			}
			if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: 3}); !matches(err, tc.append) {
				t.Errorf("Append: %v, want %v: %s", err, tc.append, tc.reason)
			}
			if _, err := openLog(t, j, 2, tc.known); !matches(err, tc.opened) {
				t.Errorf("Open: %v, want %v: %s", err, tc.opened, tc.reason)
			}
			if got, err := read(t.Context(), j, "a", 0, -1); err != nil || tc.append != nil && int64(len(got)) != tc.left {
				t.Errorf("%d entries (error %v), want the %d that were left", len(got), err, tc.left)
			}
		})
	}
	t.Run("an entry of another run is not a loss", func(t *testing.T) {
		j := open(t)
		log, err := openLog(t, j, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		add(t, j, "a", nil, entry(1, 1))
		err = log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: 1})
		if !errors.Is(err, journal.ErrSequence) || errors.Is(err, journal.ErrLost) {
			t.Errorf("Append: %v, want ErrSequence and not ErrLost", err)
		}
	})
}

func openLog(t *testing.T, j journal.Journal, epoch, known int64) (*journal.Log, error) {
	t.Helper()
	return journal.Open(t.Context(), "a", epoch, journal.Options{
		Journal: j, Now: func() time.Time { return entryTime }, Apply: func(journal.Entry) error { return nil }, Known: known,
	})
}

func matches(err, want error) bool { return errors.Is(err, want) && (err == nil) == (want == nil) }
