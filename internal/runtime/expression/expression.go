// Package expression compiles and evaluates CEL expressions from manifests, within bounds. An expression sees only its
// variables: it has no function that reads a file, the network or the time.
package expression

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

const (
	// MaxLength is the maximum length of an expression, in characters.
	MaxLength = 2048
	// MaxTime bounds the evaluation of an expression on a slow or busy machine. CEL looks at the time after each
	// element of a list, and never within a comparison: maxWork bounds comparisons.
	MaxTime = 2 * time.Second
	// maxDepth is the maximum depth of an expression. maxNesting is the maximum depth of nested macros over lists.
	maxDepth, maxNesting = 64, 3
	// maxCost bounds the evaluation of one expression, in units of CEL: a step, or reading ten characters, costs about
	// one unit. An evaluation at this bound takes less than a second.
	maxCost = 1_000_000
)

var (
	// ErrTime is returned for an evaluation that took more than MaxTime.
	ErrTime = fmt.Errorf("the evaluation of the expression took more than %s", MaxTime)
	// ErrCost is returned for an evaluation that costs too much with these values of its variables.
	ErrCost = errors.New("the evaluation of the expression costs too much")
	// ErrValue is returned if an evaluation fails for any other reason. Usually, a part of a variable is missing, or
	// has another type than the expression needs. The error contains no part of a variable.
	ErrValue = errors.New("a part of a variable is missing, or has another type")
)

// NewEnv returns the environment of expressions with the given variables and types.
func NewEnv(options ...cel.EnvOption) (*cel.Env, error) {
	env, err := cel.NewCustomEnv(append([]cel.EnvOption{
		withoutMatches(), boundedMatches(),
		cel.CrossTypeNumericComparisons(true), cel.HomogeneousAggregateLiterals(),
		cel.ParserExpressionSizeLimit(MaxLength), cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(maxNesting)),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("failed to make the environment of expressions: %w", err)
	}
	return env, nil
}

// Error is the fault of an expression, with its position in the text.
type Error struct {
	at     common.Location
	reason string
}

// Error returns the reason.
func (e *Error) Error() string { return e.reason }

// Located converts an error about an expression to an error about the field that contains it. The error names the line
// and the column if they are known.
func Located(field string, err error) error {
	fault, ok := errors.AsType[*Error](err)
	if !ok {
		return invalid.Field(field, "%s", err)
	}
	out := invalid.Field(field, "%s", fault.reason)
	if fault.at != nil && fault.at.Line() > 0 {
		out.Line, out.Column = fault.at.Line(), max(fault.at.Column(), 0)+1
	}
	return out
}

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	env     *cel.Env
	checked *cel.Ast
}

// Compile compiles an expression. accepts returns the reason why a result of the given type cannot be used, or "" if it
// can be used. If accepts is nil, any type can be used. If the expression is invalid, the error is an *Error.
func Compile(env *cel.Env, source string, accepts func(*cel.Type) string) (*Program, error) {
	checked, issues := env.Compile(source)
	if err := firstIssue(issues); err != nil {
		return nil, err
	}
	if accepts != nil {
		if why := accepts(checked.OutputType()); why != "" {
			return nil, &Error{common.NewLocation(1, 0), why}
		}
	}
	if err := checkLiterals(checked); err != nil {
		return nil, err
	}
	if err := checkPatterns(checked); err != nil {
		return nil, err
	}
	p := &Program{env, checked}
	if _, err := p.plan(&meter{}); err != nil { // an index is a constant of another type: CEL checks only those of lists
		return nil, &Error{common.NewLocation(1, 0), "the expression cannot be evaluated: an index must be a string, a number or a bool"}
	}
	return p, nil
}

// checkLiterals returns an error if an expression makes an object of a type of protobuf. CEL copies each value into
// such an object, with all of its elements, and does not count the cost.
func checkLiterals(checked *cel.Ast) error {
	var fault error
	native := checked.NativeRep()
	ast.PostOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.StructKind && fault == nil {
			fault = &Error{
				native.SourceInfo().GetStartLocation(e.ID()),
				fmt.Sprintf("an expression cannot make an object of the type %s", e.AsStruct().TypeName()),
			}
		}
	}))
	return fault
}

// plan makes the program for one evaluation, whose work m counts.
func (p *Program) plan(m *meter) (cel.Program, error) {
	return p.env.Program(p.checked, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(1), cel.CostTracking(searchCosts{}),
		m.option())
}

// firstIssue returns the first fault that the compiler has found.
func firstIssue(issues *cel.Issues) error {
	if issues == nil || issues.Err() == nil {
		return nil
	}
	for _, e := range issues.Errors() {
		return &Error{e.Location, e.Message}
	}
	return issues.Err()
}

// Eval evaluates the expression for these values of its variables. It takes at most about MaxTime, and does not stop
// when ctx ends. Its error is ErrTime, ErrCost or ErrValue.
func (p *Program) Eval(ctx context.Context, variables map[string]any) (ref.Val, error) {
	planned, err := p.plan(&meter{})
	if err != nil { // impossible, because Compile has planned the same expression
		return nil, ErrValue
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), MaxTime)
	defer cancel()
	value, _, err := planned.ContextEval(ctx, variables)
	stopped, _ := errors.AsType[interpreter.EvalCancelledError](err)
	switch {
	case errors.Is(err, errSearch), stopped.Cause == interpreter.CostLimitExceeded:
		return nil, ErrCost
	case ctx.Err() != nil:
		return nil, ErrTime
	case err != nil:
		return nil, ErrValue
	}
	return value, nil
}
