// Package fairgate lets namespaces take turns at an activity that a process may do only a bounded number of times
// at once.
package fairgate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// alone is the time after which a namespace may use the whole gate, if no other namespace has called Enter meanwhile.
const alone = 10 * time.Second

// Gate limits how many goroutines are inside at once. While several namespaces use the gate, each of them also has a
// smaller limit of its own. A namespace that has used the gate alone may fill it; another namespace then waits until
// goroutines leave, and not behind those that wait. Waiting namespaces enter in turn, and the goroutines of one
// namespace in the order of their arrival. Gate is safe for concurrent use. A nil Gate has no bound.
type Gate struct {
	atOnce, ofNamespace int

	mu   sync.Mutex
	free int
	open bool
	// came are the two namespaces that called Enter most recently, the newest first.
	came [2]struct {
		namespace string
		at        time.Time
	}
	// inside is the number of goroutines inside, and waiting are the waiting ones in order, both by namespace. They
	// have no entries that are 0 or empty.
	inside  map[string]int
	waiting map[string][]chan struct{}
	// turns are the namespaces with waiting goroutines, the next one first.
	turns []string
}

// New returns a gate that lets in at most atOnce goroutines. If another namespace has called Enter within the last 10
// seconds, fewer goroutines of a namespace may be inside. Let n be the number of its goroutines, inside and waiting. If
// n is at most half of atOnce, all of them may be inside. Otherwise atOnce-n may be inside, but at least ofNamespace.
// Both numbers must be at least 1.
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
	g.come(namespace)
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
		g.fill() // with fewer goroutines, the namespace may have more inside
		return context.Cause(ctx)
	}
	return nil // it was let in at the same time
}

// Leave lets in the next goroutine. The namespace must be the one that was given to Enter.
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

// Open lets in all goroutines from now on, including those that wait. A process that stops has little time for its
// last writes.
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

// fill lets in goroutines as long as there are places and goroutines that may enter.
func (g *Gate) fill() {
	for g.free > 0 && g.next() {
	}
}

// next lets in one goroutine of the first namespace that is below its bound, and moves that namespace behind the
// others. It reports whether there was one.
func (g *Gate) next() bool {
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

// come records a call of Enter.
func (g *Gate) come(namespace string) {
	if g.came[0].namespace != namespace {
		g.came[1] = g.came[0]
	}
	g.came[0].namespace, g.came[0].at = namespace, time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
}

// mayEnter reports whether one more goroutine of a namespace may enter if the gate is not full. waiting is the
// number of its goroutines that wait, including that one.
func (g *Gate) mayEnter(namespace string, waiting int) bool {
	other := g.came[0]
	if other.namespace == namespace {
		other = g.came[1]
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

// remove removes a waiting goroutine. It also removes the turn of a namespace without waiting goroutines.
func (g *Gate) remove(namespace string, i int) {
	if left := slices.Delete(g.waiting[namespace], i, i+1); len(left) > 0 {
		g.waiting[namespace] = left
		return
	}
	delete(g.waiting, namespace)
	g.turns = slices.DeleteFunc(g.turns, func(n string) bool { return n == namespace })
}
