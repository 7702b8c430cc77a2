// Package pattern compiles regular expressions from outside within bounds. The time of a search is proportional to the
// length of the text and to the size of the expression, which is known before the search. Expressions have the syntax
// of RE2.
package pattern

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
)

const (
	// MaxBytes is the maximum length of an expression, in bytes.
	MaxBytes = 1024
	// MaxSize is the maximum number of characters in an expression after its repetitions are expanded.
	MaxSize = 2000
	// MaxMemory is the maximum memory of a compiled expression, in bytes. A character takes about 100 bytes, and a class
	// such as \p{L} about 7 KiB.
	MaxMemory = 512 << 10
)

// The memory that an expression and its parts take at most, in bytes.
const (
	bytesOfPattern     = 1 << 10
	bytesOfInstruction = 80  // 40 bytes, in a list that has space for up to twice as many
	bytesOfNode        = 128 // the instructions for a class or a literal text refer to their node
	bytesOfRune        = 4
)

// Pattern is a compiled expression. It is safe for concurrent use.
type Pattern struct {
	*regexp.Regexp
	// Size is the number of characters in the expression after its repetitions are expanded, at most MaxSize.
	Size int
	// Memory is the memory that the compiled expression takes at most, in bytes. It is at most MaxMemory.
	Memory int

	text string
}

// String returns the text of the expression.
func (p *Pattern) String() string { return p.text }

// Compile compiles an expression. It returns an error if the text is not a valid RE2 expression, is longer than
// MaxBytes, is larger than MaxSize, or would take more than MaxMemory.
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
	memory := bytesOfPattern + instructionsOf(parsed)*bytesOfInstruction + runesOf(parsed)
	if memory > MaxMemory {
		return nil, fmt.Errorf(`it takes more than %d KiB of memory: write fewer classes such as \p{L}, fewer groups, or `+
			"smaller repetitions", MaxMemory>>10)
	}
	source := text
	if hasBeginning(parsed) {
		// The empty group before ^ keeps package regexp from making a one-pass program. That program has a copy of each
		// class for each instruction that leads to the class: ^\pL{900} would take 7 MB.
		source = "()" + text
	}
	compiled, err := regexp.Compile(source)
	if err != nil {
		return nil, err
	}
	return &Pattern{compiled, size, memory, text}, nil
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

// instructionsOf returns the maximum number of instructions of a compiled expression. It returns at most MaxMemory.
func instructionsOf(e *syntax.Regexp) int {
	n := 1
	switch e.Op { //nolint:exhaustive // because all other operators need one instruction at most
	case syntax.OpLiteral:
		n = max(len(e.Rune), 1)
	case syntax.OpAlternate:
		n = len(e.Sub)
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		n = 2
	case syntax.OpRepeat:
		inner, times := instructionsOf(e.Sub[0]), max(e.Min, e.Max, 1)
		if e.Min != e.Max { // an optional repetition needs another instruction
			inner++
		}
		return min(inner*times+1, MaxMemory)
	}
	for _, inner := range e.Sub {
		n = min(n+instructionsOf(inner), MaxMemory)
	}
	return n
}

// runesOf returns the memory of the classes and the literal texts of an expression, in bytes. Repetitions share it.
func runesOf(e *syntax.Regexp) int {
	bytes := 0
	if e.Op == syntax.OpLiteral || e.Op == syntax.OpCharClass {
		bytes = bytesOfNode + cap(e.Rune)*bytesOfRune
	}
	for _, inner := range e.Sub {
		bytes += runesOf(inner)
	}
	return bytes
}

// hasBeginning reports whether an expression looks for the beginning of the text.
func hasBeginning(e *syntax.Regexp) bool {
	return e.Op == syntax.OpBeginText || slices.ContainsFunc(e.Sub, hasBeginning)
}
