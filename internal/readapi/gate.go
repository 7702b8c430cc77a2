package readapi

import (
	"context"
	"sync"
	"time"
)

// gate bounds the number of concurrent requests, in total and for each user, so that a user who reads slowly does
// not block the others. It is safe for concurrent use.
type gate struct {
	all chan struct{}
	// each is the number of slots of one user.
	each int

	mu    sync.Mutex
	users map[string]*visitor
}

// visitor is a user who has slots or waits for one.
type visitor struct {
	slots chan struct{}
	// present counts the calls that use the visitor. The visitor is removed after the last one.
	present int
}

func newGate(all, each int) *gate {
	return &gate{all: make(chan struct{}, all), each: each, users: map[string]*visitor{}}
}

// enter waits for a slot, at most for the given time; 0 means that it does not wait. A user whose own slots are
// used up does not wait for one of the common slots. If ok is true, the caller must call leave.
func (g *gate) enter(ctx context.Context, user string, wait time.Duration) (leave func(), ok bool) {
	v := g.arrive(user)
	over, stop := context.WithTimeout(ctx, wait)
	defer stop()
	if !take(over, v.slots) {
		g.depart(user, v)
		return nil, false
	}
	if !take(over, g.all) {
		<-v.slots
		g.depart(user, v)
		return nil, false
	}
	return func() {
		<-g.all
		<-v.slots
		g.depart(user, v)
	}, true
}

func (g *gate) arrive(user string) *visitor {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.users[user]
	if v == nil {
		v = &visitor{slots: make(chan struct{}, g.each)}
		g.users[user] = v
	}
	v.present++
	return v
}

func (g *gate) depart(user string, v *visitor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.present--; v.present == 0 {
		delete(g.users, user)
	}
}

// take takes a slot. It takes a free slot even if ctx has already ended.
func take(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
