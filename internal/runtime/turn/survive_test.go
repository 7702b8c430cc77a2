package turn_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// events are the events in a world so far.
type events struct {
	overloaded bool // true once the first model was overloaded; this happens only once
	requests   []model.Request
	calls      map[string]int   // by idempotency key
	replied    map[string]bool  // the steps, with their purposes, whose replies are in the journal
	gaveUp     map[string]bool  // the models that were given up for a step
	began      map[string]int64 // the epoch of the first process that asked for a decision or began a child
	appended   []*process       // the processes that have written to the Turn's journal, in order
	// resumes is the number of processes that wrote entries before the process that ended the Turn, without the
	// processes that parked it.
	resumes int
	// lost is the number of requests that reached the endpoint and whose end is not in the journal. unknown is the
	// number of destructive calls that were in progress when their process died.
	lost, unknown int
	// observed is the number of times that the observers of all processes have counted a request, by the key of the
	// request. unobserved is the number of processes that died between an entry with which a request may have ended and
	// its observation.
	observed   map[string]int
	unobserved int
	// parts are all parts that the observers of all processes have received, by their key.
	parts map[string]turn.Span
	// last are the messages of the last request that is in the journal. checkRequests sets it.
	last []model.Message
}

// clone returns a copy of a world with a journal in memory in which no process runs. So several continuations of the
// same Turn can be tested.
func (w *world) clone() *world {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &world{
		t: w.t, journal: w.journal.(*journaltest.Store).Clone(), uid: w.uid, talk: w.talk, ending: w.ending, now: w.now, events: w.events,
	}
	c.requests, c.appended, c.last = slices.Clone(w.requests), slices.Clone(w.appended), slices.Clone(w.last)
	c.calls, c.replied, c.gaveUp, c.began = maps.Clone(w.calls), maps.Clone(w.replied), maps.Clone(w.gaveUp), maps.Clone(w.began)
	c.observed, c.parts = maps.Clone(w.observed), maps.Clone(w.parts)
	return c
}

// survive runs the Turn in processes that die at the given moments, one after another, and then in a process that is
// not killed. It returns the last process with its result, and the number of deaths.
func survive(t *testing.T, w *world, moments ...int) (last *process, result *turn.Result, deaths int) {
	t.Helper()
	return surviveFrom(t, w, 1, moments...)
}

// surviveFrom is survive for a Turn whose next process has the given epoch.
func surviveFrom(t *testing.T, w *world, epoch int64, moments ...int) (last *process, result *turn.Result, deaths int) {
	t.Helper()
	for _, moment := range append(moments, 0) {
		if last, result = kill(t, w, epoch, moment); !last.dead {
			return last, result, deaths
		}
		deaths++
		epoch = last.epoch + 1
	}
	panic("the last process was killed")
}

// kill runs the Turn until a process dies at the moment, or the Turn ends. It returns the last process and the result
// of the Turn.
func kill(t *testing.T, w *world, epoch int64, moment int) (*process, *turn.Result) {
	t.Helper()
	p, result, _, err := w.run(epoch, false, killedAt(moment))
	switch {
	case p.dead && (err == nil || result != nil):
		t.Fatalf("the run of epoch %d died and returned %+v, %v", p.epoch, result, err)
	case !p.dead && err != nil:
		t.Fatalf("the run of epoch %d: %v", p.epoch, err)
	}
	return p, result
}
