package readapi

import (
	"context"
	"sync"
	"time"
)

// gate limits the number of concurrent requests, in total and for each user, so that a user who reads slowly does not
// block other users. It is safe for concurrent use.
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
	// present counts the calls of enter that use the visitor. The visitor is removed when the last of them has left.
	present int
}

func newGate(all, each int) *gate {
	return &gate{all: make(chan struct{}, all), each: each, users: map[string]*visitor{}}
}

// enter waits for a slot, at most for the given time; 0 means that it does not wait. It takes a slot of the user before
// it waits for one of the common slots. If ok is true, the caller must call leave.
func (g *gate) enter(ctx context.Context, user string, wait time.Duration) (leave func(), ok bool) {
	v := g.arrive(user)
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	if !take(waiting, v.slots) {
		g.depart(user, v)
		return nil, false
	}
	if !take(waiting, g.all) {
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
