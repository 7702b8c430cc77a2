package schema

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// maxCached is the maximum number of compiled schemas in the cache. maxCachedBytes is the approximate maximum
	// of their memory, in bytes.
	maxCached      = 512
	maxCachedBytes = 64 << 20
)

// Cached returns the result of Compile, but compiles each schema only once for all Turns. The cache has at most 512
// schemas, in about 64 MiB of memory. The compilation first waits until the namespace of ctx is next, even for a short
// schema, because 500 bytes with large patterns take a millisecond: see fairgate.AcquireProcessor.
func Cached(ctx context.Context, source json.RawMessage) (*Schema, error) {
	if len(source) > MaxSource {
		return Compile(source)
	}
	e := compiled.get(source)
	if !e.isCompiled.Load() {
		// If another namespace compiles this schema now, compile waits for it. That namespace has had its turn already,
		// so neither waits for the other.
		defer fairgate.AcquireProcessor(ctx, fairgate.Large)()
	}
	return e.compile()
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
	compile    func() (*Schema, error)
	isCompiled atomic.Bool
	bytes      int
}

func (c *cache) get(source json.RawMessage) *entry {
	key := sha256.Sum256(source)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		return e
	}
	source = bytes.Clone(source)
	e := &entry{bytes: len(source)}
	e.compile = sync.OnceValues(func() (*Schema, error) {
		s, err := Compile(source)
		if err == nil {
			c.grow(key, e, s.size)
		}
		e.isCompiled.Store(true)
		return s, err
	})
	c.entries[key] = e
	c.bytes += e.bytes
	c.shrink(key)
	return e
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
