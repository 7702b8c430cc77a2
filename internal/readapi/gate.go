package readapi

import (
	"context"
	"sync"
	"time"
)

// gate bounds what goes on at once, in all and for each user, so that one who reads slowly does not keep the others out. It is
// safe for concurrent use.
type gate struct {
	all chan struct{}
	// each is how many a user may have.
	each int

	mu    sync.Mutex
	users map[string]*visitor
}

// visitor is a user who is in, or waits.
type visitor struct {
	slots chan struct{}
	// present counts the calls that use it: it is forgotten with the last.
	present int
}

func newGate(all, each int) *gate {
	return &gate{all: make(chan struct{}, all), each: each, users: map[string]*visitor{}}
}

// enter waits for a place, at most for a time: 0 for not at all. Who may not have one of their own does not wait among the
// others. leave must be called if ok.
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

// take takes a slot, one that is free even if there is no time to wait.
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
