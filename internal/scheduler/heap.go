package scheduler

import "container/heap"

// element is an element of a ranking. It stores its own position, so that it can be moved or removed without a
// search.
type element interface {
	comparable
	position() *int
}

// ranking orders elements; the first is at the top. All operations except first take logarithmic time. An element
// is in at most one ranking of its kind. Its position counts from 1; 0 means that it is in no ranking.
type ranking[E element] struct {
	elements []E
	before   func(a, b E) bool
}

// first returns the element at the top. The ranking must not be empty.
func (r *ranking[E]) first() E { return r.elements[0] }

// update adds, moves or removes an element, whose rank may have changed. If belongs is true, the element is in the
// ranking afterwards; if it is false, the element is not.
func (r *ranking[E]) update(e E, belongs bool) {
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
