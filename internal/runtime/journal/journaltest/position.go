package journaltest

import (
	"context"
	"regexp"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

// PositionStore is a store with an identity and a position.
type PositionStore interface {
	journal.Journal
	store.PositionStore
	Close() error
}

// identifier is the format of an ID and of an incarnation.
var identifier = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// RunPosition tests the contract of the identity and the position of a store. place creates an empty location for a
// store. The returned function opens the store at this location; its first call creates the store. The function waits
// if only one process may have the location open.
func RunPosition(t *testing.T, place func(t *testing.T) (open func() (PositionStore, error))) {
	t.Run("a store that is opened again has the same identity", func(t *testing.T) {
		open := place(t)
		first := stateOf(t, open)
		if !identifier.MatchString(first.ID) || !identifier.MatchString(first.Incarnation) {
			t.Errorf("State: %+v, want an ID and an incarnation that match %s, because both are written into a status", first, identifier)
		}
		if second := stateOf(t, open); second != first {
			t.Errorf("State after a restart: %+v, want %+v", second, first)
		}
	})
	t.Run("another store has another ID", func(t *testing.T) {
		if one, other := stateOf(t, place(t)), stateOf(t, place(t)); one.ID == other.ID {
			t.Errorf("State: two stores have the ID %q", one.ID)
		}
	})
	t.Run("concurrent processes find the same new store", func(t *testing.T) {
		open := place(t)
		found := make([]store.State, 6)
		var group sync.WaitGroup
		for i := range found {
			group.Go(func() { found[i] = stateOf(t, open) })
		}
		group.Wait()
		for _, other := range found {
			if other != found[0] || other.ID == "" {
				t.Errorf("State: %+v, want equal states with an ID", found)
				break
			}
		}
	})
	t.Run("a call whose context has ended does nothing", func(t *testing.T) {
		use(t, place(t), func(s PositionStore) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if st, err := s.State(ctx); err == nil || st != (store.State{}) {
				t.Errorf("State: %+v, %v; want only an error", st, err)
			}
			if st, err := s.Mark(ctx, 0); err == nil || st != (store.State{}) {
				t.Errorf("Mark: %+v, %v; want only an error", st, err)
			}
			if st, err := s.Mark(t.Context(), 0); err != nil || st.Position != 1 {
				t.Errorf("Mark: %+v, %v; want the first position", st, err)
			}
		})
	})
	t.Run("a mark after appends has a new position, which stays", func(t *testing.T) {
		open := place(t)
		var last store.State
		use(t, open, func(s PositionStore) {
			before := advance(t, s, 0) // covers appends of an earlier process
			if again := advance(t, s, before.Position); again != before {
				t.Errorf("Mark without an append: %+v, want %+v", again, before)
			}
			add(t, s, "a", nil, entry(1, 1))
			last = advance(t, s, before.Position)
			if want := (store.State{Identity: before.Identity, Position: before.Position + 1}); last != want {
				t.Errorf("Mark after an append: %+v, want %+v", last, want)
			}
		})
		if got := stateOf(t, open); got != last {
			t.Errorf("State after a restart: %+v, want %+v", got, last)
		}
	})
	t.Run("a store that is behind has a new incarnation, once", func(t *testing.T) {
		open := place(t)
		var last store.State
		use(t, open, func(s PositionStore) {
			before := advance(t, s, 0)
			last = advance(t, s, before.Position+10)
			if !last.Lost || last.ID != before.ID || last.Incarnation == before.Incarnation || last.Position <= before.Position+10 ||
				!identifier.MatchString(last.Incarnation) {
				t.Errorf("Mark of a store that is behind: %+v, want the store %+v with a new incarnation and a position above %d",
					last, before, before.Position+10)
			}
			last.Lost = false
			if again := advance(t, s, before.Position+10); again != last {
				t.Errorf("the next Mark: %+v, want %+v", again, last)
			}
		})
		if got := stateOf(t, open); got != last {
			t.Errorf("State after a restart: %+v, want %+v", got, last)
		}
		use(t, open, func(s PositionStore) {
			if again := advance(t, s, last.Position+1); !again.Lost || again.Incarnation == last.Incarnation {
				t.Errorf("Mark of a store that is behind again: %+v, want a new incarnation after %+v", again, last)
			}
		})
	})
}

// advance marks a store, and returns its state.
func advance(t *testing.T, s PositionStore, least int64) store.State {
	t.Helper()
	st, err := s.Mark(t.Context(), least)
	if err != nil {
		t.Errorf("Mark: %v", err)
	}
	return st
}

// stateOf opens a store, returns its state and closes the store.
func stateOf(t *testing.T, open func() (PositionStore, error)) (st store.State) {
	t.Helper()
	use(t, open, func(s PositionStore) {
		var err error
		if st, err = s.State(t.Context()); err != nil {
			t.Errorf("State: %v", err)
		}
		st.Unsure = false // true until the first mark
	})
	return st
}

// use opens a store, calls do with it and closes it.
func use(t *testing.T, open func() (PositionStore, error), do func(PositionStore)) {
	t.Helper()
	s, err := open()
	if err != nil {
		t.Errorf("failed to open the store: %v", err)
		return
	}
	do(s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
