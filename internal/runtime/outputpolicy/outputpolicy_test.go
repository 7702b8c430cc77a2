package outputpolicy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
)

// TestCheck checks that the error of an invalid expression names the position of the fault.
func TestCheck(t *testing.T) {
	const field = "PromptProfile spec.outputPolicy"
	for name, tc := range map[string]struct {
		reason, expression, want string
	}{
		"valid": {"the expression can be used", `size(output.text) < 2000 && output.citations.local.exists(c, c.startsWith("kb:"))`, ""},
		"data":  {"the schema of the answer is not known", `output.data.total > 100 && output.data.items.all(i, i.price >= 0)`, ""},
		"usage": {
			"integers and decimals compare",
			`output.usage.totalTokens < 5000 && (output.usage.cost == null || output.usage.cost < 0.5)`, "",
		},
		"unknown field": {
			"the error has the position of the field", "true &&\n  output.txt != ''",
			field + "[1].expression:2:9: undefined field 'txt'",
		},
		"unknown variable": {
			"output is the only variable", "turn.name == 'x'",
			field + "[1].expression:1:1: undeclared reference to 'turn' (in container '')",
		},
		"syntax": {
			"the expression is incomplete", "output.text ==",
			field + "[1].expression:1:15: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', " +
				"'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
		},
		"type of a comparison": {
			"a text is not a number", "output.text > 3",
			field + "[1].expression:1:13: found no matching overload for '_>_' applied to '(string, int)'",
		},
		"not a bool": {
			"the result must be true or false", "output.text",
			field + "[1].expression:1:1: must be true or false, and not of the type string",
		},
		"pattern": {
			"the pattern is not a valid RE2 pattern", `output.text.matches('(a')`,
			field + "[1].expression:1:21: the pattern cannot be used: error parsing regexp: missing closing ): `(a`",
		},
		"huge pattern": {
			"the repetitions multiply", `!output.text.matches('(a{30}b{30}c{30}){30}')`,
			field + "[1].expression:1:22: the pattern cannot be used: it has more than 2000 characters after its repetitions are expanded",
		},
		"pattern from the answer": {
			"the size of the pattern is not known", `output.text.matches(output.text)`,
			field + "[1].expression:1:27: the pattern of matches() must be a string literal",
		},
		"an object": {
			"CEL would copy all of its values", `google.protobuf.ListValue{values: output.data}.size() == 1`,
			field + "[1].expression:1:26: an expression cannot make an object of the type google.protobuf.ListValue",
		},
		"nested lists": {
			"too many levels multiply", `output.data.all(a, output.data.all(b, output.data.all(c, output.data.all(d, d == a))))`,
			field + "[1].expression:1:73: comprehension exceeds nesting limit",
		},
		"too deep": {
			"the recursion of the parser is limited", strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200),
			field + "[1].expression: expression recursion limit exceeded: 64",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := outputpolicy.Check(field, []outputpolicy.Policy{
				{Name: "first", Prompt: "Is it polite?"}, {Name: "second", Expression: tc.expression},
			})
			got := ""
			if err != nil {
				got = err.Error()
			}
			if _, ok := errors.AsType[*invalid.Error](err); err != nil && !ok {
				t.Errorf("the error is a %T, want an *invalid.Error", err)
			}
			if got != tc.want {
				t.Errorf("Check = %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestHolds checks the result of each evaluation, and that no part of the answer is in the reason.
func TestHolds(t *testing.T) {
	cost := 0.25
	answer := &outputpolicy.Output{
		Text:      "Your refund of 40 EUR is on its way. SECRET",
		Data:      decoded(t, `{"total": 40, "items": [{"price": 40}], "secret": "SECRET"}`),
		Usage:     outputpolicy.Usage{InputTokens: 100, OutputTokens: 20, Cost: &cost},
		Citations: outputpolicy.Citations{Local: []string{"kb:refunds"}},
	}
	long := &outputpolicy.Output{Text: strings.Repeat("a", 1<<20), Data: decoded(t, "["+strings.Repeat("1,", 100_000)+"1]")}
	nested := &outputpolicy.Output{Data: decoded(t, "[["+strings.Repeat("1,", 100_000)+"1]"+strings.Repeat(",1", 1000)+"]")}
	const (
		isFalse   = "the expression is false"
		noValue   = "the expression cannot be evaluated for this answer: a part of output.data is missing, or has another type"
		noBool    = "the expression is neither true nor false for this answer"
		tooCostly = "the evaluation of the expression costs too much for this answer"
	)
	for name, tc := range map[string]struct {
		reason, expression string
		output             *outputpolicy.Output
		why                string
	}{
		"text":          {"the expression is true", `output.text.contains("refund")`, answer, ""},
		"false":         {"the expression is false", `!output.text.contains("refund")`, answer, isFalse},
		"case":          {"patterns may ignore case", `output.text.matches("(?i)REFUND")`, answer, ""},
		"data":          {"numbers of JSON are decimals", `output.data.total <= 40 && output.data.items[0].price > 39`, answer, ""},
		"optional data": {"the macro has() tests whether a field exists", `has(output.data.total) && !has(output.data.other)`, answer, ""},
		"usage":         {"both kinds of tokens count", `output.usage.totalTokens == 120 && output.usage.cost < 0.3`, answer, ""},
		"citations": {
			"the answer has one local source", `size(output.citations.local) == 1 && "kb:refunds" in output.citations.local`,
			answer, "",
		},
		"no data": {
			"a plain answer has no data", `output.data == null && output.usage.cost == null`, &outputpolicy.Output{},
			"",
		},
		"missing data":       {"a missing field is a violation", `output.data.status == "ok"`, answer, noValue},
		"data of plain text": {"null has no fields", `output.data.total > 1`, &outputpolicy.Output{}, noValue},
		"not a decision":     {"the type of data is not known before", `output.data.secret`, answer, noBool},
		"long text": {
			"one search of the longest answer is cheap enough", `output.text.contains("b") || output.text.matches("a+$")`, long, "",
		},
		"expensive pattern": {"a large pattern searches a long text", `output.text.matches("(?:.{50}){19}b")`, long, tooCostly},
		"expensive lists": {
			"each element is compared with each other", `output.data.all(a, output.data.all(b, a == b))`, long,
			tooCostly,
		},
		"growing text": {
			"each step makes a longer text",
			`[1,2,3,4,5,6,7,8,9,10].map(i, output.text + output.text + output.text + output.text).size() == 1`, long, tooCostly,
		},
		"growing text of any type": {
			"CEL does not count its cost", `[dyn(output.text)].map(a, a+a+a+a+a+a).size() == 1`, long, tooCostly,
		},
		"growing bytes of any type": {
			"CEL does not count their cost", `[dyn(bytes(dyn(output.text)))].map(a, a+a+a+a+a+a).size() == 1`, long, tooCostly,
		},
		"comparisons of data": {
			"CEL does not count all of their cost",
			`[1,2,3,4,5,6].map(i, output.data) == [1,2,3,4,5,6].map(i, output.data)`, nested, tooCostly,
		},
		"growing list": {"each step makes a longer list", `[output.data].map(a, a+a+a+a+a).size() == 1`, long, tooCostly},
		"comparisons of nested lists": {
			"each level multiplies the elements",
			`[output.data].map(a, [a,a,a,a,a]).map(a, [a,a,a,a,a]).all(a, a == a)`, long, tooCostly,
		},
		"pages": {
			"the pages are a list of maps", `output.citations.web == [{"title": "Refunds", "url": "https://example.com"}]`,
			&outputpolicy.Output{
				Citations: outputpolicy.Citations{Web: []citation.Page{{Title: "Refunds", URL: "https://example.com"}}},
			}, "",
		},
		"the whole output": {"only its fields are values", `dyn(output) == null`, answer, noValue},
		"a list":           {"it is not a decision", `output.data`, long, noBool},
	} {
		t.Run(name, func(t *testing.T) {
			p := outputpolicy.Policy{Name: "p", Expression: tc.expression}
			if err := outputpolicy.Check("field", []outputpolicy.Policy{p}); err != nil {
				t.Fatal(err)
			}
			check := func(t *testing.T) {
				holds, why := p.Holds(t.Context(), tc.output)
				if name == "expensive lists" && strings.Contains(why, "took more than") {
					why = tc.why // on a slow machine, the time limit is reached first
				}
				if why != tc.why || holds != (why == "") {
					t.Errorf("Holds = %t, %q; want %q: %s", holds, why, tc.why, tc.reason)
				}
			}
			if name == "expensive lists" { // without the time limit, it takes long
				check(t)
				return
			}
			synctest.Test(t, check) // its time stands still, so that the work ends the evaluation also on a slow machine
		})
	}
}

// TestTheOutputIsNoValue checks that CEL does not format the answer for the error of an expression that uses the whole
// output as a value.
func TestTheOutputIsNoValue(t *testing.T) {
	data := &formatted{}
	p := outputpolicy.Policy{Expression: `dyn(output) == null`}
	if holds, _ := p.Holds(t.Context(), &outputpolicy.Output{Data: data}); holds || data.times != 0 {
		t.Errorf("Holds = %t, and the data was formatted %d times; want false and 0", holds, data.times)
	}
}

// formatted counts how often it is formatted.
type formatted struct{ times int }

// Format counts the call.
func (f *formatted) Format(fmt.State, rune) { f.times++ }

// TestHoldsOfACancelledRun checks that the end of a run does not turn into a violation.
func TestHoldsOfACancelledRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := outputpolicy.Policy{Expression: `output.text == "fine"`}
	if holds, why := p.Holds(ctx, &outputpolicy.Output{Text: "fine"}); !holds {
		t.Errorf("Holds = false, %q; want true, because the evaluation needs no context", why)
	}
}

func TestRule(t *testing.T) {
	for want, p := range map[string]outputpolicy.Policy{
		"Be polite.":                         {Message: "Be polite.", Prompt: "It must be polite."},
		"It must be polite.":                 {Prompt: "It must be polite."},
		"this expression must be true: 1==1": {Expression: "1==1"},
	} {
		if diff := cmp.Diff(want, p.Rule()); diff != "" {
			t.Errorf("Rule: -want +got:\n%s", diff)
		}
	}
	policies := []outputpolicy.Policy{{OnViolation: outputpolicy.Report}}
	all := append(slices.Clip(policies), outputpolicy.Policy{OnViolation: outputpolicy.Fail})
	if outputpolicy.AnyEnforced(policies) || !outputpolicy.AnyEnforced(all) {
		t.Error("AnyEnforced must be false for Report alone, and true with Fail")
	}
}

func decoded(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
