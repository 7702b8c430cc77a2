package expression

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/env"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

const (
	// maxSearch is the maximum product of the length of a text and the size of the pattern that is searched for. Such a
	// search takes at most about a second. The function matches of CEL has no such bound, because it counts the cost
	// only after the search.
	maxSearch = 32 << 20
	// searchPerCost is the product of the length of a text and the size of a pattern that costs one unit.
	searchPerCost = 40
	// maxPatterns is the maximum number of compiled patterns that are kept.
	maxPatterns = 256
	// maxPatternsMemory is the maximum memory of the compiled patterns that are kept, in bytes.
	maxPatternsMemory = 16 << 20
)

// errSearch is the error of a search that takes too long.
var errSearch = errors.New("the text is too long for this pattern")

// withoutMatches returns the option for the standard library of CEL without its function matches.
func withoutMatches() cel.EnvOption {
	return cel.StdLib(cel.StdLibSubset(env.NewLibrarySubset().AddExcludedFunctions(env.NewFunction(overloads.Matches))))
}

// boundedMatches returns the option for the function matches, in both forms, within bounds.
func boundedMatches() cel.EnvOption {
	args := []*cel.Type{cel.StringType, cel.StringType}
	return cel.Function(overloads.Matches,
		cel.Overload("global_matches_string_string", args, cel.BoolType, cel.BinaryBinding(matches)),
		cel.MemberOverload(overloads.MatchesString, args, cel.BoolType, cel.BinaryBinding(matches)))
}

func matches(text, expression ref.Val) ref.Val {
	searched, ok := text.Value().(string)
	source, isText := expression.Value().(string)
	if !ok || !isText {
		return types.MaybeNoSuchOverloadErr(text)
	}
	p, err := compiled.get(source)
	switch {
	case err != nil:
		return types.WrapErr(err)
	case len(searched)*p.Size > maxSearch:
		return types.WrapErr(errSearch)
	}
	return types.Bool(p.MatchString(searched))
}

// searchCosts counts the cost of searches. CEL itself would count the length of a pattern, without its repetitions.
type searchCosts struct{}

// CallCost returns the cost of a search, and nil for any other call.
func (searchCosts) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if function != overloads.Matches || len(args) != 2 {
		return nil
	}
	text, _ := args[0].Value().(string)
	source, _ := args[1].Value().(string)
	cost := uint64(1)
	if p, err := compiled.get(source); err == nil {
		cost += uint64(len(text)*p.Size) / searchPerCost //nolint:gosec // because neither is negative
	}
	return &cost
}

// checkPatterns returns an error if a pattern of an expression cannot be used. A pattern must be a literal, so that its
// size is known before the evaluation.
func checkPatterns(checked *cel.Ast) error {
	var fault error
	native := checked.NativeRep()
	fail := func(e ast.Expr, format string, args ...any) {
		if fault == nil {
			fault = &Error{native.SourceInfo().GetStartLocation(e.ID()), fmt.Sprintf(format, args...)}
		}
	}
	ast.PostOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != overloads.Matches {
			return
		}
		args := e.AsCall().Args()
		given := args[len(args)-1]
		if given.Kind() != ast.LiteralKind {
			fail(given, "the pattern of matches() must be a string literal")
			return
		}
		text, _ := given.AsLiteral().Value().(string)
		if _, err := compiled.get(text); err != nil {
			fail(given, "the pattern cannot be used: %s", err)
		}
	}))
	return fault
}

// patternCache has compiled patterns by their sources.
type patternCache struct {
	mu    sync.Mutex
	known map[string]*pattern.Pattern
	// memory is the memory of the patterns together, in bytes.
	memory int
}

var compiled = patternCache{known: map[string]*pattern.Pattern{}}

func (c *patternCache) get(source string) (*pattern.Pattern, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.known[source]; ok {
		return p, nil
	}
	p, err := pattern.Compile(source)
	if err != nil {
		return nil, err
	}
	for text, other := range c.known { // in random order, because the next use of a pattern cannot be predicted
		if len(c.known) < maxPatterns && c.memory+p.Memory <= maxPatternsMemory {
			break
		}
		delete(c.known, text)
		c.memory -= other.Memory
	}
	c.known[source] = p
	c.memory += p.Memory
	return p, nil
}
