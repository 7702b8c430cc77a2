package journal_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

var errAway = errors.New("the store is away")

// flaky is a journal that fails.
type flaky struct {
	journaltest.Memory
	// fails says whether the n-th append fails, from 1; nil is never.
	fails func(n int) error
	// does says that an append is done although it fails.
	does bool
	// blind is how many reads fail.
	blind int
	tries int
}

func (f *flaky) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	f.tries++
	var failure error
	if f.fails != nil {
		failure = f.fails(f.tries)
	}
	if failure == nil || f.does {
		if err := f.Memory.Append(ctx, uid, entries...); err != nil {
			return err
		}
	}
	return failure
}

func (f *flaky) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if f.blind > 0 && f.tries > 0 {
		f.blind--
		return func(yield func(journal.Entry, error) bool) { yield(journal.Entry{}, errAway) }
	}
	return f.Memory.Read(ctx, uid, after)
}

func away(int) error { return errAway }

func TestAppendOutlastsAStoreThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = 3 * time.Hour // far beyond what any library tries for by itself
		since := time.Now()
		j := &flaky{fails: func(int) error {
			if time.Since(since) < outage {
				return errAway
			}
			return nil
		}}
		waits := 0
		log := open(t, 1, journal.Options{Journal: j, Waiting: func(err error, in time.Duration) {
			waits++
			if !errors.Is(err, errAway) || in <= 0 || in > 10*time.Second {
				t.Errorf("Waiting(%v, %s), want the store's error and some seconds at most", err, in)
			}
		}})
		if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: "paid for"}); err != nil {
			t.Fatalf("Append: %v, want it to wait for the store", err)
		}
		if late := time.Since(since) - outage; late > 10*time.Second {
			t.Errorf("the append came %s after the store was back, want some seconds at most", late)
		}
		if waits != j.tries-1 || waits < 100 {
			t.Errorf("Waiting was told %d times of %d attempts, want of each that failed", waits, j.tries)
		}
		if got := collect(t, j); len(got) != 1 {
			t.Errorf("%d entries, want 1", len(got))
		}
	})
}

func TestAppendHasPatienceAsLongAsItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &flaky{fails: away}
		since := time.Now()
		log := open(t, 1, journal.Options{Journal: j, Patience: 30 * time.Second})
		err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied})
		if took := time.Since(since); !errors.Is(err, errAway) || took > 30*time.Second || took < 20*time.Second {
			t.Errorf("Append: %v after %s, want the store's error after some 30 s", err, took)
		}
	})
}

func TestAppendOfARunThatHasEndedIsTriedOnce(t *testing.T) {
	stopped := errors.New("the process stops")
	for name, tc := range map[string]struct {
		reason string
		after  time.Duration
	}{
		"Before":  {"what has happened is worth one attempt", 0},
		"Waiting": {"the process must not hang when it stops", 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &flaky{fails: away}
				ctx, cancel := context.WithCancelCause(t.Context())
				since := time.Now()
				if tc.after == 0 {
					cancel(stopped)
				} else {
					time.AfterFunc(tc.after, func() { cancel(stopped) })
				}
				err := open(t, 1, journal.Options{Journal: j}).Append(ctx, journal.Record{Kind: journal.ModelReplied})
				if !errors.Is(err, stopped) || !errors.Is(err, errAway) || time.Since(since) != tc.after {
					t.Errorf("Append: %v after %s, want both causes after %s: %s", err, time.Since(since), tc.after, tc.reason)
				}
				if tc.after == 0 && j.tries != 1 {
					t.Errorf("%d attempts, want 1: %s", j.tries, tc.reason)
				}
			})
		})
	}
}

func TestRefusalsAreNotTriedAgain(t *testing.T) {
	for name, want := range map[string]error{"Fenced": journal.ErrFenced, "Sequence": journal.ErrSequence} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &flaky{fails: func(int) error { return want }}
				err := open(t, 1, journal.Options{Journal: j}).Append(t.Context(), journal.Record{Kind: journal.ModelReplied})
				if !errors.Is(err, want) || j.tries != 1 {
					t.Errorf("Append: %v after %d attempts, want %v after one", err, j.tries, want)
				}
			})
		})
	}
}

func TestAppendThatWasDoneAlthoughItSeemedToFail(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, payload string
		blind, tries    int
	}{
		"Payload":     {"what is there must not be written twice", "short", 0, 2},
		"Artifact":    {"an entry whose payload is elsewhere is known again by its name", strings.Repeat("long ", 20_000), 0, 2},
		"StillFailed": {"a store that cannot be read yet says nothing", "short", 3, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &flaky{does: true, blind: tc.blind, fails: func(n int) error {
					if n == 1 {
						return errAway
					}
					return nil
				}}
				var heard told
				log := open(t, 1, journal.Options{Journal: j, Apply: heard.apply, First: []journal.Record{{Kind: journal.RunStarted}}})
				for _, kind := range []journal.Kind{journal.ModelReplied, journal.Finalized} {
					if err := log.Append(t.Context(), journal.Record{Kind: kind, Payload: tc.payload}); err != nil {
						t.Fatalf("Append: %v: %s", err, tc.reason)
					}
				}
				if got := collect(t, j); len(got) != 3 || len(heard) != 3 || j.tries != tc.tries+1 {
					t.Errorf("%d entries, %d told, %d attempts; want 3, 3 and %d: %s", len(got), len(heard), j.tries, tc.tries+1, tc.reason)
				}
			})
		})
	}
}

func TestAnotherWriterIsNotTakenForOneself(t *testing.T) {
	mine := journal.Record{Kind: journal.ModelReplied, Payload: "mine"}
	long := journal.Record{Kind: journal.ModelReplied, Payload: strings.Repeat("mine ", 20_000)}
	for name, tc := range map[string]struct {
		reason string
		mine   journal.Record
		theirs []journal.Record
	}{
		"Payload":  {"it says something else", mine, []journal.Record{{Kind: journal.ModelReplied, Payload: "their"}}},
		"Artifact": {"it says something else, at length", long, []journal.Record{{Kind: journal.ModelReplied, Payload: strings.Repeat("their ", 20_000)}}},
		"Kind":     {"it is something else", mine, []journal.Record{{Kind: journal.ModelFailed, Payload: "mine"}}},
		"Equal":    {"another run does the same at the same time, and both would go on", mine, []journal.Record{mine}},
		"More":     {"somebody goes on behind it", mine, []journal.Record{mine, {Kind: journal.ToolIntended}}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Memory{}
			one, other := open(t, 1, journal.Options{Journal: j}), open(t, 1, journal.Options{Journal: j})
			if err := other.Append(t.Context(), tc.theirs...); err != nil {
				t.Fatal(err)
			}
			if err := one.Append(t.Context(), tc.mine); !errors.Is(err, journal.ErrSequence) {
				t.Errorf("Append: %v, want ErrSequence: %s", err, tc.reason)
			}
		})
	}
}
