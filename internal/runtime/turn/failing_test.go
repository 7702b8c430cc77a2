package turn_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

var errBroken = errors.New("the disk is full")

// breaking is a journal in which several consecutive appends fail.
type breaking struct {
	journal.Journal
	// n is the number of the first append that fails, counted from 1. times is the number of appends that fail. If
	// times is negative, all further appends fail, too.
	n, times int
	// written is true if the first failure occurs after the entries were written, as if the connection broke before the
	// response.
	written bool
}

// Append returns an error for the appends that fail.
func (b *breaking) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if b.n--; b.n > 0 || b.times == 0 {
		return b.Journal.Append(ctx, uid, entries...)
	}
	b.times--
	if b.written {
		b.written = false
		if err := b.Journal.Append(ctx, uid, entries...); err != nil {
			return err
		}
	}
	return errBroken
}

// checkIDs checks that each request was sent once, and that each has an ID.
func checkIDs(t *testing.T, requests ...model.Request) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range requests {
		if r.ID == "" || seen[r.ID] {
			t.Errorf("request %q was sent twice, or has no id", r.ID)
		}
		seen[r.ID] = true
	}
}

// TestAJournalThatFailsForAWhile checks that nothing is lost: the run repeats each write until it succeeds.
func TestAJournalThatFailsForAWhile(t *testing.T) {
	// The appends are the preparation, a request, its failure, a request, its reply, and the end.
	for n := 1; n <= 6; n++ {
		for _, written := range []bool{false, true} {
			t.Run(fmt.Sprintf("append %d, written %t", n, written), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, s := candidate("p0", 3, fails(model.Overloaded), says("Nothing."))
					j := &journaltest.Store{}
					e := engine(&breaking{Journal: j, n: n, times: 20, written: written})
					waits := 0
					e.Waiting = func(in turn.Input, err error, delay time.Duration) {
						if waits++; in.UID != "uid" || !errors.Is(err, errBroken) || delay <= 0 {
							t.Errorf("Waiting received %q, %v and %s; want the Turn, the error and a delay", in.UID, err, delay)
						}
					}
					in := input(c)
					in.Timeout = time.Hour
					result, err := e.Run(t.Context(), new(in))
					if err != nil || result.Stop != turn.StopCompleted || result.Text != "Nothing." || s.asked() != 2 {
						t.Fatalf("Run = %+v, %v after %d requests; want the answer after 2 requests", result, err, s.asked())
					}
					if waits != 20 {
						t.Errorf("Waiting was called %d times, want 20", waits)
					}
					checkIDs(t, s.requests...)
					if got := kinds(t, j); len(got) != 10 {
						t.Errorf("the journal has %v, want 10 entries", got)
					}
				})
			})
		}
	}
}

// TestAJournalThatFailsPermanently checks that the run ends after its patience, and that the next run continues. No
// request is sent without a record of it.
func TestAJournalThatFailsPermanently(t *testing.T) {
	for n := 1; n <= 6; n++ {
		for _, written := range []bool{false, true} {
			t.Run(fmt.Sprintf("append %d, written %t", n, written), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, s := candidate("p0", 9, fails(model.Overloaded), says("Nothing."))
					j := &journaltest.Store{}
					e := engine(&breaking{Journal: j, n: n, times: -1, written: written})
					e.Patience = time.Minute
					in := input(c)
					in.Timeout = time.Hour
					begin := time.Now()
					if result, err := e.Run(t.Context(), new(in)); !errors.Is(err, errBroken) || result != nil {
						t.Fatalf("Run = %+v, %v; want the error of the journal, because an entry could not be written", result, err)
					}
					if took := time.Since(begin); took > time.Minute {
						t.Errorf("the run took %s, want at most its patience of a minute", took)
					}
					before := s.asked()
					in.Epoch = 2
					result, err := engine(j).Run(t.Context(), new(in))
					if err != nil || result.Stop != turn.StopCompleted || result.Text != "Nothing." {
						t.Fatalf("the next run: %+v, %v; want the answer", result, err)
					}
					want := 2 // a failure and an answer
					if n == 5 && !written {
						want++ // plus a reply that is lost because it could not be recorded in time
					}
					if s.asked() != want {
						t.Errorf("the first run sent %d requests and both runs %d, want %d", before, s.asked(), want)
					}
					checkIDs(t, s.requests...)
				})
			})
		}
	}
}
