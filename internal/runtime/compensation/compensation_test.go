package compensation_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/runtime/compensation"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func toolWith(arguments ...string) *tool.Tool {
	c := &tool.Compensation{Tool: "close"}
	for i := 0; i < len(arguments); i += 2 {
		c.Arguments = append(c.Arguments, tool.CompensationArgument{Name: arguments[i], Value: arguments[i+1]})
	}
	return &tool.Tool{Source: tool.Source{Server: "tickets", UID: "u1"}, Compensation: c}
}

// TestFill checks the arguments of a compensation, or the reason why there are none.
func TestFill(t *testing.T) {
	for name, tc := range map[string]struct {
		reason            string
		tool              *tool.Tool
		arguments, result string
		clean             string // the result after redaction; if this field is empty, nothing is redacted
		want              string
		problem           compensation.Problem
		argument          string
	}{
		"a field of the result": {
			reason: "the result is JSON", tool: toolWith("id", "result.id", "note", "'undone'"), result: `{"id":"T-7"}`,
			want: `{"id":"T-7","note":"undone"}`,
		},
		"an argument of the call": {
			reason: "the call's arguments are JSON", tool: toolWith("path", "arguments.path"), arguments: `{"path":"/a"}`, result: "done",
			want: `{"path":"/a"}`,
		},
		"a text": {
			reason: "a result that is not JSON is a text", tool: toolWith("id", "result"), result: "T-7 and more",
			want: `{"id":"T-7 and more"}`,
		},
		"a large integer": {
			reason: "no digit is lost", tool: toolWith("id", "result.id", "other", "result.other"),
			result: `{"id":9007199254740993,"other":18446744073709551616}`,
			want:   `{"id":9007199254740993,"other":"18446744073709551616"}`,
		},
		"a list and an object": {
			reason: "each JSON value can be used", tool: toolWith("all", "result.all", "one", "{'a': [1, 2]}"),
			result: `{"all":[{"b":[]},2.5,null,true]}`, want: `{"all":[{"b":[]},2.5,null,true],"one":{"a":[1,2]}}`,
		},
		"hostile text": {
			reason: "a text is a value, not an expression", tool: toolWith("id", "result.id"),
			result: `{"id":"' + arguments.secret + '\u0000{{ .x }}\u202e"}`,
			want:   "{\"id\":\"' + arguments.secret + '\\u0000{{ .x }}\u202e\"}",
		},
		"no arguments": {reason: "a tool may have no arguments", tool: toolWith(), result: "x", want: `{}`},
		"a missing field": {
			reason: "the result has no such field", tool: toolWith("a", "'x'", "id", "result.id"), result: `{"ID":1}`,
			problem: compensation.MissingValue, argument: "id",
		},
		"a result of another type": {
			reason: "a server may return another type", tool: toolWith("id", "result.id"), result: `[1,2]`,
			problem: compensation.MissingValue, argument: "id",
		},
		"two values": {
			reason: "two JSON values are a text", tool: toolWith("id", "result.id"), result: `{"id":1} {"id":2}`,
			problem: compensation.MissingValue, argument: "id",
		},
		"no JSON": {reason: "bytes have no JSON form", tool: toolWith("id", "b'abc'"), problem: compensation.NotJSON, argument: "id"},
		"a key that is not a string": {
			reason: "JSON keys must be strings", tool: toolWith("id", "{1: 'a'}"), problem: compensation.NotJSON, argument: "id",
		},
		"too long a text": {
			reason: "the size of arguments is limited", tool: toolWith("id", "result"),
			result:  strings.Repeat("x", compensation.MaxArguments+1),
			problem: compensation.TooLarge, argument: "id",
		},
		"too long together": {
			reason: "the total size is limited", tool: toolWith("a", "result", "b", "result"),
			result: strings.Repeat("x", compensation.MaxArguments/2), problem: compensation.TooLarge,
		},
		"too many values": {
			reason: "the number of values is limited", tool: toolWith("id", "result"), result: "[" + strings.Repeat("1,", 5000) + "1]",
			problem: compensation.TooLarge, argument: "id",
		},
		"a text many times": {
			reason: "the JSON has each of the texts", tool: toolWith("id", "[result, result, result]"),
			result:  strings.Repeat("x", compensation.MaxArguments/2),
			problem: compensation.TooLarge, argument: "id",
		},
		"keys of a map": {
			reason: "keys count as texts", tool: toolWith("id", "{result: {result: {result: 1}}}"),
			result:  strings.Repeat("x", compensation.MaxArguments/2),
			problem: compensation.TooLarge, argument: "id",
		},
		"a list many times": {
			reason:  "each level multiplies the values",
			tool:    toolWith("id", "[result].map(a, [a,a,a,a,a,a,a,a,a,a]).map(a, [a,a,a,a,a,a,a,a,a,a])"),
			result:  "[" + strings.Repeat("1,", 99) + "1]",
			problem: compensation.TooLarge, argument: "id",
		},
		"too deep": {
			reason: "the depth is limited", tool: toolWith("id", "result"), result: strings.Repeat("[", 100) + strings.Repeat("]", 100),
			problem: compensation.TooLarge, argument: "id",
		},
		"a huge result": {
			reason: "expressions read at most 1 MiB", tool: toolWith("id", "result"), result: strings.Repeat("x", 1<<20+1),
			problem: compensation.ResultTooLarge,
		},
		"costly": {
			reason: "the cost of the evaluation is limited", tool: toolWith("id", "result.map(x, result.filter(y, y == x))"),
			result:  "[" + strings.Repeat("1,", 3000) + "1]",
			problem: compensation.TooCostly, argument: "id",
		},
		"growing text": {
			reason: "the type of the result is not known before the evaluation",
			tool:   toolWith("id", "size([result].map(a, a+a+a+a+a+a).map(a, a+a+a+a+a+a)[0])"), result: strings.Repeat("x", 1<<19),
			problem: compensation.TooCostly, argument: "id",
		},
		"comparisons": {
			reason:  "a list contains another one many times",
			tool:    toolWith("id", "[result].map(a, [a,a,a,a,a,a,a,a,a,a]).map(a, [a,a,a,a,a,a,a,a,a,a]).all(a, a == a)"),
			result:  "[" + strings.Repeat("1,", 10_000) + "1]",
			problem: compensation.TooCostly, argument: "id",
		},
		"an invalid expression": {
			reason: "a ToolServer may be older than the check", tool: toolWith("id", "result."),
			problem: compensation.InvalidExpression, argument: "id",
		},
		"redacted": {
			reason: "the journal does not have the value", tool: toolWith("id", "result.key"), result: `{"key":"s3cret"}`,
			clean: `{"key":"[redacted]"}`, problem: compensation.Redacted, argument: "id",
		},
		"redacted and missing": {
			reason: "redaction may remove the structure, too", tool: toolWith("id", "result.key"), result: `{"key":"s3cret"}`,
			clean: `[redacted]`, problem: compensation.Redacted, argument: "id",
		},
		"a credential": {
			reason: "the credential was removed from the result", tool: toolWith("a", "'x'", "id", "result.key"),
			result:  `{"key":"a[redacted]b"}`,
			problem: compensation.Redacted,
		},
		"redacted elsewhere": {
			reason: "the value itself is not redacted", tool: toolWith("id", "result.id"), result: `{"id":7,"key":"s3cret"}`,
			clean: `{"id":7,"key":"[redacted]"}`, want: `{"id":7}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			clean := tc.clean
			if clean == "" {
				clean = tc.result
			}
			var got *compensation.Undo
			synctest.Test(t, func(t *testing.T) { // its time stands still, so that the work ends the evaluation also on a slow machine
				got = compensation.Fill(t.Context(), tc.tool, json.RawMessage(tc.arguments), tc.result, clean)
			})
			want := &compensation.Undo{Server: "tickets", UID: "u1", Tool: "close", Problem: tc.problem, Argument: tc.argument}
			if tc.want != "" {
				want.Arguments = json.RawMessage(tc.want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if (got.Reason() == "") != (tc.problem == "") || strings.Contains(got.Reason(), "s3cret") {
				t.Errorf("the reason of problem %q is %q, want a reason without the secret if there is a problem", tc.problem, got.Reason())
			}
		})
	}
	if got := compensation.Fill(t.Context(), &tool.Tool{}, nil, "x", "x"); got != nil {
		t.Errorf("Fill of a tool without a compensation = %+v, want nil", got)
	}
}

// TestCheck checks that the error of an invalid expression names the position of the fault.
func TestCheck(t *testing.T) {
	if err := compensation.Check(t.Context(), "c", toolWith("id", "result.id", "n", "size(arguments.a) + 1").Compensation); err != nil {
		t.Errorf("Check = %v, want no error", err)
	}
	for source, want := range map[string]string{
		"results.id":                    "c.arguments[1].value:1:1: undeclared reference to 'results' (in container '')",
		"result.id.matches(result.key)": "c.arguments[1].value:1:25: the pattern of matches() must be a string literal",
	} {
		err := compensation.Check(t.Context(), "c", toolWith("ok", "1", "id", source).Compensation)
		if err == nil || err.Error() != want {
			t.Errorf("Check(%s) = %v, want %s", source, err, want)
		}
	}
}

// TestExpressionsTakeTurns checks that work on expressions waits while another namespace uses the processor.
func TestExpressionsTakeTurns(t *testing.T) {
	closing := toolWith("id", "result.id")
	if !fairgatetest.Waits(t, func(ctx context.Context) {
		if got := compensation.Fill(ctx, closing, nil, `{"id":1}`, `{"id":1}`); string(got.Arguments) != `{"id":1}` {
			t.Errorf("Fill = %+v, want the arguments", got)
		}
	}) {
		t.Error("Fill does not wait for its turn")
	}
	if !fairgatetest.Waits(t, func(ctx context.Context) {
		if err := compensation.Check(ctx, "c", closing.Compensation); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("Check does not wait for its turn")
	}
}
