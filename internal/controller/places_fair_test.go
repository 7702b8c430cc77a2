package controller

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// crowd is places with the queue that brings Turns back one by one, as a controller has it.
type crowd struct {
	*places
	t         *testing.T
	executors []ExecutorInfo
	requests  map[types.NamespacedName]request
	queue     []types.NamespacedName
	// looks counts how often a Turn was looked at; took are those that got a place, in order.
	looks int
	took  []types.NamespacedName
	made  int
	// fails says whether a look at a Turn fails, nil for never; failed are those that come back later for it.
	fails  func() bool
	failed []types.NamespacedName
}

func newCrowd(t *testing.T, executors ...ExecutorInfo) *crowd {
	c := &crowd{t: t, executors: executors, requests: map[types.NamespacedName]request{}}
	c.places = newPlaces(func(turn types.NamespacedName) {
		if !slices.Contains(c.queue, turn) {
			c.queue = append(c.queue, turn)
		}
	})
	return c
}

// comes creates a Turn; each is younger than those before it. It returns its name.
func (c *crowd) comes(namespace, agent string, most int) types.NamespacedName {
	c.made++
	r := request{
		turn:  types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("t%05d", c.made)},
		agent: types.NamespacedName{Namespace: namespace, Name: agent},
		since: now.Add(time.Duration(c.made) * time.Second), most: most,
	}
	c.requests[r.turn] = r
	c.wake(r.turn)
	return r.turn
}

// settles lets all Turns that were brought back ask for their places, until none is brought back any more.
func (c *crowd) settles() {
	c.t.Helper()
	for most := 3*len(c.requests) + 100; len(c.queue) > 0; most-- {
		if most == 0 {
			c.t.Fatal("Turns bring each other back for ever")
		}
		turn := c.queue[0]
		c.queue = c.queue[1:]
		r, there := c.requests[turn]
		if _, runs := c.taken[turn]; runs || !there {
			continue
		}
		c.looks++
		if c.fails != nil && c.fails() {
			c.pass(turn)
			c.failed = append(c.failed, turn)
			continue
		}
		if name, _ := c.take(r, c.executors); name != "" {
			c.took = append(c.took, turn)
		}
	}
}

// ends ends a Turn.
func (c *crowd) ends(turn types.NamespacedName) {
	delete(c.requests, turn)
	c.leave(turn)
}

// mayRun are the Turns that wait and would run if there were a place, those with the most right to it first.
func (c *crowd) mayRun() []types.NamespacedName {
	agents, namespaces := map[types.NamespacedName]int{}, map[string]int{}
	for turn := range c.taken {
		agents[c.requests[turn].agent]++
		namespaces[turn.Namespace]++
	}
	var all []types.NamespacedName
	for turn, r := range c.requests {
		if _, runs := c.taken[turn]; !runs && (r.most == 0 || agents[r.agent] < r.most) {
			all = append(all, turn)
		}
	}
	slices.SortFunc(all, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(namespaces[a.Namespace], namespaces[b.Namespace]), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// running are the Turns that have places, in the order of their creation.
func (c *crowd) running() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(c.taken), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
}

// free is how many places are free.
func (c *crowd) free() int {
	n := -len(c.taken)
	for _, e := range c.executors {
		n += e.Capacity
	}
	return n
}

func TestAFewTurnsDoNotWaitBehindAThousandOfAnotherNamespace(t *testing.T) {
	c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 3}, ExecutorInfo{Name: "f", Capacity: 2})
	for i := range 1000 {
		c.comes("many", fmt.Sprintf("agent-%d", i%7), 0)
	}
	c.settles()
	few := []types.NamespacedName{c.comes("few", "agent", 0), c.comes("few", "agent", 0), c.comes("few", "agent", 0)}
	c.settles()
	running := slices.Clone(c.took)
	c.took = nil
	for i, want := range []types.NamespacedName{few[0], few[1], c.mayRun()[0]} {
		if i == 2 { // both run two Turns then: who has waited longest goes first
			want = types.NamespacedName{Namespace: "many", Name: "t00006"}
		}
		c.looks = 0
		c.ends(running[i])
		c.comes("many", "late", 0) // one more, which must not be quicker
		c.settles()
		if got := c.took[len(c.took)-1]; len(c.took) != i+1 || got != want {
			t.Errorf("place %d went to %v, want it to go to %s", i+1, c.took[i:], want)
		}
		if c.looks > 3 {
			t.Errorf("%d Turns were looked at for one place", c.looks)
		}
	}
}

// TestPlacesAreFair lets Turns of several namespaces come and end in any order, and checks of each place who gets it.
func TestPlacesAreFair(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 1 + random.IntN(4)}, ExecutorInfo{Name: "f", Capacity: random.IntN(4)})
			// The first namespace has many Turns, the last few; some agents are limited.
			come := func() {
				ns := min(random.IntN(4), random.IntN(4))
				agent := random.IntN(3)
				c.comes(fmt.Sprintf("ns-%d", ns), fmt.Sprintf("agent-%d", agent), agent)
			}
			for range 100 {
				come()
			}
			c.settles()
			for range 200 {
				if len(c.taken) == 0 {
					break
				}
				running := c.running()
				full := c.free() == 0
				c.took, c.looks = nil, 0
				c.ends(running[random.IntN(len(running))])
				want := c.mayRun()
				if random.IntN(3) > 0 {
					come() // it is looked at after the one that was brought back
				}
				c.settles()
				if left := c.mayRun(); c.free() > 0 && len(left) > 0 {
					t.Fatalf("%d places are free while %v wait", c.free(), left)
				}
				if full && len(want) > 0 && (len(c.took) == 0 || c.took[0] != want[0]) {
					t.Fatalf("the place went to %v, want it to go to %s", c.took, want[0])
				}
				if c.looks > 8 {
					t.Fatalf("%d Turns were looked at for one place", c.looks)
				}
			}
		})
	}
}

// TestNoPlaceIsLostThoughLooksFail lets looks at Turns fail at random. When those Turns have come back, all places are taken.
func TestNoPlaceIsLostThoughLooksFail(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 4})
			come := func() {
				agent := random.IntN(3)
				c.comes(fmt.Sprintf("ns-%d", random.IntN(3)), fmt.Sprintf("agent-%d", agent), agent)
			}
			for range 40 {
				come()
			}
			for range 60 {
				c.fails = func() bool { return random.IntN(3) == 0 }
				c.settles()
				if running := c.running(); len(running) > 0 {
					c.ends(running[random.IntN(len(running))])
				}
				come()
				c.settles()
				c.fails = nil
				for len(c.failed) > 0 {
					at := random.IntN(len(c.failed))
					c.wake(c.failed[at])
					c.failed = slices.Delete(c.failed, at, at+1)
					c.settles()
				}
				if left := c.mayRun(); c.free() > 0 && len(left) > 0 {
					t.Fatalf("%d places are free while %v wait", c.free(), left)
				}
			}
		})
	}
}

func TestAnExecutorThatAppearsIsShared(t *testing.T) {
	c := newCrowd(t)
	for range 50 {
		c.comes("many", "agent", 0)
	}
	c.comes("few", "agent", 0)
	c.comes("few", "agent", 0)
	c.settles()
	c.executors = []ExecutorInfo{{Name: "e", Capacity: 6}}
	c.wakeAll()
	c.settles()
	counts := map[string]int{}
	for _, turn := range c.took {
		counts[turn.Namespace]++
	}
	if counts["few"] != 2 || counts["many"] != 4 {
		t.Errorf("the 6 places went to %v, want all Turns of the namespace that has few to get one", counts)
	}
}

// TestPlacesPassTurnsThatCannotTakeThem: a Turn whose agent is just being looked at, or whose look failed, keeps its place in
// the queue and is in the way of no other agent's.
func TestPlacesPassTurnsThatCannotTakeThem(t *testing.T) {
	c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 1})
	runs := c.comes("a", "agent", 0)
	first, second, third := c.comes("b", "agent", 0), c.comes("b", "other", 0), c.comes("b", "other", 0)
	c.settles()
	c.ends(runs)
	if len(c.queue) != 1 || c.queue[0] != first {
		t.Fatalf("woken: %v, want the first", c.queue)
	}
	c.queue = nil
	c.pass(first)
	c.pass(first) // a second failure of the same look wakes nobody
	c.settles()
	if len(c.took) != 2 || c.took[1] != second {
		t.Fatalf("the places went to %v, want the second Turn to take what the first cannot", c.took)
	}
	c.wake(first) // it is looked at again, and well
	c.settles()
	c.ends(second)
	c.settles()
	if len(c.took) != 3 || c.took[2] != first {
		t.Errorf("the places went to %v, want the first Turn to be before the third, %s, again", c.took, third)
	}
}

// TestTurnsOfAnAgentThatPassKeepTheirOrder: they come back when their agent was looked at, the later ones maybe first.
func TestTurnsOfAnAgentThatPassKeepTheirOrder(t *testing.T) {
	c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 9})
	runs := c.comes("a", "agent", 1)
	c.settles()
	first, second, third := c.comes("a", "agent", 1), c.comes("a", "agent", 1), c.comes("a", "agent", 1)
	c.settles()
	for _, turn := range []types.NamespacedName{first, second, third} {
		c.pass(turn)
		r := c.requests[turn]
		r.most = 3 // which is what was changed about the agent
		c.requests[turn] = r
	}
	c.took, c.queue = nil, []types.NamespacedName{third, second, first}
	c.settles()
	if !slices.Equal(c.took, []types.NamespacedName{first, second}) {
		t.Errorf("the places beside that of %s went to %v, want %s and %s", runs, c.took, first, second)
	}
}

// TestTurnsBehindOneThatPassesDoNotKeepOthersWaiting: a place that none of an agent's Turns can take goes to another agent's.
func TestTurnsBehindOneThatPassesDoNotKeepOthersWaiting(t *testing.T) {
	c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 1})
	runs := c.comes("a", "agent", 0)
	first, second, other := c.comes("b", "agent", 0), c.comes("b", "agent", 0), c.comes("c", "agent", 0)
	c.settles()
	c.pass(first)
	c.took, c.queue = nil, nil
	c.ends(runs)
	c.settles()
	if !slices.Equal(c.took, []types.NamespacedName{other}) {
		t.Fatalf("the place went to %v, want it to go to %s", c.took, other)
	}
	c.executors[0].Capacity = 2
	c.wake(second) // as when somebody changed it
	c.settles()
	if len(c.took) != 1 {
		t.Fatalf("the places went to %v, want %s to wait for the earlier Turn of its agent", c.took, second)
	}
	c.executors[0].Capacity = 3
	c.wake(first)
	c.settles()
	if !slices.Equal(c.took, []types.NamespacedName{other, first, second}) {
		t.Errorf("the places went to %v, want both Turns of the agent to have one now", c.took)
	}
}

func TestATurnThatDoesNotWaitDoesNotPass(t *testing.T) {
	c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 1})
	runs := c.comes("a", "agent", 0)
	waits := c.comes("a", "agent", 0)
	c.settles()
	c.pass(runs)
	c.pass(types.NamespacedName{Namespace: "a", Name: "unknown"})
	if len(c.queue) != 0 {
		t.Errorf("woken: %v, want nobody: no place is free for %s", c.queue, waits)
	}
}

// TestATurnThatIsNotNextBringsTheNextBack: whoever sees a free place first may have no right to it, and nobody else may have
// seen it.
func TestATurnThatIsNotNextBringsTheNextBack(t *testing.T) {
	c := newCrowd(t, ExecutorInfo{Name: "e", Capacity: 1})
	c.comes("many", "agent", 0)
	c.settles()
	few := c.comes("few", "agent", 0)
	c.settles()
	c.executors[0].Capacity = 2 // and nobody is told
	c.took = nil
	late := c.comes("many", "other", 0)
	c.settles()
	if !slices.Equal(c.took, []types.NamespacedName{few}) {
		t.Errorf("the place went to %v, want it to go to %s and not to %s", c.took, few, late)
	}
}
