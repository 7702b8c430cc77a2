package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
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
	waiting map[types.NamespacedName]request
	// looking are Turns that do not wait for a place, and want to know of an executor that appears.
	looking map[types.NamespacedName]bool
	// wake brings a Turn back to its reconciler.
	wake func(types.NamespacedName)
}

// place is one Turn's share of an executor and of its agent's maxParallelTurns.
type place struct {
	agent    types.NamespacedName
	executor string
}

// request is a Turn that wants a place.
type request struct {
	turn, agent types.NamespacedName
	// since orders the Turns that want one.
	since time.Time
	// most is how many Turns of the agent may run at once, 0 for any number.
	most int
}

// requestOf is the request of a Turn whose agent sets no limit.
func requestOf(t *v1alpha1.Turn) request {
	return request{turn: client.ObjectKeyFromObject(t), agent: agentKey(t), since: t.CreationTimestamp.Time}
}

func newPlaces(wake func(types.NamespacedName)) *places {
	return &places{taken: map[types.NamespacedName]place{}, waiting: map[types.NamespacedName]request{}, looking: map[types.NamespacedName]bool{}, wake: wake}
}

// hold notes that a Turn is bound, as the API server has it.
func (p *places) hold(t *v1alpha1.Turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := client.ObjectKeyFromObject(t)
	delete(p.waiting, key)
	p.taken[key] = place{agent: agentKey(t), executor: t.BoundTo()}
}

// leave notes that a Turn neither runs nor waits, and wakes who may now run.
func (p *places) leave(turn types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.looking, turn)
	_, held := p.taken[turn]
	_, waited := p.waiting[turn]
	delete(p.taken, turn)
	delete(p.waiting, turn)
	if held || waited { // a Turn that waited may have been woken for a place that it does not take
		p.wakeNext()
	}
}

// look notes that executors are looked for on behalf of a Turn: one that appears before the Turn takes a place, or
// waits for one, then wakes it. A Turn that looks is not in anybody's way.
func (p *places) look(turn types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looking[turn] = true
}

// claim takes the best place for a Turn that is to end, beyond all limits: it asks no model. It returns the executor,
// empty if there is none.
func (p *places) claim(r request, executors []ExecutorInfo) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, r.turn)
	delete(p.taken, r.turn)
	if len(executors) == 0 {
		return ""
	}
	delete(p.looking, r.turn)
	name, _ := p.freest(executors)
	if name == "" {
		name = executors[0].Name
	}
	p.taken[r.turn] = place{agent: r.agent, executor: name}
	return name
}

// take finds a place for a Turn. Turns of one agent get places in the order of since. It returns the executor, or why
// there is none; the Turn then waits, and is woken.
//
// One free place wakes one Turn; a Turn that takes its place, or cannot, wakes the next as long as there may be another
// place. So no place stays free while somebody who may have it waits.
func (p *places) take(r request, executors []ExecutorInfo) (executor, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.looking, r.turn)
	delete(p.taken, r.turn) // a Turn that comes back from a lost executor gives its place up first
	p.waiting[r.turn] = r
	if !mayRun(r, p.perAgent()) {
		p.wakeNext()
		return "", fmt.Sprintf("Agent %q runs as many turns as it may at once (maxParallelTurns is %d)", r.agent.Name, r.most)
	}
	if first, _ := p.first(func(other request) bool { return other.agent == r.agent }); first != r.turn {
		p.wake(first)
		return "", fmt.Sprintf("earlier turns of Agent %q go first", r.agent.Name)
	}
	free, places := p.freest(executors)
	switch {
	case len(executors) == 0:
		return "", "no executor is running"
	case places == 0:
		return "", "all executors run as many turns as they can"
	}
	delete(p.waiting, r.turn)
	p.taken[r.turn] = place{agent: r.agent, executor: free}
	if places > 1 {
		p.wakeNext()
	}
	return free, ""
}

// wakeAll brings all who wait or look back, as when an executor has appeared.
func (p *places) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for turn := range p.looking {
		p.wake(turn)
	}
	for _, r := range slices.SortedFunc(maps.Values(p.waiting), request.compare) {
		p.wake(r.turn)
	}
}

// perAgent counts the places that are taken.
func (p *places) perAgent() map[types.NamespacedName]int {
	running := map[types.NamespacedName]int{}
	for _, t := range p.taken {
		running[t.agent]++
	}
	return running
}

// mayRun says whether a Turn's agent may run one more.
func mayRun(r request, running map[types.NamespacedName]int) bool {
	return r.most <= 0 || running[r.agent] < r.most
}

// freest is the executor with the most free places, and how many these are; the first by name among equals.
func (p *places) freest(executors []ExecutorInfo) (name string, free int) {
	used := map[string]int{}
	for _, t := range p.taken {
		used[t.executor]++
	}
	for _, e := range slices.SortedFunc(slices.Values(executors), func(a, b ExecutorInfo) int { return cmp.Compare(a.Name, b.Name) }) {
		if left := e.Capacity - used[e.Name]; left > free {
			name, free = e.Name, left
		}
	}
	return name, free
}

// first is who has waited longest of those that count; names break ties.
func (p *places) first(counts func(request) bool) (types.NamespacedName, bool) {
	var best request
	found := false
	for _, r := range p.waiting {
		if counts(r) && (!found || r.compare(best) < 0) {
			best, found = r, true
		}
	}
	return best.turn, found
}

// compare orders requests by who may have a place first.
func (r request) compare(other request) int {
	return cmp.Or(
		r.since.Compare(other.since),
		strings.Compare(r.turn.Namespace, other.turn.Namespace),
		strings.Compare(r.turn.Name, other.turn.Name),
	)
}

// wakeNext wakes who has waited longest of those whose agent may run one more.
func (p *places) wakeNext() {
	running := p.perAgent()
	if next, ok := p.first(func(r request) bool { return mayRun(r, running) }); ok {
		p.wake(next)
	}
}
