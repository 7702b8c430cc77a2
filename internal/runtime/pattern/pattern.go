// Package pattern compiles regular expressions from outside within bounds. The time of a search is proportional to the
// length of the text and to the size of the expression, which is known before the search. Expressions have the syntax
// of RE2.
package pattern

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	// MaxBytes is the maximum length of an expression, in bytes.
	MaxBytes = 1024
	// MaxSize is the maximum number of characters in an expression after its repetitions are expanded. Each character
	// takes about 100 bytes of memory.
	MaxSize = 2000
)

// Pattern is a compiled expression. It is safe for concurrent use.
type Pattern struct {
	*regexp.Regexp
	// Size is the number of characters in the expression after its repetitions are expanded, at most MaxSize.
	Size int
}

// Compile compiles an expression. It returns an error if the text is not a valid RE2 expression, is longer than
// MaxBytes, or is larger than MaxSize.
func Compile(text string) (*Pattern, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, and the maximum is %d", len(text), MaxBytes)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := sizeOf(parsed)
	if size > MaxSize {
		return nil, fmt.Errorf("it has more than %d characters after its repetitions are expanded", MaxSize)
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return &Pattern{compiled, size}, nil
}

// sizeOf returns the number of characters in an expression after its repetitions are expanded. It returns at most
// MaxSize + 1.
func sizeOf(e *syntax.Regexp) int {
	size := 1
	switch e.Op { //nolint:exhaustive // because all other operators look for one character at most
	case syntax.OpLiteral:
		size = len(e.Rune)
	case syntax.OpConcat, syntax.OpAlternate, syntax.OpCapture, syntax.OpRepeat:
		size = 0
	}
	for _, inner := range e.Sub {
		size = min(size+sizeOf(inner), MaxSize+1)
	}
	if e.Op == syntax.OpRepeat {
		size = max(size, 1) * max(e.Min, e.Max, 1)
	}
	return min(size, MaxSize+1)
}
