package schema

import (
	"errors"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

const (
	// maxPatternSizes is the maximum number of characters of all patterns of a schema together, after their repetitions
	// are expanded.
	maxPatternSizes = 20_000
	// maxPatternsMemory is the maximum memory of all patterns of a schema together, in bytes.
	maxPatternsMemory = 4 << 20
	// maxPatternsWork is the maximum work of compiling all patterns of a schema: see pattern.Work. It takes about a
	// quarter of a second.
	maxPatternsWork = 2_000_000
	// maxPatterns is the maximum number of different patterns in a schema.
	maxPatterns = 256
	// patternSteps is the number of search steps that cost as much as one step of the validation.
	patternSteps = 32
)

// patterns compiles the patterns of one schema, each only once. It is safe for concurrent use, because a schema may
// require that a value is a pattern. Such values are compiled during validation.
type patterns struct {
	mu     sync.Mutex
	known  map[string]*pattern.Pattern
	size   int
	memory int // in bytes
	work   int
	closed bool // true after the schema is compiled: later patterns come from values and are not kept
}

func (p *patterns) compile(text string) (jsonschema.Regexp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.known[text]; ok {
		return known, nil
	}
	if p.work += pattern.Work(text); !p.closed && p.work > maxPatternsWork {
		return nil, errors.New(`the patterns of the schema take too long to compile: write fewer classes such as \p{L}`)
	}
	made, err := pattern.Compile(text)
	switch {
	case err != nil:
		return nil, err
	case !p.closed && (len(p.known) == maxPatterns || p.size+made.Size > maxPatternSizes):
		return nil, errors.New("the patterns of the schema are too many or too long")
	case !p.closed && p.memory+made.Memory > maxPatternsMemory:
		return nil, fmt.Errorf(`the patterns of the schema take more than %d MiB of memory together: write fewer classes such as \p{L}`,
			maxPatternsMemory>>20)
	}
	if !p.closed {
		p.known[text] = made
		p.size += made.Size
		p.memory += made.Memory
	}
	return made, nil
}

// close ends the compilation of the schema, and returns the memory of its patterns, in bytes.
func (p *patterns) close() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.memory
}
