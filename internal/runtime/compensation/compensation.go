// Package compensation makes the call that undoes another call. Its arguments are computed from the arguments and the
// result of the other call, by expressions that the owner of the tool server has written.
package compensation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/expression"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

const (
	// MaxArguments is the maximum size of the arguments of a compensation, in bytes of JSON.
	MaxArguments = 16 << 10
	// maxResult is the maximum size of a result that expressions can read, in bytes.
	maxResult = 1 << 20
	// maxValues is the maximum number of values in one argument. maxDepth is the maximum depth of an argument.
	maxValues, maxDepth = 4096, 32
)

// Problem is the reason why a call cannot be undone.
type Problem string

const (
	// MissingValue means that the call or its result lacks a value that an expression names, or that the value has
	// another type.
	MissingValue Problem = "MissingValue"
	// NotJSON means that an expression has a value that JSON cannot express.
	NotJSON Problem = "NotJSON"
	// TooLarge means that the arguments are larger than MaxArguments.
	TooLarge Problem = "TooLarge"
	// ResultTooLarge means that the result is too large for expressions.
	ResultTooLarge Problem = "ResultTooLarge"
	// TooCostly means that the evaluation of an expression reached its limit.
	TooCostly Problem = "TooCostly"
	// Redacted means that an argument depends on a text that was redacted.
	Redacted Problem = "Redacted"
	// InvalidExpression means that an expression cannot be compiled.
	InvalidExpression Problem = "InvalidExpression"
)

// problems has the texts of the problems, for people.
var problems = map[Problem]string{
	MissingValue: "a value that its expression names is missing from the call and its result, or has another type",
	NotJSON:      "the value of its expression cannot be written as JSON",
	TooLarge:     fmt.Sprintf("the arguments would have more than %d bytes", MaxArguments),
	ResultTooLarge: fmt.Sprintf("the result of the call has more than %d bytes, so that no expression can read it",
		maxResult),
	TooCostly:         "the evaluation of its expression takes too long for this result",
	Redacted:          "its value was redacted, and the journal does not have it",
	InvalidExpression: "its expression is invalid",
}

// Undo is the call that undoes another call. It is part of the journal entry with the result of that call.
type Undo struct {
	// Server and UID are the name and the UID of the ToolServer. Tool is the name of the tool on this server. UID is
	// empty if the ToolServer has none, because there is no cluster.
	Server string `json:"server,omitempty"`
	UID    string `json:"uid,omitempty"`
	Tool   string `json:"tool"`
	// Arguments are the arguments of the call. They are empty if there is a Problem.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Problem is the reason why there are no arguments. Argument is the name of the argument with the problem.
	Problem  Problem `json:"problem,omitempty"`
	Argument string  `json:"argument,omitempty"`
}

// Reason returns the problem for people, or "" if there is none.
func (u *Undo) Reason() string {
	if u.Problem == "" {
		return ""
	}
	text, known := problems[u.Problem]
	if !known {
		text = "its problem is not known to this version: " + string(u.Problem)
	}
	if u.Argument == "" {
		return text
	}
	return fmt.Sprintf("argument %q of the tool %q: %s", u.Argument, u.Tool, text)
}

// environment is the environment of expressions, with the variables arguments and result.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return expression.NewEnv(
		cel.Variable("arguments", cel.MapType(cel.StringType, cel.DynType)), cel.Variable("result", cel.DynType))
})

func compile(source string) (*expression.Program, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	return expression.Compile(env, source, nil)
}

// Check returns an *invalid.Error for the first expression that cannot be used. field is the field of the compensation.
// Before each expression, it waits until the namespace of ctx is next: see fairgate.AcquireProcessor.
func Check(ctx context.Context, field string, c *tool.Compensation) error {
	for i := range c.Arguments {
		done := fairgate.AcquireProcessor(ctx, fairgate.Large)
		_, err := compile(c.Arguments[i].Value)
		done()
		if err != nil {
			return expression.Located(fmt.Sprintf("%s.arguments[%d].value", field, i), err)
		}
	}
	return nil
}

// Fill returns the call that undoes a call of a tool with these arguments and this result, or nil if the tool has no
// compensation. clean is the result without the texts that the journal must not have. Texts in the arguments and the
// result are only values, never expressions.
func Fill(ctx context.Context, t *tool.Tool, arguments json.RawMessage, result, clean string) *Undo {
	c := t.Compensation
	if c == nil {
		return nil
	}
	u := &Undo{Server: t.Source.Server, UID: t.Source.UID, Tool: c.Tool}
	u.Arguments, u.Argument, u.Problem = fill(ctx, c, arguments, clean)
	if clean == result {
		return u
	}
	// If the whole result leads to other arguments, they depend on a redacted text.
	whole, _, problem := fill(ctx, c, arguments, result)
	if problem != u.Problem || !bytes.Equal(whole, u.Arguments) {
		u.Arguments, u.Problem = nil, Redacted
		if u.Argument == "" && len(c.Arguments) == 1 {
			u.Argument = c.Arguments[0].Name
		}
	}
	return u
}

// fill evaluates the expressions. It returns the arguments, or the first problem with the name of its argument.
func fill(ctx context.Context, c *tool.Compensation, arguments json.RawMessage, result string) (json.RawMessage, string, Problem) {
	if len(result) > maxResult {
		return nil, "", ResultTooLarge
	}
	given, ok := parse([]byte(arguments)).(map[string]any)
	if !ok {
		given = map[string]any{}
	}
	done := fairgate.AcquireProcessor(ctx, len(result))
	variables := map[string]any{"arguments": given, "result": parse([]byte(result))}
	done()
	filled := make(map[string]any, len(c.Arguments))
	for _, a := range c.Arguments {
		value, problem := evaluate(ctx, a.Value, variables)
		if problem != "" {
			return nil, a.Name, problem
		}
		filled[a.Name] = value
	}
	data, err := json.Marshal(filled)
	switch {
	case err != nil:
		return nil, "", NotJSON
	case len(data) > MaxArguments:
		return nil, "", TooLarge
	case bytes.Contains(data, []byte(redact.Marker)): // a credential was removed from the result
		return nil, "", Redacted
	}
	return data, "", ""
}

// evaluate evaluates an expression. It first waits until the namespace of ctx is next, because the cost of an
// expression is not known before: up to 2 seconds, and about a millisecond to compile it.
func evaluate(ctx context.Context, source string, variables map[string]any) (any, Problem) {
	defer fairgate.AcquireProcessor(ctx, fairgate.Large)()
	compiled, err := compile(source)
	if err != nil {
		return nil, InvalidExpression
	}
	value, err := compiled.Eval(ctx, variables)
	switch {
	case errors.Is(err, expression.ErrValue):
		return nil, MissingValue
	case err != nil:
		return nil, TooCostly
	}
	left := remaining{maxValues, MaxArguments}
	return left.plain(value, maxDepth)
}

// remaining is the number of values, and of bytes in texts, that one argument can still have. A value can contain the
// same text many times, and its JSON is then much larger than its memory.
type remaining struct{ values, bytes int }

// text returns a text for JSON. It reports false if the text is too long.
func (r *remaining) text(s types.String) (string, bool) {
	if len(s) > MaxArguments {
		return "", false
	}
	valid := strings.ToValidUTF8(string(s), "\uFFFD")
	r.bytes -= len(valid)
	return valid, r.bytes >= 0
}

// plain converts a CEL value into a value that marshals to JSON.
func (r *remaining) plain(v ref.Val, depth int) (any, Problem) {
	if r.values--; r.values < 0 || depth < 0 {
		return nil, TooLarge
	}
	switch v := v.(type) {
	case types.Null:
		return nil, ""
	case types.Bool, types.Int, types.Uint:
		return v.Value(), ""
	case types.String:
		text, ok := r.text(v)
		if !ok {
			return nil, TooLarge
		}
		return text, ""
	case types.Double:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, NotJSON
		}
		return float64(v), ""
	case traits.Mapper:
		return r.plainMap(v, depth)
	case traits.Lister:
		var all []any
		for i := v.Iterator(); i.HasNext() == types.True; {
			element, problem := r.plain(i.Next(), depth-1)
			if problem != "" {
				return nil, problem
			}
			all = append(all, element)
		}
		if all == nil {
			all = []any{}
		}
		return all, ""
	}
	return nil, NotJSON
}

func (r *remaining) plainMap(m traits.Mapper, depth int) (any, Problem) {
	all := map[string]any{}
	for i := m.Iterator(); i.HasNext() == types.True; {
		key := i.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, NotJSON
		}
		if _, ok := r.text(name); !ok {
			return nil, TooLarge
		}
		element, problem := r.plain(m.Get(key), depth-1)
		if problem != "" {
			return nil, problem
		}
		all[string(name)] = element
	}
	return all, ""
}

// parse returns the value of a JSON text, or the text itself if it is not JSON. Integers are not rounded.
func parse(text []byte) any {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil || decoder.More() || len(bytes.TrimSpace(text[decoder.InputOffset():])) > 0 {
		return string(text)
	}
	return convertNumbers(value)
}

// convertNumbers converts the numbers in a value. An integer that does not fit into 64 bits becomes a text with its
// digits.
func convertNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = convertNumbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = convertNumbers(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return f
		}
		return v.String()
	}
	return value
}
