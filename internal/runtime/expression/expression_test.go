package expression_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/cel-go/cel"

	"github.com/capstan-dev/capstan/internal/runtime/expression"
)

// TestEval checks that an evaluation returns a value, or the error that matches the failure: ErrValue or ErrCost.
func TestEval(t *testing.T) {
	env, err := expression.NewEnv(cel.Variable("all", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	many := make([]any, 3000)
	for i := range many {
		many[i] = int64(i)
	}
	for name, tc := range map[string]struct {
		reason, source string
		all            any
		want           any
		err            error
	}{
		"value":   {"the expression can be evaluated", "all.a + 1", map[string]any{"a": int64(1)}, int64(2), nil},
		"missing": {"there is no such field", "all.b", map[string]any{"a": int64(1)}, nil, expression.ErrValue},
		"type":    {"a list has no fields", "all.a", many, nil, expression.ErrValue},
		"keys":    {"bytes cannot be keys", "{b'a': 1}.size()", nil, nil, expression.ErrValue},
		"cost":    {"each pair is compared", "all.map(x, all.filter(y, y == x))", many, nil, expression.ErrCost},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := expression.Compile(env, tc.source, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Eval(t.Context(), map[string]any{"all": tc.all})
			if errors.Is(tc.err, expression.ErrCost) && errors.Is(err, expression.ErrTime) { // on a machine that is busy
				err = tc.err
			}
			if !errors.Is(err, tc.err) || err == nil && got.Value() != tc.want {
				t.Errorf("Eval = %v, %v; want %v, %v: %s", got, err, tc.want, tc.err, tc.reason)
			}
		})
	}
}

// TestWork checks that work is counted that CEL does not count: the texts that an evaluation makes, the values that it
// compares, and the constants of its literals.
func TestWork(t *testing.T) {
	env, err := expression.NewEnv(cel.Variable("all", cel.DynType), cel.Variable("list", cel.ListType(cel.DynType)))
	if err != nil {
		t.Fatal(err)
	}
	join := func(n int, value, separator string) string { return strings.Repeat(value+separator, n-1) + value }
	const each = ".map(a, %s).map(a, %s)" // n*n values of one
	sums := func(n int) string { return strings.ReplaceAll(each, "%s", join(n, "a", "+")) }
	lists := func(n int) string { return strings.ReplaceAll(each, "%s", "["+join(n, "a", ",")+"]") }
	pairs := func(value string) string {
		var all []string
		for i := range 40 {
			all = append(all, fmt.Sprintf("%d:%s", i, value))
		}
		return "{" + strings.Join(all, ",") + "}"
	}
	text, many, numbers := strings.Repeat("a", 1<<16), make([]any, 3000), map[string]any{}
	ids := make([]any, 600)
	for i := range ids {
		ids[i] = fmt.Sprintf("%036d", i)
	}
	for i := range many {
		many[i] = int64(i)
		numbers[strconv.Itoa(i)] = int64(i)
	}
	for name, tc := range map[string]struct {
		reason, source string
		all            any
		err            error
	}{
		"a short sum":      {"it makes texts of 2 MB", "[all]" + sums(4) + ".size() == 1", text, nil},
		"a long sum":       {"it makes texts of 18 MB", "[all]" + sums(8) + ".size() == 1", text, expression.ErrCost},
		"a sum of bytes":   {"bytes count as texts do", "[dyn(bytes(all))]" + sums(8) + ".size() == 1", text, expression.ErrCost},
		"conversions":      {"each makes a text", "list.all(x, bytes(all) != b'')", text, expression.ErrCost},
		"an ignored error": {"|| ignores no limit", "[all]" + sums(8) + ".size() == 2 || true", text, expression.ErrCost},
		"a sum of lists":   {"it makes 135,000 values", "[all]" + sums(4) + ".all(a, a[47999] == 2999)", many, nil},
		"a longer sum":     {"it makes 420,000 values", "[all]" + sums(6) + ".size() == 1", many, expression.ErrCost},
		"typed lists":      {"their types are known", "[list]" + sums(6) + ".size() == 1", many, expression.ErrCost},
		"equal lists":      {"they have 75,000 elements", "[all]" + lists(5) + ".all(a, a == a)", many, nil},
		"longer lists":     {"they have 1.2 million elements", "[all]" + lists(20) + ".all(a, a == a)", many, expression.ErrCost},
		"unequal lists":    {"!= compares the elements, too", "[all]" + lists(20) + ".all(a, !(a != a))", many, expression.ErrCost},
		"in a list":        {"in compares the elements, too", "[all]" + lists(20) + ".all(a, a in [a])", many, expression.ErrCost},
		"other lengths":    {"no element is compared", "[all]" + lists(20) + ".all(a, a != [a, a])", many, nil},
		"another type":     {"no element is compared", "[all]" + lists(20) + ".all(a, dyn(a) != null && a != dyn(1))", many, nil},
		"equal maps":       {"their values are compared", "[all]" + lists(20) + ".all(a, a == a)", numbers, expression.ErrCost},
		"long keys":        {"their bytes are hashed", "[{all: 1}]" + lists(30) + ".all(a, a == a)", text, expression.ErrCost},
		"fewer long keys":  {"they have 26 MB", "[{all: 1}]" + lists(20) + ".all(a, a == a)", text, nil},
		"equal texts":      {"their bytes are compared", "list.all(a, all == all)", text, expression.ErrCost},
		"in a map":         {"a map needs no search", "list.all(a, '7' in all)", numbers, nil},
		"long texts":       {"equal lengths are compared", "all.all(x, x in all)", ids, nil},
		"many lists":       {"they take memory", "list.map(x, [" + join(100, "x", ",") + "]).size() == 1", many, expression.ErrCost},
		"many short lists": {"they are small", "list.map(x, [" + join(10, "x", ",") + "]).size() == 3000", many, nil},
		"many maps":        {"they take memory", "list.map(x, " + pairs("x") + ").size() == 1", many, expression.ErrCost},
		"a fixed list":     {"it is made once", "list.all(x, !(x in [" + join(100, "'AD'", ",") + "]))", many, nil},
		"a fixed map":      {"it is made once", "list.map(x, " + pairs("1") + ").size() == 3000", many, nil},
		"fixed elements":   {"a macro adds each", "[" + join(40, "1", ",") + "].all(x, list.map(y, 1) != [])", many, expression.ErrCost},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := expression.Compile(env, tc.source, nil)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { // its time stands still, so that the work ends the evaluation also on a slow machine
				got, err := p.Eval(t.Context(), map[string]any{"all": tc.all, "list": many})
				if !errors.Is(err, tc.err) || err == nil && got.Value() != true {
					t.Errorf("Eval = %v, %v; want true, %v: %s", got, err, tc.err, tc.reason)
				}
			})
		})
	}
}

// TestCompile checks that an invalid expression is rejected with its position, and that the caller can reject a result
// type.
func TestCompile(t *testing.T) {
	env, err := expression.NewEnv(cel.Variable("all", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"all +": "f:1:6: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', " +
			"'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
		"all.matches(all.other)": "f:1:16: the pattern of matches() must be a string literal",
		"'a'":                    "f:1:1: string is not accepted",
		"google.protobuf.Value{string_value: 'a'}": "f:1:22: an expression cannot make an object of the type " +
			"google.protobuf.Value",
		"all.a == 1 || all[['x','y']] == 2": "f:1:1: the expression cannot be evaluated: an index must be a string, a number or a bool",
		"all[{'x': 1}] == 2":                "f:1:1: the expression cannot be evaluated: an index must be a string, a number or a bool",
	} {
		_, err := expression.Compile(env, source, func(kind *cel.Type) string {
			if kind.IsExactType(cel.StringType) {
				return kind.String() + " is not accepted"
			}
			return ""
		})
		if err == nil || expression.Located("f", err).Error() != want {
			t.Errorf("Compile(%s) = %v, want %s", source, expression.Located("f", err), want)
		}
	}
}
