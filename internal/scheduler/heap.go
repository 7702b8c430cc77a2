package scheduler

import "container/heap"

// element is what a ranking holds. It remembers its position there, so that it can be moved or removed without a search.
type element interface {
	comparable
	position() *int
}

// ranking orders elements, the first at its top. All operations but first are logarithmic. An element is in at most one ranking
// of its kind; its position is 0 where it is in none, and else counts from 1.
type ranking[E element] struct {
	elements []E
	before   func(a, b E) bool
}

// first returns the element at the top. The ranking must not be empty.
func (r *ranking[E]) first() E { return r.elements[0] }

// place brings the ranking up to date about an element: it belongs there or not, and its rank may have changed.
func (r *ranking[E]) place(e E, belongs bool) {
	at := *e.position()
	switch {
	case belongs && at > 0:
		heap.Fix(r, at-1)
	case belongs:
		heap.Push(r, e)
	case at > 0:
		heap.Remove(r, at-1)
	}
}

// Len returns the number of elements.
func (r *ranking[E]) Len() int { return len(r.elements) }

// Less compares two elements for package heap.
func (r *ranking[E]) Less(i, j int) bool { return r.before(r.elements[i], r.elements[j]) }

// Swap swaps two elements for package heap.
func (r *ranking[E]) Swap(i, j int) {
	r.elements[i], r.elements[j] = r.elements[j], r.elements[i]
	*r.elements[i].position(), *r.elements[j].position() = i+1, j+1
}

// Push appends an element for package heap.
func (r *ranking[E]) Push(x any) {
	e := x.(E)
	r.elements = append(r.elements, e)
	*e.position() = len(r.elements)
}

// Pop removes the last element for package heap.
func (r *ranking[E]) Pop() any {
	var none E
	last := len(r.elements) - 1
	e := r.elements[last]
	r.elements[last] = none
	r.elements = r.elements[:last]
	*e.position() = 0
	return e
}
