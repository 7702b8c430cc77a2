package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// hall is places with a record of whom they wake.
type hall struct {
	*places
	woken []string
}

func newHall() *hall {
	h := &hall{}
	h.places = newPlaces(func(turn types.NamespacedName) { h.woken = append(h.woken, turn.Name) })
	return h
}

// wants returns a Turn's request; Turns whose names come later in the alphabet are younger.
func wants(turn, agent string, most int) request {
	return request{
		turn: types.NamespacedName{Namespace: "n", Name: turn}, agent: types.NamespacedName{Namespace: "n", Name: agent},
		since: now.Add(time.Duration(turn[0]) * time.Second), most: most,
	}
}

func (h *hall) takes(turn, agent string, most, capacity int) (string, string) {
	return h.take(wants(turn, agent, most), []ExecutorInfo{{Name: "e", Capacity: capacity}})
}

func (h *hall) leaves(turn string) { h.leave(types.NamespacedName{Namespace: "n", Name: turn}) }

// expect checks whom the last calls woke.
func (h *hall) expect(t *testing.T, why string, turns ...string) {
	t.Helper()
	if diff := cmp.Diff(turns, h.woken); diff != "" {
		t.Errorf("%s (-want +got):\n%s", why, diff)
	}
	h.woken = nil
}

func TestPlacesGoToTheFreestExecutor(t *testing.T) {
	h := newHall()
	executors := []ExecutorInfo{{Name: "small", Capacity: 1}, {Name: "large", Capacity: 3}, {Name: "also", Capacity: 1}}
	var got []string
	for _, turn := range []string{"a", "b", "c", "d", "e", "f"} {
		name, why := h.take(wants(turn, "agent", 0), executors)
		got = append(got, name+why)
	}
	want := []string{"large", "large", "also", "large", "small", "all executors run as many turns as they can"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the places are others (-want +got):\n%s", diff)
	}
}

func TestPlacesSayWhyThereIsNone(t *testing.T) {
	h := newHall()
	for name, tc := range map[string]struct {
		request   request
		executors []ExecutorInfo
		want      string
	}{
		"no executor":      {wants("a", "agent", 0), nil, "no executor is running"},
		"a full executor":  {wants("b", "other", 0), []ExecutorInfo{{Name: "e"}}, "all executors run as many turns as they can"},
		"an earlier Turn":  {wants("z", "agent", 0), []ExecutorInfo{{Name: "e", Capacity: 9}}, `earlier turns of Agent "agent" go first`},
		"an agent's limit": {wants("y", "busy", 1), []ExecutorInfo{{Name: "e", Capacity: 9}}, `Agent "busy" runs as many turns as it may at once (maxParallelTurns is 1)`},
	} {
		t.Run(name, func(t *testing.T) {
			h = newHall()
			h.take(wants("a", "agent", 0), nil) // an earlier Turn that waits
			if _, why := h.takes("x", "busy", 1, 9); why != "" {
				t.Fatalf("the first Turn of an agent must get a place, not %q", why)
			}
			if _, why := h.take(tc.request, tc.executors); why != tc.want {
				t.Errorf("got reason %q, want %q", why, tc.want)
			}
		})
	}
}

func TestPlacesOfAnAgentGoInOrder(t *testing.T) {
	h := newHall()
	h.takes("a", "agent", 1, 9)
	h.takes("d", "agent", 1, 9)
	h.takes("c", "agent", 1, 9)
	h.woken = nil
	h.leaves("a")
	h.expect(t, "a free place must wake who came first", "c")
	if _, why := h.takes("d", "agent", 1, 9); !strings.Contains(why, "earlier turns") {
		t.Errorf("a later Turn must let the earlier one go first, got %q", why)
	}
	h.expect(t, "a later Turn that is early must wake the earlier one", "c")
	if name, _ := h.takes("c", "agent", 1, 9); name != "e" {
		t.Error("the first must get the place")
	}
	h.expect(t, "nobody may have another place")
}

func TestPlacesWakeWhoMayHaveThem(t *testing.T) {
	h := newHall()
	h.takes("a", "limited", 1, 2)
	h.takes("b", "free", 0, 2)
	h.takes("c", "limited", 1, 2)
	h.takes("d", "free", 0, 2)
	h.woken = nil
	h.leaves("b")
	h.expect(t, "who may not run must not be woken in place of who may", "d")
}

func TestPlacesAreNotLostWhenTwoBecomeFree(t *testing.T) {
	h := newHall()
	h.takes("a", "one", 0, 2)
	h.takes("b", "two", 0, 2)
	h.takes("c", "three", 0, 2)
	h.takes("d", "four", 0, 2)
	h.woken = nil
	h.leaves("a")
	h.leaves("b")
	h.expect(t, "both wake the first", "c", "c") // which the queue makes one
	h.takes("c", "three", 0, 2)
	h.expect(t, "the first must pass the second place on", "d")
}

func TestPlacesPassTheWakeOfATurnThatLeaves(t *testing.T) {
	h := newHall()
	h.takes("a", "agent", 1, 9)
	h.takes("b", "agent", 1, 9)
	h.takes("c", "agent", 1, 9)
	h.leaves("a")
	h.woken = nil
	h.leaves("b") // it was woken, and was cancelled meanwhile
	h.expect(t, "the next must be woken instead", "c")
}

func TestPlacesOfATurnThatComesBack(t *testing.T) {
	h := newHall()
	if name, _ := h.takes("a", "agent", 1, 1); name != "e" {
		t.Fatal("the first must get the place")
	}
	if name, why := h.takes("a", "agent", 1, 1); name != "e" {
		t.Errorf("a Turn of a lost executor must not stand in its own way: %s", why)
	}
}

func TestPlacesWakeAllInOrder(t *testing.T) {
	h := newHall()
	for _, turn := range []string{"c", "a", "b"} {
		h.take(wants(turn, "agent-"+turn, 0), nil)
	}
	h.woken = nil
	h.wakeAll()
	h.expect(t, "an executor that appears must bring all back", "a", "b", "c")
}

// TestPlacesSideBySide lets many reconcilers fight for few places, as the queue would: a Turn is in one pair of hands at
// a time, and one that is woken meanwhile comes back.
func TestPlacesSideBySide(t *testing.T) {
	const turns, agents, perAgent, capacity = 300, 5, 3, 10
	queue := make(chan types.NamespacedName, 100_000)
	p := newPlaces(func(turn types.NamespacedName) { queue <- turn })
	requests := map[types.NamespacedName]request{}
	for i := range turns {
		r := wants(fmt.Sprintf("t%03d", i), fmt.Sprintf("agent-%d", i%agents), perAgent)
		r.turn.Namespace, r.agent.Namespace = fmt.Sprintf("n%d", i%4), fmt.Sprintf("n%d", i%4)
		requests[r.turn] = r
		queue <- r.turn
	}
	var mu sync.Mutex
	inHand, again, done := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	running := map[types.NamespacedName]int{}
	all, peak := 0, 0
	finish := make(chan struct{})

	look := func(turn types.NamespacedName) {
		r := requests[turn]
		if name, _ := p.take(r, []ExecutorInfo{{Name: "e", Capacity: capacity}}); name == "" {
			return
		}
		mu.Lock()
		running[r.agent]++
		all++
		peak = max(peak, all)
		if running[r.agent] > perAgent || all > capacity {
			t.Errorf("%d Turns run, %d of one agent; at most %d and %d may", all, running[r.agent], capacity, perAgent)
		}
		mu.Unlock()
		mu.Lock()
		running[r.agent]--
		all--
		done[turn] = true
		if len(done) == turns {
			close(finish)
		}
		mu.Unlock()
		p.leave(turn)
	}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				select {
				case <-finish:
					return
				case turn := <-queue:
					mu.Lock()
					skip := done[turn]
					if inHand[turn] {
						again[turn], skip = true, true
					}
					inHand[turn] = inHand[turn] || !skip
					mu.Unlock()
					if skip {
						continue
					}
					look(turn)
					mu.Lock()
					delete(inHand, turn)
					if again[turn] {
						delete(again, turn)
						queue <- turn
					}
					mu.Unlock()
				case <-time.After(10 * time.Second):
					mu.Lock()
					left := slices.Collect(func(yield func(string) bool) {
						for turn := range requests {
							if !done[turn] && !yield(turn.Name) {
								return
							}
						}
					})
					mu.Unlock()
					t.Errorf("nobody is woken any more, and these Turns wait: %v", left)
					return
				}
			}
		})
	}
	workers.Wait()
	if peak == 0 {
		t.Error("no Turn ran")
	}
}

// TestAnExecutorThatAppearsWhileOneLooksForItWakes: the Turn is known before executors are listed, so that whoever
// appears in between brings it back.
func TestAnExecutorThatAppearsWhileOneLooksForItWakes(t *testing.T) {
	var woken []types.NamespacedName
	p := newPlaces(func(turn types.NamespacedName) { woken = append(woken, turn) })
	wanted := requestOf(turnWith())
	p.look(wanted.turn)
	p.wakeAll() // the executor appears after the listing found none
	if _, why := p.take(wanted, nil); why == "" {
		t.Fatal("take found an executor where there is none")
	}
	if len(woken) == 0 || woken[0] != wanted.turn {
		t.Errorf("woken: %v, want the Turn that looked meanwhile", woken)
	}
}

// TestTurnsThatLookDoNotQueue: of Turns that are looked at side by side none waits for another, while there are places.
func TestTurnsThatLookDoNotQueue(t *testing.T) {
	p := newPlaces(func(types.NamespacedName) {})
	older, newer := requestOf(turnWith()), requestOf(turnWith(func(t *v1alpha1.Turn) { t.Name = "two" }))
	p.look(older.turn)
	if _, why := p.take(newer, []ExecutorInfo{{Name: "e", Capacity: 2}}); why != "" {
		t.Errorf("the newer Turn waits (%s), and costs a write more: the older one only looks", why)
	}
}

func TestClaimGoesBeyondLimits(t *testing.T) {
	p := newPlaces(func(types.NamespacedName) {})
	wanted := requestOf(turnWith())
	if name := p.claim(wanted, nil); name != "" {
		t.Errorf("claim = %q, want none where there is no executor", name)
	}
	full := []ExecutorInfo{{Name: "full"}}
	if name := p.claim(wanted, full); name != "full" {
		t.Errorf("claim = %q, want the executor though it is full: a Turn that ends asks no model", name)
	}
	if p.taken[wanted.turn].executor != "full" {
		t.Error("the place is not counted")
	}
}

// TestClaimPassesFurtherPlacesOn: those behind it may have been kept from them.
func TestClaimPassesFurtherPlacesOn(t *testing.T) {
	h := newHall()
	h.takes("a", "agent", 0, 0)
	h.takes("b", "agent", 0, 0)
	h.woken = nil
	h.claim(wants("a", "agent", 0), []ExecutorInfo{{Name: "e", Capacity: 2}})
	h.expect(t, "the second place must wake who is next", "b")
}
