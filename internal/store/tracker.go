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
	// Published returns the greatest position that any process has published for the store with an ID, or 0 if
	// there is none. If Published is nil, only the positions that this process has seen count.
	Published func(ctx context.Context, id string) (int64, error)
	// Lost is called when this process has found that the store may have lost acknowledged appends. known is the
	// greatest known position of the store. found is the state before the mark that detected the loss, and now the
	// state after it. found has a smaller position than known, or has failed over. If Lost is nil, losses are not
	// reported.
	Lost func(known int64, found, now State)
}

// NewTracker returns a Tracker of a store. It sends no request yet.
func NewTracker(s PositionStore, o TrackerOptions) *Tracker { return &Tracker{store: s, o: o} }

// Identity returns the identity of the store. It first compares the store with the greatest known position in three
// cases: on the first call, if the store is behind the positions that this process has seen, or if its identity has
// changed. A failed attempt does not change the result of Last.
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

// Mark does the same as Identity, and then gives the store a new position if this process has appended to it.
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

// isContinued reports whether a state belongs to the store as this process knows it.
func (t *Tracker) isContinued(now State) bool {
	last := t.last.Load()
	return last != nil && !now.Unsure && now.Identity == last.Identity && now.Position >= last.Position
}

// compare compares the store with the greatest known position.
func (t *Tracker) compare(ctx context.Context) (State, error) {
	t.comparing.Lock()
	defer t.comparing.Unlock()
	now, err := t.store.State(ctx)
	if err != nil {
		return State{}, err
	}
	if t.isContinued(now) { // another call has judged it
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

// storeState stores a state of the same identity. Concurrent calls may deliver an older state last, which is
// ignored.
func (t *Tracker) storeState(now State) {
	for {
		last := t.last.Load()
		if last == nil || last.Identity != now.Identity || last.Position >= now.Position || t.last.CompareAndSwap(last, &now) {
			return
		}
	}
}
