package pace

import (
	"container/list"
	"slices"
)

// queue has the waiting requests. Namespaces take turns, and so do the Agents of a namespace. The requests of an Agent
// to a model keep their order. The low requests of the Agent have a separate order. The zero value is empty.
type queue struct {
	namespaces []*tenant
	waiting    int
}

// tenant has the waiting requests of a namespace.
type tenant struct {
	namespace string
	lines     []*line
}

// line has the waiting requests of an Agent to a model, as *waiter. It is never empty.
type line struct {
	agent  string
	low    bool
	lane   *lane
	tenant *tenant
	list.List
}

// push adds a request at the end of its line.
func (q *queue) push(w *waiter) {
	t := find(q.namespaces, func(t *tenant) bool { return t.namespace == w.request.Namespace })
	if t == nil {
		t = &tenant{namespace: w.request.Namespace}
		q.namespaces = append(q.namespaces, t)
	}
	l := find(t.lines, func(l *line) bool { return l.agent == w.request.Agent && l.low == w.request.Low && l.lane == w.lane })
	if l == nil {
		l = &line{agent: w.request.Agent, low: w.request.Low, lane: w.lane, tenant: t}
		t.lines = append(t.lines, l)
	}
	w.line, w.place = l, l.PushBack(w)
	q.waiting++
}

// remove removes a request.
func (q *queue) remove(w *waiter) {
	l := w.line
	l.Remove(w.place)
	w.line, w.place = nil, nil
	q.waiting--
	if l.Len() > 0 {
		return
	}
	t := l.tenant
	if t.lines = without(t.lines, l); len(t.lines) == 0 {
		q.namespaces = without(q.namespaces, t)
	}
}

// moveToEnd moves the namespace and the line of a request to the end of the turns.
func (q *queue) moveToEnd(w *waiter) {
	l := w.line
	l.tenant.lines = append(without(l.tenant.lines, l), l)
	q.namespaces = append(without(q.namespaces, l.tenant), l.tenant)
}

// visitHeads calls visit for the first request of each line, in the order of the turns, until visit returns false. Low
// requests come after all other requests.
func (q *queue) visitHeads(visit func(*waiter) bool) {
	for _, low := range []bool{false, true} {
		for _, t := range q.namespaces {
			for _, l := range t.lines {
				if l.low == low && !visit(l.Front().Value.(*waiter)) {
					return
				}
			}
		}
	}
}

// waitingFor returns the waiting requests to a model.
func (q *queue) waitingFor(to *lane) []*waiter {
	var all []*waiter
	for _, t := range q.namespaces {
		for _, l := range t.lines {
			for place := l.Front(); place != nil && l.lane == to; place = place.Next() {
				all = append(all, place.Value.(*waiter))
			}
		}
	}
	return all
}

func find[T any](all []*T, is func(*T) bool) *T {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return nil
}

func without[T comparable](all []T, one T) []T {
	if i := slices.Index(all, one); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}
