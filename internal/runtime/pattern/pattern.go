// Package pattern compiles regular expressions from outside within bounds. The time of a search is proportional to the
// length of the text and to the size of the expression, which is known before the search. Expressions have the syntax
// of RE2.
package pattern

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

const (
	// MaxBytes is the maximum length of an expression, in bytes.
	MaxBytes = 1024
	// MaxSize is the maximum number of characters in an expression after its repetitions are expanded.
	MaxSize = 2000
	// MaxMemory is the maximum memory of a compiled expression, in bytes. A character takes about 100 bytes, and a
	// class such as \p{L} about 7 KiB.
	MaxMemory = 512 << 10
	// MaxWork is the maximum work of compiling an expression: see Work. It takes about 20 milliseconds.
	MaxWork = 200_000
)

// The work of compiling a part of an expression, as the number of letters that take as long. The parser goes through
// all characters of a range without regard to case, and sorts the ranges of a class.
const (
	workOfClass       = 900
	workOfFoldedRange = 33_000
)

// The memory that an expression and its parts take at most, in bytes.
const (
	bytesOfPattern     = 1 << 10
	bytesOfInstruction = 80  // 40 bytes, in a list that has space for up to twice as many
	bytesOfNode        = 128 // the instructions for a class or a literal text refer to their node
	bytesOfRune        = 4
)

// Pattern is a compiled expression. It is safe for concurrent use. Use only whole matches: the numbers of its groups
// may differ from those in the text, because Compile may add a group.
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
// MaxBytes, is larger than MaxSize, or needs more than MaxMemory or MaxWork.
func Compile(text string) (*Pattern, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, and the maximum is %d", len(text), MaxBytes)
	}
	if Work(text) > MaxWork {
		return nil, errors.New(`it takes too long to compile: write fewer classes such as \p{L}, and fewer ranges of other letters ` +
			"than a-z after (?i)")
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

// Work returns the work of compiling an expression, as the number of letters whose compilation takes about as long. The
// expression may be invalid.
func Work(text string) int {
	work := len(text)
	if strings.Contains(text, "{") { // repetitions are expanded
		work = MaxSize
	}
	work += workOfClass * (strings.Count(text, `\p`) + strings.Count(text, `\P`))
	if ignoresCase.MatchString(text) {
		work += workOfFoldedRange * len(largeRange.FindAllStringIndex(text, -1))
	}
	return work
}

var (
	// ignoresCase matches flags with i.
	ignoresCase = regexp.MustCompile(`\(\?[a-zA-Z]*i`)
	// largeRange matches the end of a range that may have thousands of characters.
	largeRange = regexp.MustCompile(`-[^\x00-\x7f]|-\\[x0-7]`)
)

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
