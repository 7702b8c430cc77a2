package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

const (
	// maxCached is how many schemas are kept compiled, and maxCachedBytes how many bytes their sources have together.
	maxCached      = 512
	maxCachedBytes = 8 << 20
)

// Cached returns what Compile does, and compiles a schema once for all Turns: at most 512 are kept, with 8 MiB of sources.
func Cached(source json.RawMessage) (*Schema, error) {
	if len(source) > MaxSource {
		return Compile(source)
	}
	return compiled.get(source)()
}

var compiled = cache{entries: map[[sha256.Size]byte]entry{}}

// cache of compiled schemas, by the SHA-256 of their sources.
type cache struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]entry
	bytes   int
}

// entry is a schema that is compiled when it is first needed, or why it cannot be.
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
	for k, e := range c.entries { // any of them: which are needed next nobody knows
		if len(c.entries) < maxCached && c.bytes+len(source) <= maxCachedBytes {
			break
		}
		delete(c.entries, k)
		c.bytes -= e.bytes
	}
	source = bytes.Clone(source)
	e := entry{sync.OnceValues(func() (*Schema, error) { return Compile(source) }), len(source)}
	c.entries[key] = e
	c.bytes += e.bytes
	return e.compile
}
