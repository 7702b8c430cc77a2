// Package fairgate lets namespaces take turns at something of which a process does a bounded number at once.
package fairgate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// alone is how long no other namespace must have come for a namespace to have the gate for itself.
const alone = 10 * time.Second

// Gate lets a bounded number in at once, and of one namespace fewer while others come as well. So a namespace with thousands of
// goroutines before the gate neither fills it nor makes another namespace wait behind them: namespaces that wait are let in by turns, and
// within one those who came first. Gate is safe for concurrent use. A nil Gate lets everybody in.
type Gate struct {
	ofNamespace int
	// flows is the gate of Flow; nil where there is none.
	flows *Gate

	mu   sync.Mutex
	free int
	open bool
	// came are the two namespaces that came last, the last one first.
	came [2]struct {
		namespace string
		at        time.Time
	}
	// inside is how many of a namespace are inside; waiting those that are not, first come first. No entry is 0, or empty.
	inside  map[string]int
	waiting map[string][]chan struct{}
	// turns are the namespaces with goroutines that wait, the next one first.
	turns []string
}

// New returns a gate that lets atOnce in at once, and of one namespace at most ofNamespace while another has come within 10 seconds. Both
// are at least 1.
func New(atOnce, ofNamespace int) *Gate {
	if atOnce < 1 || ofNamespace < 1 {
		panic(fmt.Sprintf("fairgate: New(%d, %d): both must be at least 1", atOnce, ofNamespace))
	}
	return &Gate{ofNamespace: ofNamespace, free: atOnce, inside: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// Enter waits until it is the namespace's turn. Unless it returns an error, which is why ctx has ended, Leave must be called.
func (g *Gate) Enter(ctx context.Context, namespace string) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	g.come(namespace)
	if g.open || g.free > 0 && g.mayEnter(namespace) && len(g.waiting[namespace]) == 0 {
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
		return context.Cause(ctx)
	}
	return nil // it was let in at the same time
}

// Leave makes room for the next. The namespace is that of Enter.
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
	for g.free > 0 && g.next() {
	}
}

// Open lets all in from now on, those that wait as well: a process that stops has little time for what it must write.
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

// next lets one in, of the first namespace that may have one more inside, and puts that namespace behind the others. It reports
// whether there was one.
func (g *Gate) next() bool {
	for i, namespace := range g.turns {
		if !g.mayEnter(namespace) {
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

// come notes that a namespace has come.
func (g *Gate) come(namespace string) {
	if g.came[0].namespace != namespace {
		g.came[1] = g.came[0]
	}
	g.came[0].namespace, g.came[0].at = namespace, time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
}

// mayEnter says whether one more of a namespace may be inside, if there is room.
func (g *Gate) mayEnter(namespace string) bool {
	other := g.came[0]
	if other.namespace == namespace {
		other = g.came[1]
	}
	return g.inside[namespace] < g.ofNamespace || other.at.IsZero() || time.Since(other.at) > alone
}

func (g *Gate) admit(namespace string) {
	g.free--
	g.inside[namespace]++
}

// remove takes one from those who wait. A namespace of which nobody waits has no turn.
func (g *Gate) remove(namespace string, i int) {
	if left := slices.Delete(g.waiting[namespace], i, i+1); len(left) > 0 {
		g.waiting[namespace] = left
		return
	}
	delete(g.waiting, namespace)
	g.turns = slices.DeleteFunc(g.turns, func(n string) bool { return n == namespace })
}
