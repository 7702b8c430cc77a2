package store

import (
	"context"
	"sync/atomic"
)

// Tracker asks a store for its identity, and remembers the last answer. It is safe for concurrent use.
type Tracker struct {
	store interface {
		Identity(ctx context.Context) (Identity, error)
	}
	last atomic.Pointer[Identity]
}

// NewTracker returns a Tracker of a store that was not asked yet.
func NewTracker(s interface {
	Identity(ctx context.Context) (Identity, error)
},
) *Tracker {
	return &Tracker{store: s}
}

// Ask asks the store. A failed attempt does not change what Last returns.
func (t *Tracker) Ask(ctx context.Context) (Identity, error) {
	now, err := t.store.Identity(ctx)
	if err != nil {
		return Identity{}, err
	}
	t.last.Store(&now)
	return now, nil
}

// Last returns the last answer of the store, or the zero value if it has not answered yet.
func (t *Tracker) Last() Identity {
	if last := t.last.Load(); last != nil {
		return *last
	}
	return Identity{}
}
