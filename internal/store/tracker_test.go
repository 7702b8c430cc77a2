package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store"
)

// loss is a loss that a Tracker has reported.
type loss struct{ known, found int64 }

// follower is a process with a Tracker. It records the losses that the Tracker reports.
type follower struct {
	*store.Tracker
	published      int64
	failure        error
	publishedCalls int
	losses         []loss
}

func follow(s store.PositionStore) *follower {
	f := &follower{}
	f.Tracker = store.NewTracker(s, store.TrackerOptions{
		Published: func(context.Context, string) (int64, error) {
			f.publishedCalls++
			return f.published, f.failure
		},
		Lost: func(known int64, found, _ store.State) { f.losses = append(f.losses, loss{known, found.Position}) },
	})
	return f
}

func appendTo(t *testing.T, m *journaltest.Store, uid string) {
	t.Helper()
	if err := m.Append(t.Context(), uid, journal.Entry{Seq: 1, Epoch: 1, Kind: journal.Prepared, Time: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
}

// TestStoreIsComparedWithPublishedPosition checks that the first call of Identity compares the store with the published
// position, and that the second call does not.
func TestStoreIsComparedWithPublishedPosition(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		published int64
		losses    []loss
	}{
		"never published":               {"no position of the store is known", 0, nil},
		"at the published position":     {"the store has all acknowledged entries", 1, nil},
		"behind the published position": {"the store had a greater position", 5, []loss{{5, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &journaltest.Store{}
			before, err := m.Mark(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			f := follow(m)
			f.published = tc.published
			for range 2 { // the second call compares nothing
				id, err := f.Identity(t.Context())
				if err != nil || id.ID != before.ID || (id != before.Identity) != (tc.losses != nil) || f.Last().Identity != id {
					t.Errorf("Identity: %+v, %v; want the store %+v, with a new incarnation if it is behind: %s", id, err,
						before, tc.reason)
				}
			}
			if diff := cmp.Diff(tc.losses, f.losses, cmp.AllowUnexported(loss{})); diff != "" || f.publishedCalls != 1 {
				t.Errorf("Published was called %d times, want once; losses (-want +got):\n%s", f.publishedCalls, diff)
			}
		})
	}
}

// TestIncomparableStoreIsNotUsed makes Published fail, as if the API server were out of reach.
func TestIncomparableStoreIsNotUsed(t *testing.T) {
	f := follow(&journaltest.Store{})
	f.failure = errors.New("away")
	if id, err := f.Identity(t.Context()); !errors.Is(err, f.failure) || id != (store.Identity{}) || f.Last() != (store.State{}) {
		t.Errorf("Identity: %+v, %v; want the error of Published, and no state", id, err)
	}
	f.failure = nil
	if _, err := f.Identity(t.Context()); err != nil {
		t.Errorf("Identity: %v, want no error when Published works again", err)
	}
}

// TestStoreIsReplacedByOlderCopy checks that the next calls of Identity detect the replacement, and that only one of
// them reports a loss.
func TestStoreIsReplacedByOlderCopy(t *testing.T) {
	older, newer := &journaltest.Store{}, &journaltest.Store{}
	used := &replaceable{newer}
	f := follow(used)
	for _, uid := range []string{"a", "b", "c"} {
		appendTo(t, newer, uid)
		if err := f.Mark(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.Last().Position != 3 || f.losses != nil {
		t.Fatalf("position %d, losses %v; want 3 and none", f.Last().Position, f.losses)
	}
	if _, err := older.Mark(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	used.Store = older
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if _, err := f.Identity(t.Context()); err != nil {
				t.Errorf("Identity: %v", err)
			}
		})
	}
	group.Wait()
	state, err := older.State(t.Context())
	if err != nil || f.Last().Incarnation != state.Incarnation || state.Incarnation == "1" {
		t.Errorf("Last: %+v, and the state of the store is %+v, %v; want its new incarnation", f.Last(), state, err)
	}
	if diff := cmp.Diff(1, len(f.losses)); diff != "" {
		t.Errorf("losses %v, want one report", f.losses)
	}
}

// TestPositionOfAnotherProcessIsNotConfirmed checks that Last does not change because the store shows a new position.
// The mark that assigned this position may still wait for a standby.
func TestPositionOfAnotherProcessIsNotConfirmed(t *testing.T) {
	m := &journaltest.Store{}
	f := follow(m)
	if err := f.Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := f.Last()
	appendTo(t, m, "a")
	after, err := m.Mark(t.Context(), before.Position)
	if err != nil || after.Position <= before.Position {
		t.Fatalf("Mark: %+v, %v; want a position after %d", after, err, before.Position)
	}
	if _, err := f.Identity(t.Context()); err != nil || f.Last() != before {
		t.Errorf("Last after Identity: %+v, %v; want %+v", f.Last(), err, before)
	}
	if err := f.Mark(t.Context()); err != nil || f.Last() != after {
		t.Errorf("Last after Mark: %+v, %v; want %+v", f.Last(), err, after)
	}
	if f.losses != nil {
		t.Errorf("losses %v, want none", f.losses)
	}
}

// replaceable is a store that can be replaced by an older copy.
type replaceable struct{ *journaltest.Store }

// State returns the state with the ID "a", because a copy has the same ID.
func (r *replaceable) State(ctx context.Context) (store.State, error) {
	s, err := r.Store.State(ctx)
	s.ID = "a"
	return s, err
}

// Mark marks the store and returns the state with the ID "a".
func (r *replaceable) Mark(ctx context.Context, least int64) (store.State, error) {
	s, err := r.Store.Mark(ctx, least)
	s.ID = "a"
	return s, err
}
