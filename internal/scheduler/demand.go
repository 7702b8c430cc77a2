package scheduler

import (
	"maps"
	"math"
	"slices"
)

// WaitingForSlots returns the number of waiting Turns that would get a slot if the executors had more slots. It does
// not count Turns that wait because of the limit of their Agent, because no model of their Agent answers, or because
// of a fixed limit of their namespace. A limit of the namespace in percent is no such limit: it grows with the number
// of slots.
//
// The time is linear in the number of namespaces and Agents with waiting Turns, and not in the number of Turns.
func (s *Slots) WaitingForSlots() (total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := map[*agent]int{} // how many Turns each Agent may still start, in all namespaces
	for _, name := range slices.Sorted(maps.Keys(s.namespaces)) {
		n := s.namespaces[name]
		ofNamespace := math.MaxInt
		if limit := s.limits.Running.count; limit > 0 {
			ofNamespace = max(limit-n.running, 0)
		}
		for _, l := range n.eligible.elements {
			ofAgent, known := left[l.agent]
			if !known {
				ofAgent = l.agent.free()
			}
			started := min(l.waiting.Len()-len(l.deferred), ofAgent, ofNamespace)
			left[l.agent] = ofAgent - started
			ofNamespace -= started
			total += started
		}
	}
	return total
}

// free returns how many more Turns of the Agent may hold slots at the same time.
func (a *agent) free() int {
	switch {
	case a.isFull():
		return 0
	case a.modelsDown:
		return 1
	case a.MaxParallelTurns > 0:
		return a.MaxParallelTurns - a.running
	}
	return math.MaxInt
}
