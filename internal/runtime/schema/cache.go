package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

const (
	// maxCached is how many schemas are kept compiled, and maxCachedBytes about how many bytes of memory they take together.
	maxCached      = 512
	maxCachedBytes = 64 << 20
)

// Cached returns what Compile does, and compiles a schema once for all Turns: at most 512 are kept, in
// about 64 MiB of memory.
func Cached(source json.RawMessage) (*Schema, error) {
	if len(source) > MaxSource {
		return Compile(source)
	}
	return compiled.get(source)()
}

var compiled = cache{entries: map[[sha256.Size]byte]*entry{}}

// cache of compiled schemas, by the SHA-256 of their sources.
type cache struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]*entry
	bytes   int
}

// entry is a schema that is compiled when it is first needed, or why it cannot be. Its bytes are those of its source
// until it is compiled.
type entry struct {
	compile func() (*Schema, error)
	bytes   int
}

func (c *cache) get(source json.RawMessage) func() (*Schema, error) {
	key := sha256.Sum256(source)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		return e.compile
	}
	source = bytes.Clone(source)
	e := &entry{bytes: len(source)}
	e.compile = sync.OnceValues(func() (*Schema, error) {
		s, err := Compile(source)
		if err == nil {
			c.grow(key, e, s.size)
		}
		return s, err
	})
	c.entries[key] = e
	c.bytes += e.bytes
	c.shrink(key)
	return e.compile
}

// grow notes what an entry takes, if it is still there.
func (c *cache) grow(key [sha256.Size]byte, e *entry, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] != e {
		return
	}
	c.bytes += size - e.bytes
	e.bytes = size
	c.shrink(key)
}

// shrink drops entries until the others are not too many, but keeps one of them.
func (c *cache) shrink(keep [sha256.Size]byte) {
	for k, e := range c.entries { // any of them: which are needed next nobody knows
		if len(c.entries) <= maxCached && c.bytes <= maxCachedBytes {
			return
		}
		if k != keep {
			delete(c.entries, k)
			c.bytes -= e.bytes
		}
	}
}
