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
	// known position of the store. found is the state before the mark that detected the loss, and now is the state
	// after the mark. Either the position of found is less than known, or the store has failed over. If Lost is nil,
	// losses are not reported.
	Lost func(known int64, found, now State)
}

// NewTracker returns a Tracker of a store. It sends no request yet.
func NewTracker(s PositionStore, o TrackerOptions) *Tracker { return &Tracker{store: s, o: o} }

// Identity returns the identity of the store. It first compares the store with the greatest known position on the
// first call, and whenever the store may have lost entries: its position is less than the last known one, its identity
// has changed, or its state is Unsure. If Identity fails, the result of Last does not change.
func (t *Tracker) Identity(ctx context.Context) (Identity, error) {
	now, err := t.store.State(ctx)
	if err != nil {
		return Identity{}, err
	}
	if t.isContinued(now) {
		t.storeState(now)
		return now.Identity, nil
	}
	now, err = t.compare(ctx)
	return now.Identity, err
}

// Mark does the same as Identity, and then gives the store a new position if there may be appends since the last mark.
func (t *Tracker) Mark(ctx context.Context) error {
	if _, err := t.Identity(ctx); err != nil {
		return err
	}
	t.comparing.Lock()
	defer t.comparing.Unlock()
	before := t.Last()
	now, err := t.store.Mark(ctx, before.Position)
	if err != nil {
		return err
	}
	t.storeMark(before.Position, before, now)
	return nil
}

// Last returns the last known state of the store, or the zero value if the store has not replied yet. The store has
// confirmed this position, so it may be published.
func (t *Tracker) Last() State {
	if last := t.last.Load(); last != nil {
		return *last
	}
	return State{}
}

// isContinued reports whether a state follows the last known state without a loss: the identity is the same, the
// position has not decreased, and the state is not Unsure.
func (t *Tracker) isContinued(now State) bool {
	last := t.last.Load()
	return last != nil && !now.Unsure && now.Identity == last.Identity && now.Position >= last.Position
}

// compare marks the store with the greatest known position, which detects a loss, and returns the new state.
func (t *Tracker) compare(ctx context.Context) (State, error) {
	t.comparing.Lock()
	defer t.comparing.Unlock()
	now, err := t.store.State(ctx)
	if err != nil {
		return State{}, err
	}
	if t.isContinued(now) { // a concurrent call has compared the store
		return now, nil
	}
	var known int64
	if last := t.Last(); last.ID == now.ID {
		known = last.Position
	}
	if t.o.Published != nil {
		published, err := t.o.Published(ctx, now.ID)
		if err != nil {
			return State{}, fmt.Errorf("failed to get the published position of the store: %w", err)
		}
		known = max(known, published)
	}
	found := now
	if now, err = t.store.Mark(ctx, known); err != nil {
		return State{}, err
	}
	t.storeMark(known, found, now)
	return now, nil
}

// storeMark stores the result of a mark, and reports a loss.
func (t *Tracker) storeMark(known int64, found, now State) {
	lost := now.Lost
	now.Lost = false
	t.last.Store(&now)
	if lost && t.o.Lost != nil {
		t.o.Lost(known, found, now)
	}
}

// storeState stores a state of the same identity. It ignores a state that is older than the stored one, because
// concurrent calls may store their states in any order.
func (t *Tracker) storeState(now State) {
	for {
		last := t.last.Load()
		if last == nil || last.Identity != now.Identity || last.Position >= now.Position || t.last.CompareAndSwap(last, &now) {
			return
		}
	}
}
