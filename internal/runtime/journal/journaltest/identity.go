package journaltest

import (
	"context"
	"regexp"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/internal/store"
)

// Identified is a store that says which one it is.
type Identified interface {
	Identity(ctx context.Context) (store.Identity, error)
	Close() error
}

// identifier is the form of an ID and of an incarnation.
var identifier = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// RunIdentity runs the contract of a store's identity. place makes an empty place for a store. What it returns opens the store of that
// place, which is made by the first call; it waits if the place admits only one at a time.
func RunIdentity(t *testing.T, place func(t *testing.T) (open func() (Identified, error))) {
	t.Run("a store that is opened again has the same identity", func(t *testing.T) {
		open := place(t)
		first := identify(t, open)
		if !identifier.MatchString(first.ID) || !identifier.MatchString(first.Incarnation) {
			t.Errorf("Identity: %+v, want both to be of the form %s, for they go into a status", first, identifier)
		}
		if second := identify(t, open); second != first {
			t.Errorf("Identity after a restart: %+v, want %+v", second, first)
		}
	})
	t.Run("another store has another ID", func(t *testing.T) {
		if one, other := identify(t, place(t)), identify(t, place(t)); one.ID == other.ID {
			t.Errorf("Identity: two stores have the ID %q", one.ID)
		}
	})
	t.Run("processes that open a new store at once agree", func(t *testing.T) {
		open := place(t)
		found := make([]store.Identity, 6)
		var group sync.WaitGroup
		for i := range found {
			group.Go(func() { found[i] = identify(t, open) })
		}
		group.Wait()
		for _, other := range found {
			if other != found[0] || other.ID == "" {
				t.Errorf("Identity: %+v, want all to have one", found)
				break
			}
		}
	})
	t.Run("a call whose context has ended does nothing", func(t *testing.T) {
		s, err := place(t)()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if i, err := s.Identity(ctx); err == nil || i != (store.Identity{}) {
			t.Errorf("Identity: %+v, %v; want an error alone", i, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// identify opens a store, asks for its identity and closes it.
func identify(t *testing.T, open func() (Identified, error)) store.Identity {
	t.Helper()
	s, err := open()
	if err != nil {
		t.Errorf("failed to open the store: %v", err)
		return store.Identity{}
	}
	i, err := s.Identity(t.Context())
	if err != nil {
		t.Errorf("Identity: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return i
}
