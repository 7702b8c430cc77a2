// Package vectors divides texts among requests for vectors. It caches the vectors of tools, so that they are requested
// once and not for each Turn.
package vectors

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

// maxBytes is the maximum size of all vectors in a cache. overhead is counted for each vector in addition to its
// values.
const maxBytes, overhead = 16 << 20, 256

// Cache keeps vectors by their texts. Namespaces share no vectors, so a namespace cannot find out which texts another
// one uses. If the cache is full, it drops the least recently used vector of the namespace with the largest vectors in
// total, so a namespace cannot push out the vectors of a smaller one. The zero value is empty. A Cache is safe for
// concurrent use.
type Cache struct {
	mu sync.Mutex
	// bytes is the size of all vectors.
	bytes int
	own   map[string]*ownVectors
}

// ownVectors are the vectors of one namespace.
type ownVectors struct {
	bytes int
	// used lists the vectors, the most recently used first. at maps keys to elements of used.
	used *list.List
	at   map[vectorKey]*list.Element
}

// vectorKey identifies a text within a space.
type vectorKey [sha256.Size]byte

// keptVector is a vector in the cache. values is nil if the text is known to have no vector.
type keptVector struct {
	key    vectorKey
	values []float32
}

func (k *keptVector) size() int { return 4*len(k.values) + overhead }

// Of returns the vectors of a namespace.
func (c *Cache) Of(namespace string) *Namespace { return &Namespace{c, namespace} }

// Namespace gives access to the vectors of one namespace in a Cache.
type Namespace struct {
	all  *Cache
	name string
}

func keyOf(space, text string) vectorKey { return sha256.Sum256([]byte(space + "\x00" + text)) }

// Get returns the vector of a text. ok is false if the cache does not know the text. values is nil if the text is known
// to have no vector.
func (n *Namespace) Get(space, text string) (values []float32, ok bool) {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	own := n.all.own[n.name]
	if own == nil {
		return nil, false
	}
	e, ok := own.at[keyOf(space, text)]
	if !ok {
		return nil, false
	}
	own.used.MoveToFront(e)
	return e.Value.(*keptVector).values, true //nolint:forcetypeassert // because the list has no other values
}

// Put stores the vector of a text. values is nil if the text is known to have no vector. It replaces a vector of
// another length, because the model may have changed.
func (n *Namespace) Put(space, text string, values []float32) {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	if n.all.own == nil {
		n.all.own = map[string]*ownVectors{}
	}
	own := n.all.own[n.name]
	if own == nil {
		own = &ownVectors{used: list.New(), at: map[vectorKey]*list.Element{}}
		n.all.own[n.name] = own
	}
	k := &keptVector{keyOf(space, text), values}
	if e, known := own.at[k.key]; known {
		if len(e.Value.(*keptVector).values) == len(values) { //nolint:forcetypeassert // because the list has no other values
			return // another Turn has requested it at the same time
		}
		n.all.drop(own, e)
	}
	own.at[k.key] = own.used.PushFront(k)
	own.bytes, n.all.bytes = own.bytes+k.size(), n.all.bytes+k.size()
	for n.all.bytes > maxBytes {
		n.all.evict()
	}
}

// evict drops the least recently used vector of the namespace with the most bytes. The caller must hold the lock.
func (c *Cache) evict() {
	var most string
	for namespace, own := range c.own {
		if most == "" || own.bytes > c.own[most].bytes || own.bytes == c.own[most].bytes && namespace < most {
			most = namespace
		}
	}
	own := c.own[most]
	c.drop(own, own.used.Back())
	if own.bytes == 0 {
		delete(c.own, most)
	}
}

// drop drops a vector of a namespace. The caller must hold the lock.
func (c *Cache) drop(own *ownVectors, e *list.Element) {
	dropped := own.used.Remove(e).(*keptVector) //nolint:forcetypeassert // because the list has no other values
	delete(own.at, dropped.key)
	own.bytes, c.bytes = own.bytes-dropped.size(), c.bytes-dropped.size()
}
