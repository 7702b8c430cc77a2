package executor

import "errors"

// errFull means that the executor already runs as many Turns as its capacity allows.
var errFull = errors.New("the executor already runs as many turns as it may, so something other than the controller has bound this turn")

// takePlace reports whether the run may begin: at most Capacity runs have a place at the same time. The controller
// binds no more Turns, except for those that only have to end, which need no place. But whoever may edit the status of
// Turns can bind any number of them, and they would use the memory and the connections of other Turns. Such a Turn is
// handed back, and waits for a slot like all others.
func (r *run) takePlace() bool {
	e := r.executor
	e.mu.Lock()
	defer e.mu.Unlock()
	if !r.placed && e.places < e.Capacity {
		r.placed = true
		e.places++
	}
	return r.placed
}

// leavePlace gives the place of the run to another run, if the run has one.
func (r *run) leavePlace() {
	if !r.placed {
		return
	}
	r.placed = false
	r.executor.mu.Lock()
	defer r.executor.mu.Unlock()
	r.executor.places--
}
