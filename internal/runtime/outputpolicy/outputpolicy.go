// Package outputpolicy checks answers against the output policies of a PromptProfile. A policy is a CEL expression,
// which this package evaluates, or a rule in words, which a model checks.
package outputpolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/expression"
)

// MaxExpression is the maximum length of an expression, in characters.
const MaxExpression = expression.MaxLength

// Action is the consequence of an answer that violates a policy.
type Action string

const (
	// Fail ends the Turn without an answer.
	Fail Action = "Fail"
	// Report keeps the answer and records the violation.
	Report Action = "Report"
	// Retry sends the violation to the model, which answers again. If the answer still violates the policy after
	// MaxRetries, the Turn ends without an answer.
	Retry Action = "Retry"
)

// Policy is a rule for answers.
type Policy struct {
	// Name identifies the policy in its profile.
	Name string `json:"name"`
	// Expression is a CEL expression that must be true. It is empty if Prompt is set.
	Expression string `json:"expression,omitempty"`
	// Prompt is a rule in words. A model decides whether the answer follows it. It is empty if Expression is set.
	Prompt string `json:"prompt,omitempty"`
	// Message states the policy in words. It may be empty.
	Message string `json:"message,omitempty"`
	// OnViolation is the consequence of a violation.
	OnViolation Action `json:"onViolation"`
	// MaxRetries is the number of answers of a Turn that are sent back before a violation of this policy ends the Turn.
	// It is 0 unless OnViolation is Retry.
	MaxRetries int `json:"maxRetries,omitempty"`
}

// Enforced reports whether an answer that violates the policy must not be delivered.
func (p *Policy) Enforced() bool { return p.OnViolation != Report }

// Rule returns the policy in words: its message, or else its prompt or its expression.
func (p *Policy) Rule() string {
	switch {
	case p.Message != "":
		return p.Message
	case p.Prompt != "":
		return p.Prompt
	}
	return "this expression must be true: " + p.Expression
}

// Size returns the approximate memory of policies, in bytes.
func Size(policies []Policy) int64 {
	var size int
	for i := range policies {
		p := &policies[i]
		size += len(p.Name) + len(p.Expression) + len(p.Prompt) + len(p.Message)
	}
	return int64(size)
}

// AnyEnforced reports whether at least one of the policies is enforced.
func AnyEnforced(policies []Policy) bool {
	return slices.ContainsFunc(policies, func(p Policy) bool { return p.Enforced() })
}

// Check returns an *invalid.Error for the first policy whose expression cannot be used. The error names the field, the
// line and the column. field is the name of the list of policies.
func Check(field string, policies []Policy) error {
	for i := range policies {
		p := &policies[i]
		if p.Expression == "" {
			continue
		}
		if _, err := compile(p.Expression); err != nil {
			return expression.Located(fmt.Sprintf("%s[%d].expression", field, i), err)
		}
	}
	return nil
}

var environment = sync.OnceValues(newEnv)

// compile compiles an expression. Its error is an *expression.Error if the expression is invalid.
func compile(source string) (*expression.Program, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	return expression.Compile(env, source, func(kind *cel.Type) string {
		if kind.IsExactType(cel.BoolType) || kind.IsExactType(cel.DynType) {
			return ""
		}
		return fmt.Sprintf("must be true or false, and not of the type %s", kind)
	})
}

// Holds reports whether an answer follows the policy, which must have an expression. If it does not, why is the reason:
// the expression is false, or it cannot be evaluated for this answer. why contains no part of the answer.
//
// Holds first waits until the namespace of ctx is next, because the cost of an expression is not known before: up to 2
// seconds, and about a millisecond to compile it. See fairgate.AcquireProcessor.
func (p *Policy) Holds(ctx context.Context, o *Output) (holds bool, why string) {
	defer fairgate.AcquireProcessor(ctx, fairgate.Large)()
	compiled, err := compile(p.Expression)
	if err != nil {
		return false, "the expression cannot be compiled"
	}
	value, err := compiled.Eval(ctx, map[string]any{"output": newAnswer(o)})
	switch {
	case errors.Is(err, expression.ErrTime):
		return false, err.Error()
	case errors.Is(err, expression.ErrCost):
		return false, err.Error() + " for this answer"
	case err != nil:
		return false, "the expression cannot be evaluated for this answer: a part of output.data is missing, or has another type"
	}
	switch value { // not its Value(), which copies a list with all of its elements
	case types.True:
		return true, ""
	case types.False:
		return false, "the expression is false"
	}
	return false, "the expression is neither true nor false for this answer"
}
