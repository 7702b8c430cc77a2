// Package fairgate lets namespaces take turns at an activity that a process may do only a bounded number of times at
// the same time.
package fairgate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// alone is the time after which a namespace may use the whole gate if no other namespace has called Enter.
const alone = 10 * time.Second

// Gate limits how many goroutines are inside at the same time. While several namespaces use the gate, each of them also
// has a smaller limit of its own. A namespace that has used the gate alone may fill it. Another namespace then waits
// until a goroutine leaves, but not for the waiting goroutines of the first namespace. Waiting namespaces enter in
// turn, and the goroutines of one namespace in the order of their arrival. Gate is safe for concurrent use. A nil Gate
// has no limit.
type Gate struct {
	atOnce, ofNamespace int

	mu   sync.Mutex
	free int
	open bool
	// lastCalls holds the two namespaces that called Enter most recently, the newest first.
	lastCalls [2]struct {
		namespace string
		at        time.Time
	}
	// inside counts the goroutines inside, and waiting holds the channels of the waiting goroutines in order, both by
	// namespace. The maps have no entries that are 0 or empty.
	inside  map[string]int
	waiting map[string][]chan struct{}
	// turns are the namespaces with waiting goroutines, the next one first.
	turns []string
}

// New returns a gate that admits at most atOnce goroutines. If another namespace has called Enter within the last 10
// seconds, fewer goroutines of a namespace may be inside. Let n be the number of the namespace's goroutines, inside and
// waiting. If n is at most half of atOnce, all of them may be inside. Otherwise atOnce-n of them may be inside, but at
// least ofNamespace. Both arguments must be at least 1.
func New(atOnce, ofNamespace int) *Gate {
	if atOnce < 1 || ofNamespace < 1 {
		panic(fmt.Sprintf("fairgate: New(%d, %d): both must be at least 1", atOnce, ofNamespace))
	}
	return &Gate{atOnce: atOnce, ofNamespace: ofNamespace, free: atOnce, inside: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// Enter waits until it is the namespace's turn. It returns an error only if ctx ends. If it returns nil, the caller
// must call Leave.
func (g *Gate) Enter(ctx context.Context, namespace string) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	g.recordCall(namespace)
	if g.open || g.free > 0 && len(g.waiting[namespace]) == 0 && g.mayEnter(namespace, 1) {
		g.admit(namespace)
		g.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if len(g.waiting[namespace]) == 0 {
		g.turns = append(g.turns, namespace)
	}
	g.waiting[namespace] = append(g.waiting[namespace], turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting[namespace], turn); i >= 0 {
		g.remove(namespace, i)
		g.fill() // a namespace with fewer waiting goroutines may have more goroutines inside
		return context.Cause(ctx)
	}
	return nil // the goroutine was admitted at the same time
}

// Leave records that a goroutine has left, and admits the next one. The namespace must be the same as in the call of
// Enter.
func (g *Gate) Leave(namespace string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	if g.inside[namespace]--; g.inside[namespace] == 0 {
		delete(g.inside, namespace)
	}
	g.fill()
}

// Open admits all goroutines from now on, including those that wait. It is for a process that stops, which has little
// time for its last writes.
func (g *Gate) Open() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	for _, namespace := range g.turns {
		for _, turn := range g.waiting[namespace] {
			g.admit(namespace)
			close(turn)
		}
		delete(g.waiting, namespace)
	}
	g.turns = nil
}

// fill admits waiting goroutines until the gate is full or no goroutine may enter.
func (g *Gate) fill() {
	for g.free > 0 && g.admitNext() {
	}
}

// admitNext admits one goroutine of the first namespace that is below its limit, and moves that namespace behind the
// other namespaces. It reports whether there was such a namespace.
func (g *Gate) admitNext() bool {
	for i, namespace := range g.turns {
		if !g.mayEnter(namespace, len(g.waiting[namespace])) {
			continue
		}
		g.admit(namespace)
		close(g.waiting[namespace][0])
		g.turns = append(slices.Delete(g.turns, i, i+1), namespace)
		g.remove(namespace, 0)
		return true
	}
	return false
}

// recordCall records a call of Enter.
func (g *Gate) recordCall(namespace string) {
	last := &g.lastCalls
	if last[0].namespace != namespace {
		last[1] = last[0]
	}
	last[0].namespace, last[0].at = namespace, time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
}

// mayEnter reports whether one more goroutine of a namespace may enter if the gate is not full. waiting is the number
// of the namespace's waiting goroutines, including the one that would enter.
func (g *Gate) mayEnter(namespace string, waiting int) bool {
	other := g.lastCalls[0]
	if other.namespace == namespace {
		other = g.lastCalls[1]
	}
	if other.at.IsZero() || time.Since(other.at) > alone {
		return true
	}
	inside := g.inside[namespace]
	all := inside + waiting
	return inside < max(g.ofNamespace, min(all, g.atOnce-all))
}

func (g *Gate) admit(namespace string) {
	g.free--
	g.inside[namespace]++
}

// remove removes the waiting goroutine with index i. If the namespace then has no waiting goroutines, remove also
// removes it from turns.
func (g *Gate) remove(namespace string, i int) {
	if left := slices.Delete(g.waiting[namespace], i, i+1); len(left) > 0 {
		g.waiting[namespace] = left
		return
	}
	delete(g.waiting, namespace)
	g.turns = slices.DeleteFunc(g.turns, func(n string) bool { return n == namespace })
}
