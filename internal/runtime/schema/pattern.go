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
	// maxPattern is the maximum length of a pattern, in bytes.
	maxPattern = 1024
	// maxPatternSize is the maximum number of characters in a pattern after its repetitions are expanded.
	// maxPatternSizes is the maximum for all patterns of a schema together. Each character takes about 100 bytes of
	// memory.
	maxPatternSize  = 2000
	maxPatternSizes = 20_000
	// maxPatterns is the maximum number of different patterns in a schema.
	maxPatterns = 256
	// patternSteps is the number of search steps that take as long as the validation of one schema.
	patternSteps = 32
)

// boundedPattern is a pattern and the cost of searching for it.
type boundedPattern struct {
	*regexp.Regexp
	size int
}

// patterns compiles the patterns of one schema, each only once. It is safe for concurrent use: if the schema
// requires the format of a pattern, values are compiled during validation, too.
type patterns struct {
	mu     sync.Mutex
	known  map[string]*boundedPattern
	size   int
	closed bool // the schema is compiled: later patterns are from values and are not kept
}

func (p *patterns) compile(text string) (jsonschema.Regexp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.known[text]; ok {
		return known, nil
	}
	if len(text) > maxPattern {
		return nil, fmt.Errorf("it has %d bytes, and the maximum is %d", len(text), maxPattern)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := sizeOf(parsed)
	if size > maxPatternSize {
		return nil, fmt.Errorf("it has more than %d characters after its repetitions are expanded", maxPatternSize)
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

// close ends the compilation of the schema, and returns the total size of its patterns.
func (p *patterns) close() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.size
}

// sizeOf returns the number of characters in an expression after its repetitions are expanded. It returns at most
// maxPatternSize + 1.
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
