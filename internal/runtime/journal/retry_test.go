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

var errUnavailable = errors.New("the store is unavailable")

// flaky is a journal whose appends and reads may fail.
type flaky struct {
	journaltest.Store
	// fails returns the error of the n-th append, counted from 1. If fails is nil, no append fails.
	fails func(n int) error
	// takesEffect is true if an append takes effect although it fails.
	takesEffect bool
	// failedReads is the number of reads after the first append that still fail.
	failedReads int
	// tries is the number of appends so far, including those that have failed.
	tries int
}

func (f *flaky) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	f.tries++
	var failure error
	if f.fails != nil {
		failure = f.fails(f.tries)
	}
	if failure == nil || f.takesEffect {
		if err := f.Store.Append(ctx, uid, entries...); err != nil {
			return err
		}
	}
	return failure
}

func (f *flaky) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if f.failedReads > 0 && f.tries > 0 {
		f.failedReads--
		return func(yield func(journal.Entry, error) bool) { yield(journal.Entry{}, errUnavailable) }
	}
	return f.Store.Read(ctx, uid, after)
}

func alwaysFails(int) error { return errUnavailable }

func TestAppendOutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = 3 * time.Hour // far longer than the default limit of any retry library
		since := time.Now()
		j := &flaky{fails: func(int) error {
			if time.Since(since) < outage {
				return errUnavailable
			}
			return nil
		}}
		waits := 0
		log := open(t, 1, journal.Options{Journal: j, Waiting: func(err error, delay time.Duration) {
			waits++
			if !errors.Is(err, errUnavailable) || delay <= 0 || delay > 10*time.Second {
				t.Errorf("Waiting(%v, %s), want the error of the store and at most 10 s", err, delay)
			}
		}})
		if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: "paid for"}); err != nil {
			t.Fatalf("Append: %v, want success after the outage", err)
		}
		if late := time.Since(since) - outage; late > 10*time.Second {
			t.Errorf("the append came %s after the end of the outage, want at most 10 s", late)
		}
		if waits != j.tries-1 || waits < 100 {
			t.Errorf("Waiting was called %d times for %d attempts, want one call for each failed attempt", waits, j.tries)
		}
		if got := collect(t, j); len(got) != 1 {
			t.Errorf("%d entries, want 1", len(got))
		}
	})
}

func TestAppendStopsAfterItsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &flaky{fails: alwaysFails}
		since := time.Now()
		log := open(t, 1, journal.Options{Journal: j, Patience: 30 * time.Second})
		err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied})
		if took := time.Since(since); !errors.Is(err, errUnavailable) || took > 30*time.Second || took < 20*time.Second {
			t.Errorf("Append: %v after %s, want the error of the store after 20 s to 30 s", err, took)
		}
	})
}

func TestAppendStopsAfterTheEndOfItsRun(t *testing.T) {
	stopped := errors.New("the process stops")
	for name, tc := range map[string]struct {
		reason string
		after  time.Duration
	}{
		"Before":  {"an event is still recorded after the end of the run, if one attempt is enough", 0},
		"Waiting": {"a stopping process must not hang", 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &flaky{fails: alwaysFails}
				ctx, cancel := context.WithCancelCause(t.Context())
				since := time.Now()
				if tc.after == 0 {
					cancel(stopped)
				} else {
					time.AfterFunc(tc.after, func() { cancel(stopped) })
				}
				err := open(t, 1, journal.Options{Journal: j}).Append(ctx, journal.Record{Kind: journal.ModelReplied})
				if !errors.Is(err, stopped) || !errors.Is(err, errUnavailable) || time.Since(since) != tc.after {
					t.Errorf("Append: %v after %s, want both causes after %s: %s", err, time.Since(since), tc.after, tc.reason)
				}
				if tc.after == 0 && j.tries != 1 {
					t.Errorf("%d attempts, want 1: %s", j.tries, tc.reason)
				}
			})
		})
	}
}

// TestEqualEntryOfAnotherRunIsNotTakenForTheOwn has two runs of one epoch that append the same entry, as after a
// restore of the cluster. The outcome of the first attempt is unknown. If the run took the entry for its own, both
// would go on.
func TestEqualEntryOfAnotherRunIsNotTakenForTheOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &flaky{}
		record := journal.Record{Kind: journal.ToolIntended, Payload: "call"}
		own := open(t, 1, journal.Options{Journal: j, Now: time.Now})
		later := func() time.Time { return time.Now().Add(time.Nanosecond) }
		other := open(t, 1, journal.Options{Journal: &j.Store, Now: later})
		j.fails = func(n int) error {
			if n > 1 {
				return nil
			}
			if err := other.Append(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			return errUnavailable
		}
		if err := own.Append(t.Context(), record); !errors.Is(err, journal.ErrSequence) {
			t.Errorf("Append: %v, want ErrSequence", err)
		}
		if got := collect(t, j); len(got) != 1 {
			t.Errorf("%d entries, want that of the other run only", len(got))
		}
	})
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

func TestAppendThatSucceededDespiteAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, payload string
		failedReads     int
		tries           int
	}{
		"Payload":     {"an entry must not be written twice", "short", 0, 2},
		"Artifact":    {"an entry is recognized by the digest of its payload", strings.Repeat("long ", 20_000), 0, 2},
		"StillFailed": {"while reads fail, the outcome stays unknown", "short", 3, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &flaky{takesEffect: true, failedReads: tc.failedReads, fails: func(n int) error {
					if n == 1 {
						return errUnavailable
					}
					return nil
				}}
				var received applied
				log := open(t, 1, journal.Options{Journal: j, Apply: received.apply, First: runStarted})
				for _, kind := range []journal.Kind{journal.ModelReplied, journal.Finalized} {
					if err := log.Append(t.Context(), journal.Record{Kind: kind, Payload: tc.payload}); err != nil {
						t.Fatalf("Append: %v: %s", err, tc.reason)
					}
				}
				if got := collect(t, j); len(got) != 3 || len(received) != 3 || j.tries != tc.tries+1 {
					t.Errorf("%d entries, %d applied, %d attempts; want 3, 3 and %d: %s",
						len(got), len(received), j.tries, tc.tries+1, tc.reason)
				}
			})
		})
	}
}

func TestEntriesOfAnotherWriterAreRecognized(t *testing.T) {
	mine := journal.Record{Kind: journal.ModelReplied, Payload: "mine"}
	long := journal.Record{Kind: journal.ModelReplied, Payload: strings.Repeat("mine ", 20_000)}
	for name, tc := range map[string]struct {
		reason string
		mine   journal.Record
		others []journal.Record
	}{
		"Payload": {"the other entry has another payload", mine, []journal.Record{{Kind: journal.ModelReplied, Payload: "their"}}},
		"Artifact": {
			"the other entry has another payload in an artifact", long,
			[]journal.Record{{Kind: journal.ModelReplied, Payload: strings.Repeat("their ", 20_000)}},
		},
		"Kind":  {"the other entry has another kind", mine, []journal.Record{{Kind: journal.ModelFailed, Payload: "mine"}}},
		"Equal": {"two runs that write equal entries must not both continue", mine, []journal.Record{mine}},
		"More":  {"another run has already added a further entry", mine, []journal.Record{mine, {Kind: journal.ToolIntended}}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			one, other := open(t, 1, journal.Options{Journal: j}), open(t, 1, journal.Options{Journal: j})
			if err := other.Append(t.Context(), tc.others...); err != nil {
				t.Fatal(err)
			}
			if err := one.Append(t.Context(), tc.mine); !errors.Is(err, journal.ErrSequence) {
				t.Errorf("Append: %v, want ErrSequence: %s", err, tc.reason)
			}
		})
	}
}
