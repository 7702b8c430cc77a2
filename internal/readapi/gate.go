package readapi

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// perFree is the number of slots that the requests for one namespace may have for each free slot. So one namespace has
// at most three quarters of the slots. Several namespaces together can use all of them: of 64 slots, the first may get
// 48, the second 12, the third 3 and the fourth 1.
const perFree = 3

// gate limits the number of concurrent requests, in total, for each user, and for each namespace whose data is read. So
// neither a user who reads slowly nor a namespace with many service accounts can use all slots. It is safe for
// concurrent use.
type gate struct {
	// all is the number of slots, and each that of one user.
	all, each int

	mu   sync.Mutex
	used int
	// users and namespaces count the used slots of each user and of each namespace. Entries of 0 are removed.
	users, namespaces map[string]int
	// waiting has the requests that wait, in order, as *visitor.
	waiting list.List
}

// visitor is a request that waits.
type visitor struct {
	namespace, user string
	// admitted is closed when the request has a slot.
	admitted chan struct{}
}

func newGate(all, each int) *gate {
	return &gate{all: all, each: each, users: map[string]int{}, namespaces: map[string]int{}}
}

// enter waits for a slot, at most for the given time; 0 means that it does not wait. If ok is true, the caller must
// call leave.
func (g *gate) enter(ctx context.Context, namespace, user string, wait time.Duration) (leave func(), ok bool) {
	v := &visitor{namespace: namespace, user: user, admitted: make(chan struct{})}
	g.mu.Lock()
	place := g.waiting.PushBack(v)
	g.admit()
	g.mu.Unlock()
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	select {
	case <-v.admitted:
		return func() { g.leave(v) }, true
	case <-waiting.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-v.admitted: // at the same time, or before the wait
		return func() { g.leave(v) }, true
	default:
		g.waiting.Remove(place)
		return nil, false
	}
}

// admit gives free slots to waiting requests: first to those of the namespace with the fewest slots, and among them in
// order. The caller must hold the lock.
func (g *gate) admit() {
	for {
		var first *list.Element
		var v *visitor
		for e := g.waiting.Front(); e != nil; e = e.Next() {
			other, _ := e.Value.(*visitor)
			fits := g.users[other.user] < g.each && g.namespaces[other.namespace] < perFree*(g.all-g.used)
			if fits && (first == nil || g.namespaces[other.namespace] < g.namespaces[v.namespace]) {
				first, v = e, other
			}
		}
		if first == nil {
			return
		}
		g.used++
		g.users[v.user]++
		g.namespaces[v.namespace]++
		g.waiting.Remove(first)
		close(v.admitted)
	}
}

func (g *gate) leave(v *visitor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used--
	if g.users[v.user]--; g.users[v.user] == 0 {
		delete(g.users, v.user)
	}
	if g.namespaces[v.namespace]--; g.namespaces[v.namespace] == 0 {
		delete(g.namespaces, v.namespace)
	}
	g.admit()
}
