package schema

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxPattern is how long a pattern may be, in bytes.
	maxPattern = 1024
	// maxPatternSize is how many characters a pattern may look for once its repetitions are written out, and maxPatternSizes how many
	// all patterns of a schema may together: each takes about 100 bytes of memory.
	maxPatternSize  = 2000
	maxPatternSizes = 20_000
	// maxPatterns is how many different patterns a schema may have.
	maxPatterns = 256
	// patternSteps is how many steps of a search take as long as holding a value against a schema.
	patternSteps = 32
)

// boundedPattern is a pattern, and what it takes to look for it.
type boundedPattern struct {
	*regexp.Regexp
	size int
}

// patterns compiles the patterns of one schema, each of them once. It is safe for concurrent use: where a schema's format is that of
// patterns, values are compiled, too.
type patterns struct {
	mu     sync.Mutex
	known  map[string]*boundedPattern
	size   int
	closed bool // the schema is compiled: what comes now are values, and is not kept
}

func (p *patterns) compile(text string) (jsonschema.Regexp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.known[text]; ok {
		return known, nil
	}
	if len(text) > maxPattern {
		return nil, fmt.Errorf("it has %d bytes, and %d is the most", len(text), maxPattern)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := sizeOf(parsed)
	if size > maxPatternSize {
		return nil, fmt.Errorf("it looks for more than %d characters once its repetitions are written out", maxPatternSize)
	}
	if !p.closed && (len(p.known) == maxPatterns || p.size+size > maxPatternSizes) {
		return nil, errors.New("the schema has too many patterns")
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	made := &boundedPattern{compiled, size}
	if !p.closed {
		p.known[text] = made
		p.size += size
	}
	return made, nil
}

// close ends the compilation of the schema, and returns how large its patterns are.
func (p *patterns) close() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.size
}

// sizeOf is how many characters an expression looks for once its repetitions are written out, at most one more than
// may be.
func sizeOf(e *syntax.Regexp) int {
	size := 1
	switch e.Op { //nolint:exhaustive // because all others look for one character at most
	case syntax.OpLiteral:
		size = len(e.Rune)
	case syntax.OpConcat, syntax.OpAlternate, syntax.OpCapture, syntax.OpRepeat:
		size = 0
	}
	for _, inner := range e.Sub {
		size = min(size+sizeOf(inner), maxPatternSize+1)
	}
	if e.Op == syntax.OpRepeat {
		size = max(size, 1) * max(e.Min, e.Max, 1)
	}
	return min(size, maxPatternSize+1)
}
