package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

const (
	// maxCached is the maximum number of compiled schemas in the cache. maxCachedBytes is the approximate maximum
	// of their memory, in bytes.
	maxCached      = 512
	maxCachedBytes = 64 << 20
)

// Cached returns the result of Compile, but compiles each schema only once for all Turns. The cache has at most 512
// schemas, in about 64 MiB of memory.
func Cached(source json.RawMessage) (*Schema, error) {
	if len(source) > MaxSource {
		return Compile(source)
	}
	return compiled.get(source)()
}

var compiled = cache{entries: map[[sha256.Size]byte]*entry{}}

// cache has compiled schemas by the SHA-256 of their sources.
type cache struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]*entry
	bytes   int
}

// entry is a schema that is compiled on first use, or the error of its compilation. Until then, bytes is the size
// of the source.
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

// grow updates the size of an entry, unless the entry has been dropped.
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

// shrink drops entries until the cache is within its bounds. It never drops the entry with the key keep.
func (c *cache) shrink(keep [sha256.Size]byte) {
	for k, e := range c.entries { // in random order, because the next use of an entry cannot be predicted
		if len(c.entries) <= maxCached && c.bytes <= maxCachedBytes {
			return
		}
		if k != keep {
			delete(c.entries, k)
			c.bytes -= e.bytes
		}
	}
}
