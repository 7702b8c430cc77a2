package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// short is the failure of a request for which this process had no socket.
var short = answer{err: &model.Error{
	Kind: model.Network, Message: "raise the limit of open files", Unsent: true, Err: model.ErrOwnShortage,
}}

// TestShortageIsNoAttempt checks that requests for which this process had no socket use up no attempt, in the same run
// and in a later one, and that no other model is asked.
func TestShortageIsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		one, first := candidate("one", 2, append(slices.Repeat([]answer{short}, 40), fails(model.Overloaded), says("Done."))...)
		two, second := candidate("two", 2, says("Wrong."))
		in := inputOf(t, j, 1, one, two)
		interrupt := make(chan struct{})
		in.Interrupt = interrupt
		time.AfterFunc(time.Minute, func() { close(interrupt) })
		if _, err := loop.Run(t.Context(), &in); !errors.Is(err, loop.ErrInterrupted) || len(first.requests) < 12 {
			t.Fatalf("the first run: %v after %d requests, want it interrupted after more than 12", err, len(first.requests))
		}
		ofFirstRun := len(first.requests)
		in = inputOf(t, j, 2, one, two)
		end, err := loop.Run(t.Context(), &in)
		if err != nil || end.Reason != loop.Answered || len(first.requests) != 42 {
			t.Fatalf("the second run: %+v, %v after %d requests, want the answer after 42", end, err, len(first.requests))
		}
		if len(second.requests) != 0 {
			t.Errorf("another model got %d requests, want none", len(second.requests))
		}
		for i := 1; i < len(first.asked); i++ {
			if wait := first.asked[i].Sub(first.asked[i-1]); wait < 500*time.Millisecond && i != ofFirstRun { // a new run does not wait
				t.Errorf("request %d was sent %s after the one before, want a pause", i+1, wait)
			}
		}
		unsent := func(f loop.FailedRequest) bool { return !f.WasSent() }
		if failures := in.State.FailedRequests; len(failures) != 41 || slices.IndexFunc(failures, unsent) != 0 || failures[40].Unsent {
			t.Errorf("the journal has the failures %+v, want 40 of requests that were not sent, and one other", failures)
		}
	})
}

// TestShortageEndsWithTheDeadline checks that a shortage that lasts ends the loop before the deadline of the Turn, with
// a message that names the remedy.
func TestShortageEndsWithTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		one, s := candidate("one", 2, short)
		_, err := loop.Run(ctx, new(inputOf(t, &journaltest.Store{}, 1, one)))
		if err == nil || !strings.Contains(err.Error(), "raise the limit of open files (the next attempt in ") ||
			!strings.Contains(err.Error(), "after the turn's deadline") {
			t.Errorf("Run: %v, want an error that names the remedy and the deadline", err)
		}
		if ctx.Err() != nil || len(s.requests) > 60 {
			t.Errorf("the context is %v after %d requests, want the end before the deadline after a few", ctx.Err(), len(s.requests))
		}
	})
}
