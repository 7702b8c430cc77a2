// Package smallmap provides a map that takes little memory while it has few entries.
package smallmap

import (
	"iter"
	"maps"
	"slices"
)

// maxListed is the maximum number of entries in the list of a Map. Go's map allocates space for 8 entries with the
// first one.
const maxListed = 8

// Map is a map whose first 8 entries are a list. The zero Map is empty. A copy of a Map shares its entries, so only one
// of both may change: see Clone.
type Map[K comparable, V any] struct {
	list []entry[K, V]
	// all has all entries if there are more than maxListed. Otherwise it is nil.
	all map[K]V
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// Get returns the value of a key, and whether the map has the key.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	if m.all != nil {
		value, ok = m.all[key]
		return value, ok
	}
	if i := m.find(key); i >= 0 {
		return m.list[i].value, true
	}
	return value, false
}

// Set sets the value of a key.
func (m *Map[K, V]) Set(key K, value V) {
	if m.all != nil {
		m.all[key] = value
		return
	}
	if i := m.find(key); i >= 0 {
		m.list[i].value = value
		return
	}
	if len(m.list) < maxListed {
		m.list = append(m.list, entry[K, V]{key, value})
		return
	}
	all := maps.Collect(m.All())
	all[key] = value
	m.list, m.all = nil, all
}

// All yields all entries, in any order. The map must not be changed meanwhile.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	if m.all != nil {
		return maps.All(m.all)
	}
	return func(yield func(K, V) bool) {
		for i := range m.list {
			if !yield(m.list[i].key, m.list[i].value) {
				return
			}
		}
	}
}

// Clone returns a Map with the same entries that can be changed on its own.
func (m *Map[K, V]) Clone() Map[K, V] {
	return Map[K, V]{list: slices.Clone(m.list), all: maps.Clone(m.all)}
}

// find returns the place of a key in the list, or -1.
func (m *Map[K, V]) find(key K) int {
	return slices.IndexFunc(m.list, func(e entry[K, V]) bool { return e.key == key })
}
