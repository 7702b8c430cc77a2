package controller

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ExecutorInfo is an executor that Turns can be bound to.
type ExecutorInfo struct {
	// Name of the executor.
	Name string
	// Capacity is how many Turns may be bound to it at once.
	Capacity int
}

// places counts which Turns are bound where, ahead of the cache: a place is taken before the binding is written, so that
// reconcilers that run side by side never give one place to two. It also knows who waits, and whom a free place wakes.
type places struct {
	mu      sync.Mutex
	taken   map[types.NamespacedName]place
	waiting map[types.NamespacedName]waiter
	// wake brings a Turn back to its reconciler.
	wake func(types.NamespacedName)
}

type place struct {
	agent    types.NamespacedName
	executor string
}

type waiter struct {
	agent types.NamespacedName
	since time.Time
}

func newPlaces(wake func(types.NamespacedName)) *places {
	return &places{taken: map[types.NamespacedName]place{}, waiting: map[types.NamespacedName]waiter{}, wake: wake}
}

// hold notes that a Turn is bound.
func (p *places) hold(turn, agent types.NamespacedName, executor string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, turn)
	p.taken[turn] = place{agent: agent, executor: executor}
}

// leave notes that a Turn neither runs nor waits, and wakes those who may now run.
func (p *places) leave(turn types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	freed, held := p.taken[turn]
	left, waited := p.waiting[turn]
	delete(p.taken, turn)
	delete(p.waiting, turn)
	if held {
		p.wakeNext(&freed.agent)
		p.wakeNext(nil)
	} else if waited {
		p.wakeNext(&left.agent)
	}
}

// take finds a place for a Turn of an agent that may run at most so many at once (0: any number). Turns of one agent get
// places in the order of since. It returns the executor, or why there is none; the Turn then waits, and is woken.
func (p *places) take(turn, agent types.NamespacedName, since time.Time, most int, executors []ExecutorInfo) (executor, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, turn) // a Turn that comes back from a lost executor gives its place up first
	p.waiting[turn] = waiter{agent: agent, since: since}
	if n := p.countAgent(agent); most > 0 && n >= most {
		return "", fmt.Sprintf("Agent %q runs %d turns, which is all it may run at once", agent.Name, n)
	}
	if first, ok := p.first(&agent); ok && first != turn {
		p.wake(first)
		return "", fmt.Sprintf("earlier turns of Agent %q go first", agent.Name)
	}
	free := p.freest(executors)
	switch {
	case len(executors) == 0:
		return "", "no executor is running"
	case free == "":
		return "", "all executors run as many turns as they can"
	}
	delete(p.waiting, turn)
	p.taken[turn] = place{agent: agent, executor: free}
	p.wakeNext(&agent)
	return free, ""
}

// giveBack undoes a take whose binding was not written. The Turn comes back by itself.
func (p *places) giveBack(turn types.NamespacedName) { p.leave(turn) }

// wakeAll brings all who wait back, as when an executor has appeared.
func (p *places) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for turn := range p.waiting {
		p.wake(turn)
	}
}

func (p *places) countAgent(agent types.NamespacedName) int {
	n := 0
	for _, t := range p.taken {
		if t.agent == agent {
			n++
		}
	}
	return n
}

// freest is the executor with the most free places, the first by name among equals; empty if all are full.
func (p *places) freest(executors []ExecutorInfo) string {
	used := map[string]int{}
	for _, t := range p.taken {
		used[t.executor]++
	}
	best, most := "", 0
	for _, e := range slices.SortedFunc(slices.Values(executors), func(a, b ExecutorInfo) int { return cmp.Compare(a.Name, b.Name) }) {
		if free := e.Capacity - used[e.Name]; free > most {
			best, most = e.Name, free
		}
	}
	return best
}

// first is who has waited longest, of an agent or of all; names break ties.
func (p *places) first(agent *types.NamespacedName) (types.NamespacedName, bool) {
	var best types.NamespacedName
	found := false
	for turn, w := range p.waiting {
		if agent != nil && w.agent != *agent {
			continue
		}
		if b := p.waiting[best]; !found || w.since.Before(b.since) || (w.since.Equal(b.since) && turn.String() < best.String()) {
			best, found = turn, true
		}
	}
	return best, found
}

func (p *places) wakeNext(agent *types.NamespacedName) {
	if next, ok := p.first(agent); ok {
		p.wake(next)
	}
}
