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
	"github.com/capstan-dev/capstan/internal/executor"
)

// ExecutorInfo is an executor that Turns can be bound to.
type ExecutorInfo struct {
	// Name of the executor.
	Name string
	// Capacity is how many Turns may be bound to it at once.
	Capacity int
	// Store is where it keeps journals; the zero value where it does not say, as an executor of an older version.
	Store executor.StoreIdentity
}

// places counts which Turns are bound where, ahead of the cache: a place is taken before the binding is written, so that
// reconcilers that run side by side never give one place to two. It also knows who waits, and whom a free place wakes.
//
// Where Turns wait, a free place goes to the namespace that runs the fewest, and within it to the Turn that has waited
// longest. So however many Turns one namespace has waiting, the first of another waits for one place to become free.
type places struct {
	mu      sync.Mutex
	taken   map[types.NamespacedName]place
	waiting map[types.NamespacedName]request
	// passing are Turns that wait and cannot take a place at present, as while nobody has looked at their changed agent.
	// Until they come back they keep later Turns of their agent waiting, and nobody else.
	passing map[types.NamespacedName]bool
	// looking are Turns that do not wait for a place, and want to know of an executor that appears.
	looking map[types.NamespacedName]bool
	// stranded is set when a Turn was told that there is no executor, until all are woken.
	stranded bool
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

// allExecutorsFull is what a Turn is told for which there is no place.
const allExecutorsFull = "all executors run as many turns as they can"

func newPlaces(wake func(types.NamespacedName)) *places {
	return &places{
		taken: map[types.NamespacedName]place{}, waiting: map[types.NamespacedName]request{},
		passing: map[types.NamespacedName]bool{}, looking: map[types.NamespacedName]bool{}, wake: wake,
	}
}

// hold notes that a Turn is bound, as the API server has it.
func (p *places) hold(t *v1alpha1.Turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := client.ObjectKeyFromObject(t)
	p.forget(key)
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
	p.forget(turn)
	if held || waited { // a Turn that waited may have been woken for a place that it does not take
		p.wakeNext()
	}
}

// pass notes that a Turn that waits was looked at and keeps waiting, without having asked for a place: whoever brought it
// back may have meant it to take one, so the next is woken in its stead. It goes on waiting where it was when it asks again.
func (p *places) pass(turn types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, waits := p.waiting[turn]; waits && !p.passing[turn] {
		p.passing[turn] = true
		p.wakeNext()
	}
}

// forget drops a Turn from those that wait.
func (p *places) forget(turn types.NamespacedName) {
	delete(p.waiting, turn)
	delete(p.passing, turn)
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
	p.forget(r.turn)
	delete(p.taken, r.turn)
	if len(executors) == 0 {
		p.stranded = true
		return ""
	}
	delete(p.looking, r.turn)
	name, free := p.freest(executors)
	if name == "" {
		name = executors[0].Name
	}
	p.taken[r.turn] = place{agent: r.agent, executor: name}
	if free > 1 {
		p.wakeNext()
	}
	return name
}

// take finds a place for a Turn. It returns the executor, or why there is none; the Turn then waits, and is woken. A Turn
// does not take the last places from those that have more right to them, which the places are counted off to.
//
// One free place wakes one Turn; a Turn that takes its place, or cannot, wakes the next as long as there may be another
// place. So no place stays free while somebody who may have it waits.
func (p *places) take(r request, executors []ExecutorInfo) (executor, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.looking, r.turn)
	delete(p.passing, r.turn)
	delete(p.taken, r.turn) // a Turn that comes back from a lost executor gives its place up first
	p.waiting[r.turn] = r
	now := p.load()
	if !now.mayRun(r) {
		p.wakeNext()
		return "", fmt.Sprintf("Agent %q runs as many turns as it may at once (maxParallelTurns is %d)", r.agent.Name, r.most)
	}
	if first, earlier := p.earlier(r); earlier {
		if !p.passing[first] { // which comes back by itself
			p.wake(first)
		}
		return "", fmt.Sprintf("earlier turns of Agent %q go first", r.agent.Name)
	}
	name, free := p.freest(executors)
	switch {
	case len(executors) == 0:
		p.stranded = true
		return "", "no executor is running"
	case free == 0:
		return "", allExecutorsFull
	}
	if first, ahead := p.ahead(r, now); ahead >= free {
		p.wake(first)
		return "", allExecutorsFull // or will be in a moment
	}
	p.forget(r.turn)
	p.taken[r.turn] = place{agent: r.agent, executor: name}
	if free > 1 {
		p.wakeNext()
	}
	return name, ""
}

// wakeAll brings all who wait or look back, as when an executor has appeared.
func (p *places) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stranded = false
	for turn := range p.looking {
		p.wake(turn)
	}
	for _, r := range slices.SortedFunc(maps.Values(p.waiting), request.compare) {
		p.wake(r.turn)
	}
}

// load is how many places are taken.
type load struct {
	agents     map[types.NamespacedName]int
	namespaces map[string]int
}

// load counts the places that are taken.
func (p *places) load() load {
	l := load{agents: map[types.NamespacedName]int{}, namespaces: map[string]int{}}
	for turn, t := range p.taken {
		l.agents[t.agent]++
		l.namespaces[turn.Namespace]++
	}
	return l
}

// mayRun says whether a Turn's agent may run one more.
func (l load) mayRun(r request) bool {
	return r.most <= 0 || l.agents[r.agent] < r.most
}

// compare orders requests by who has more right to a free place: those of the namespace that runs fewer Turns, then those
// that have waited longer.
func (l load) compare(a, b request) int {
	return cmp.Or(
		cmp.Compare(l.namespaces[a.turn.Namespace], l.namespaces[b.turn.Namespace]),
		a.compare(b),
	)
}

// freest is the executor with the most free places, the first by name among equals, and how many places are free on all
// executors together.
func (p *places) freest(executors []ExecutorInfo) (name string, free int) {
	used := map[string]int{}
	for _, t := range p.taken {
		used[t.executor]++
	}
	most := 0
	for _, e := range slices.SortedFunc(slices.Values(executors), func(a, b ExecutorInfo) int { return cmp.Compare(a.Name, b.Name) }) {
		left := max(0, e.Capacity-used[e.Name])
		if free += left; left > most {
			name, most = e.Name, left
		}
	}
	return name, free
}

// earlier returns who has waited longest of those Turns of an agent that have waited longer than this one. One that passes
// counts: when an agent was looked at, all its Turns come back at once, and in any order.
func (p *places) earlier(r request) (first types.NamespacedName, any bool) {
	best := r
	for _, other := range p.waiting {
		if other.agent == r.agent && other.compare(best) < 0 {
			best = other
		}
	}
	return best.turn, best.turn != r.turn
}

// passed tells of a Turn that waits whether it, or an earlier one of its agent, passes.
func (p *places) passed() func(request) bool {
	first := map[types.NamespacedName]request{} // of each agent, of those that pass
	for turn := range p.passing {
		r := p.waiting[turn]
		if other, ok := first[r.agent]; !ok || r.compare(other) < 0 {
			first[r.agent] = r
		}
	}
	return func(r request) bool {
		other, ok := first[r.agent]
		return ok && other.compare(r) <= 0
	}
}

// ahead counts those who have more right to a free place than this one, and returns the first of them.
func (p *places) ahead(r request, now load) (first types.NamespacedName, n int) {
	best, passed := r, p.passed()
	for _, other := range p.waiting {
		if passed(other) || !now.mayRun(other) || now.compare(other, r) >= 0 {
			continue
		}
		n++
		if now.compare(other, best) < 0 {
			best = other
		}
	}
	return best.turn, n
}

// compare orders requests by how long they have waited; names break ties.
func (r request) compare(other request) int {
	return cmp.Or(
		r.since.Compare(other.since),
		strings.Compare(r.turn.Namespace, other.turn.Namespace),
		strings.Compare(r.turn.Name, other.turn.Name),
	)
}

// wakeNext wakes who has the most right to a free place.
func (p *places) wakeNext() {
	now := p.load()
	var best request
	found, passed := false, p.passed()
	for _, r := range p.waiting {
		if !passed(r) && now.mayRun(r) && (!found || now.compare(r, best) < 0) {
			best, found = r, true
		}
	}
	if found {
		p.wake(best.turn)
	}
}

// areStranded reports whether somebody was told that there is no executor.
func (p *places) areStranded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stranded
}

// holds reports whether a Turn has a place.
func (p *places) holds(turn types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.taken[turn]
	return ok
}
