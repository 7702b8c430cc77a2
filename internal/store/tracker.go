package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Marked is a store whose identity and position are followed: see Store.
type Marked interface {
	State(ctx context.Context) (State, error)
	Mark(ctx context.Context, least int64) (State, error)
}

// Tracker follows the identity and the position of a store, and notices a store that has lost what it had. It is safe for concurrent
// use.
type Tracker struct {
	store Marked
	o     TrackerOptions
	last  atomic.Pointer[State]
	// judging is held while the store is judged or marked.
	judging sync.Mutex
}

// TrackerOptions of a Tracker. The zero value is ready to use.
type TrackerOptions struct {
	// Published returns the greatest position that any process has published for the store of an ID; 0 for none. If it is nil, the
	// store is compared with what this process has seen alone.
	Published func(ctx context.Context, id string) (int64, error)
	// Lost is called when this process is the one that found that the store may have lost acknowledged appends. known is the greatest position
	// that the store was known to have had, found is its state before the mark that judged it, and now the one after it. found has a
	// smaller position than known, or has failed over. If Lost is nil, it is not called.
	Lost func(known int64, found, now State)
}

// NewTracker returns a Tracker of a store that was not asked yet.
func NewTracker(s Marked, o TrackerOptions) *Tracker { return &Tracker{store: s, o: o} }

// Ask asks the store which one it is. A store that this process asks for the first time, that is behind what this process has seen, or
// that has changed, is judged first. A failed attempt does not change what Last returns.
func (t *Tracker) Ask(ctx context.Context) (Identity, error) {
	now, err := t.store.State(ctx)
	if err != nil {
		return Identity{}, err
	}
	if t.isContinued(now) {
		t.saw(now)
		return now.Identity, nil
	}
	now, err = t.judge(ctx)
	return now.Identity, err
}

// Mark does what Ask does, and gives the store a new position if this process has appended to it.
func (t *Tracker) Mark(ctx context.Context) error {
	if _, err := t.Ask(ctx); err != nil {
		return err
	}
	t.judging.Lock()
	defer t.judging.Unlock()
	before := t.Last()
	now, err := t.store.Mark(ctx, before.Position)
	if err != nil {
		return err
	}
	t.told(before.Position, before, now)
	return nil
}

// Last returns the last answer of the store, or the zero value if it has not answered yet. Its position may be published: the store
// has it.
func (t *Tracker) Last() State {
	if last := t.last.Load(); last != nil {
		return *last
	}
	return State{}
}

// isContinued reports whether a state is that of the store as this process has known it.
func (t *Tracker) isContinued(now State) bool {
	last := t.last.Load()
	return last != nil && !now.Unsure && now.Identity == last.Identity && now.Position >= last.Position
}

// judge compares the store with the greatest position that is known of it.
func (t *Tracker) judge(ctx context.Context) (State, error) {
	t.judging.Lock()
	defer t.judging.Unlock()
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
			return State{}, fmt.Errorf("failed to learn which position of the store was published: %w", err)
		}
		known = max(known, published)
	}
	found := now
	if now, err = t.store.Mark(ctx, known); err != nil {
		return State{}, err
	}
	t.told(known, found, now)
	return now, nil
}

// told notes what a mark has returned.
func (t *Tracker) told(known int64, found, now State) {
	lost := now.Lost
	now.Lost = false
	t.last.Store(&now)
	if lost && t.o.Lost != nil {
		t.o.Lost(known, found, now)
	}
}

// saw notes a state of the same identity. Of calls that overlap, an earlier answer may come last.
func (t *Tracker) saw(now State) {
	for {
		last := t.last.Load()
		if last == nil || last.Identity != now.Identity || last.Position >= now.Position || t.last.CompareAndSwap(last, &now) {
			return
		}
	}
}
