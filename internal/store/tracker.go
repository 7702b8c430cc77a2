package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// PositionStore is a store with an identity and a position. See Store.
type PositionStore interface {
	State(ctx context.Context) (State, error)
	Mark(ctx context.Context, least int64) (State, error)
}

// Tracker follows the identity and the position of a store, and detects that the store has lost entries. It is safe
// for concurrent use.
type Tracker struct {
	store PositionStore
	o     TrackerOptions
	last  atomic.Pointer[State]
	// comparing is locked while the store is compared or marked.
	comparing sync.Mutex
}

// TrackerOptions configures a Tracker. The zero value is ready to use.
type TrackerOptions struct {
	// Published returns the greatest position that any process has published for the store with this ID, or 0 if no
	// position was published. If Published is nil, only the positions that this process has seen count.
	Published func(ctx context.Context, id string) (int64, error)
	// Lost is called when this process finds that the store may have lost acknowledged appends. known is the greatest
	// known position of the store. found is the state before the mark that detected the loss, and marked is the state
	// after the mark. If the position of found is not less than known, the store has failed over to another server, or
	// was replaced. If Lost is nil, losses are not reported.
	Lost func(known int64, found, marked State)
}

// NewTracker returns a Tracker of a store. It sends no request yet.
func NewTracker(s PositionStore, o TrackerOptions) *Tracker { return &Tracker{store: s, o: o} }

// Identity returns the identity of the store. On the first call, and whenever the store may have lost entries, Identity
// also compares the store with the greatest known position. The store may have lost entries if its position is less
// than the last known position, its identity has changed, or its state is Unsure. If Identity fails, the result of Last
// does not change.
func (t *Tracker) Identity(ctx context.Context) (Identity, error) {
	state, err := t.store.State(ctx)
	if err != nil {
		return Identity{}, err
	}
	if t.isContinued(state) {
		return state.Identity, nil // Last stays, because the position of state may not be confirmed
	}
	state, err = t.compare(ctx)
	return state.Identity, err
}

// Mark does the same as Identity, and then gives the store a new position if there may be appends since the last mark.
func (t *Tracker) Mark(ctx context.Context) error {
	if _, err := t.Identity(ctx); err != nil {
		return err
	}
	t.comparing.Lock()
	defer t.comparing.Unlock()
	before := t.Last()
	marked, err := t.store.Mark(ctx, before.Position)
	if err != nil {
		return err
	}
	t.storeMark(before.Position, before, marked)
	return nil
}

// Last returns the state that the last successful mark of this process returned, or the zero value if there was none.
// The store has confirmed this position, so it may be published. A position that the store only shows may be lost: if a
// mark times out while the server waits for a standby, the server shows its position, and the standby may lack it.
func (t *Tracker) Last() State {
	if last := t.last.Load(); last != nil {
		return *last
	}
	return State{}
}

// isContinued reports whether a state follows the last known state without a loss: the identity is the same, the
// position has not decreased, and the state is not Unsure.
func (t *Tracker) isContinued(state State) bool {
	last := t.last.Load()
	return last != nil && !state.Unsure && state.Identity == last.Identity && state.Position >= last.Position
}

// compare marks the store with the greatest known position, which detects a loss, and returns the new state.
func (t *Tracker) compare(ctx context.Context) (State, error) {
	t.comparing.Lock()
	defer t.comparing.Unlock()
	found, err := t.store.State(ctx)
	if err != nil {
		return State{}, err
	}
	if t.isContinued(found) { // a concurrent call has compared the store
		return found, nil
	}
	var known int64
	if last := t.Last(); last.ID == found.ID {
		known = last.Position
	}
	if t.o.Published != nil {
		published, err := t.o.Published(ctx, found.ID)
		if err != nil {
			return State{}, fmt.Errorf("failed to get the published position of the store: %w", err)
		}
		known = max(known, published)
	}
	marked, err := t.store.Mark(ctx, known)
	if err != nil {
		return State{}, err
	}
	t.storeMark(known, found, marked)
	return marked, nil
}

// storeMark stores the result of a mark, and reports a loss.
func (t *Tracker) storeMark(known int64, found, marked State) {
	lost := marked.Lost
	marked.Lost = false
	t.last.Store(&marked)
	if lost && t.o.Lost != nil {
		t.o.Lost(known, found, marked)
	}
}
