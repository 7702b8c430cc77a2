package schema_test

import (
	"context"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// quotedNumbers returns a JSON list of texts without its brackets.
func quotedNumbers(n int) string { return `"` + strings.ReplaceAll(numbers(n), ",", `","`) + `"` }

// alternatives returns a schema with the same alternative n times.
func alternatives(part string, n int) string {
	return `{"anyOf":[` + strings.Repeat(part+",", n-1) + part + `]}`
}

// TestNestedValuesAreCheckedInABoundedTime checks schemas for which the work multiplies with each level of a value.
func TestNestedValuesAreCheckedInABoundedTime(t *testing.T) {
	const tooMuch = "is too large or nested too deep to be validated against a schema with so many alternatives"
	nested := func(before, after string, depth int) string {
		return strings.Repeat(before, depth) + "1" + strings.Repeat(after, depth)
	}
	again := func(keyword, part string) string {
		return `{"$defs":{"s":{"` + keyword + `":[` + part + `,` + part + `]}},"$ref":"#/$defs/s"}`
	}
	const property = `{"properties":{"a":{"$ref":"#/$defs/s"}}}`
	const filter = `{"$defs":{"s":{"anyOf":[{"properties":{"and":{"items":{"$ref":"#/$defs/s"}}},"required":["and"]},
		{"properties":{"or":{"items":{"$ref":"#/$defs/s"}}},"required":["or"]},` +
		`{"properties":{"not":{"$ref":"#/$defs/s"}},"required":["not"]},{"type":"integer"}]}},"$ref":"#/$defs/s"}`
	const sum = `{"$defs":{"s":{"oneOf":[` +
		`{"type":"object","properties":{"op":{"const":"add"},"a":{"$ref":"#/$defs/s"}},"required":["op","a"]},
		{"type":"object","properties":{"op":{"const":"neg"},"a":{"$ref":"#/$defs/s"}},"required":["op","a"]},` +
		`{"type":"integer"}]}},"$ref":"#/$defs/s"}`
	fitting := strings.Repeat(`{"op":"add","a":`, 5) + "1" + strings.Repeat("}", 5)
	for name, tc := range map[string]struct {
		reason, schema, value string
		want                  []string
	}{
		"allOf":           {"the work doubles with each level", again("allOf", property), nested(`{"a":`, "}", 60), []string{tooMuch}},
		"anyOf":           {"the work doubles for alternatives", again("anyOf", property), nested(`{"a":`, "}", 60), []string{tooMuch}},
		"oneOf, not deep": {"the work is affordable for a value of low depth", again("allOf", property), nested(`{"a":`, "}", 8), nil},
		"items": {
			"the work doubles for lists", again("allOf", `{"items":{"$ref":"#/$defs/s"}}`), nested("[", "]", 60),
			[]string{tooMuch},
		},
		"names by pattern": {
			"the work doubles for properties matched by patterns",
			`{"patternProperties":{"^a":{"$ref":"#"},"a$":{"$ref":"#"}}}`, nested(`{"a":`, "}", 60),
			[]string{tooMuch},
		},
		"other properties": {
			"the work doubles for additional properties", again("allOf", `{"additionalProperties":{"$ref":"#/$defs/s"}}`),
			nested(`{"a":`, "}", 60),
			[]string{tooMuch},
		},
		"unevaluated": {
			"the work doubles for unevaluated properties", again("allOf", `{"unevaluatedProperties":{"$ref":"#/$defs/s"}}`),
			nested(`{"a":`, "}", 60),
			[]string{tooMuch},
		},
		"contains": {
			"the work doubles for contains", `{"items":{"$ref":"#"},"contains":{"$ref":"#"}}`, nested("[", "]", 60),
			[]string{tooMuch},
		},
		"enum": {
			"each element is compared with each allowed value", `{"items":{"enum":[` + numbers(10_000) + `]}}`,
			"[" + numbers(200) + "]",
			[]string{tooMuch},
		},
		"enum, short": {
			"a few comparisons are affordable", `{"items":{"enum":[` + numbers(1000) + `]}}`, "[" + numbers(100) + "]", nil,
		},
		"enum of objects": {
			"each part of an allowed value is compared", `{"items":{"enum":[{"a":[` + numbers(10_000) + `]}]}}`,
			"[" + strings.Repeat("{},", 200) + "{}]",
			[]string{tooMuch},
		},
		"const": {
			"each element is compared with each part of the allowed value", `{"items":{"const":[` + numbers(10_000) + `]}}`,
			"[" + strings.Repeat("[],", 200) + "[]]",
			[]string{tooMuch},
		},
		"older lists": {
			"the work doubles in older drafts",
			`{"$schema":"http://json-schema.org/draft-07/schema#","allOf":[{"items":[{"$ref":"#"}]},{"items":{"$ref":"#"}}]}`,
			nested("[", "]", 60),
			[]string{tooMuch},
		},
		"a filter": {"different properties do not multiply the work", filter, nested(`{"and":[{"or":[`, "]}]}", 15), nil},
		"invalid filter": {
			"the violations of a filter are listed", filter, `{"x":1}`,
			[]string{`fits none of the alternatives: must have "and"; or must have "or"; or must have "not"`},
		},
		"operators": {"alternatives that share a property multiply the work, but a usual depth is affordable", sum, fitting, nil},
		"text for patterns": {
			"a long text with large patterns takes too long", `{"allOf":[` + manyPatterns(15, 900) + `]}`,
			`"` + strings.Repeat("x", 1<<19) + `"`,
			[]string{tooMuch},
		},
		"required names": {
			"each required name is looked up in each object", `{"items":{"required":[` + quotedNumbers(10_000) + `]}}`,
			"[" + strings.Repeat("{},", 2000) + "{}]",
			[]string{tooMuch},
		},
		"names that others require": {
			"they are looked up in each object",
			`{"items":{"dependentRequired":{"a":[` + quotedNumbers(10_000) + `]}}}`,
			"[" + strings.Repeat(`{"a":1},`, 2000) + "{}]",
			[]string{tooMuch},
		},
		"names and alternatives": {
			"each alternative goes through the names of an object", alternatives(`{"additionalProperties":false}`, 1000),
			`{` + strings.ReplaceAll(quotedNumbers(10_000), ",", ":0,") + `:0}`,
			[]string{tooMuch},
		},
		"equal items": {
			"each alternative compares the items of a list", alternatives(`{"uniqueItems":true,"minItems":99999}`, 1000),
			"[" + numbers(2000) + "]",
			[]string{tooMuch},
		},
		"text and alternatives": {
			"the library copies a text for each alternative", alternatives(`{"type":"string","minLength":9999999}`, 1000),
			`"` + strings.Repeat("x", 1<<19) + `"`,
			[]string{tooMuch},
		},
		"formats": {
			"the format of a text is checked for each alternative",
			`{"$schema":"http://json-schema.org/draft-07/schema#","anyOf":[` + strings.Repeat(`{"format":"email"},`, 1000) + `false]}`,
			`"` + strings.Repeat("x", 1<<18) + `"`,
			[]string{tooMuch},
		},
		"texts that must be patterns": {
			"each of them is compiled", `{"$schema":"http://json-schema.org/draft-07/schema#","items":{"format":"regex"}}`,
			"[" + strings.Repeat(`"(a{999}b)",`, 10_000) + "1]",
			[]string{tooMuch},
		},
		"texts that are slow patterns": {
			"the work of compiling them is counted", `{"$schema":"http://json-schema.org/draft-07/schema#","items":{"format":"regex"}}`,
			"[" + strings.Repeat(`"[`+strings.Repeat(`\\pL`, 150)+`]",`, 1000) + "1]",
			[]string{tooMuch},
		},
		"usual objects": {
			"a long list of objects with required names is affordable",
			`{"items":{"type":"object","required":["a","b"],"properties":{"a":{"type":"integer"},"b":{"type":"string"}}}}`,
			"[" + strings.Repeat(`{"a":1,"b":"x"},`, 50_000) + `{"a":1,"b":"x"}]`, nil,
		},
		"long text": {
			"a long text with a usual pattern is affordable", `{"pattern":"^[^<>]*$"}`,
			`"` + strings.Repeat("x", 1<<19) + `"`, nil,
		},
		"large list": {"a long list is affordable", `{"items":{"type":"integer"}}`, "[" + strings.Repeat("1,", 400_000) + "1]", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, tc.schema)
			got := texts(s.Validate(t.Context(), json.RawMessage(tc.value)))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if repaired, changes := s.Repair(t.Context(), json.RawMessage(tc.value)); repaired != nil || changes != nil {
				t.Errorf("%s: Repair made the changes %v, want none", tc.reason, changes)
			}
		})
	}
}

// TestViolationsTakeBoundedMemory checks values that fit in none of very many places. Without a bound, the library
// allocates between 300 MiB and 6 GiB for them.
func TestViolationsTakeBoundedMemory(t *testing.T) {
	const most = 200 << 20
	for name, tc := range map[string]struct {
		schema, value string
	}{
		"items":        {`{"items":{"type":"string"}}`, "[" + strings.Repeat("1,", 400_000) + "1]"},
		"alternatives": {alternatives(`{"items":{"type":"null"}}`, 2000), "[" + strings.Repeat("1,", 400) + "1]"},
		"all of them": {
			`{"allOf":[` + strings.Repeat(`{"items":{"type":"null"}},`, 2000) + `true]}`,
			"[" + strings.Repeat("1,", 400) + "1]",
		},
		"names": {
			`{"additionalProperties":{"type":"string"}}`,
			`{` + strings.ReplaceAll(quotedNumbers(90_000), ",", ":0,") + `:0}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, tc.schema)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := texts(s.Validate(t.Context(), json.RawMessage(tc.value)))
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > most {
				t.Errorf("the validation allocated %d MiB, want at most %d", allocated>>20, most>>20)
			}
			if want := []string{"does not fit the schema in so many places that they cannot be listed"}; !cmp.Equal(got, want) {
				t.Errorf("Validate = %v, want %v", got, want)
			}
			if repaired, changes := s.Repair(t.Context(), json.RawMessage(tc.value)); repaired != nil || changes != nil {
				t.Errorf("Repair made the changes %v, want none", changes)
			}
		})
	}
}

// TestMessagesTakeBoundedMemory checks values with thousands of violations whose messages would be far longer than the
// messages that are reported.
func TestMessagesTakeBoundedMemory(t *testing.T) {
	const most = 150 << 20
	long := strings.Repeat("<", 3000)
	items := "[" + strings.Repeat("1,", 30_000) + "1]"
	allowed := `"` + strings.Repeat(long+`","`, 19) + long + `"`
	key := strings.Repeat("k", 20_000)
	for name, tc := range map[string]struct {
		schema, value string
		// prefix is the beginning of the first violation.
		prefix string
		want   int
	}{
		"enum":  {`{"items":{"enum":[` + allowed + `]}}`, items, `/0: must be one of "\u003c\u003c`, schema.MaxViolations},
		"const": {`{"items":{"const":[` + allowed + `]}}`, items, `/0: must be ["\u003c\u003c`, schema.MaxViolations},
		"at one place": {
			`{"$defs":{"c":{"const":[` + allowed + `]}},"allOf":[` + strings.Repeat(`{"$ref":"#/$defs/c"},`, 2000) + `true]}`, "1",
			`must be ["\u003c\u003c`, 1,
		},
		"alternatives": {
			`{"$defs":{"c":{"const":[` + allowed + `]}},"items":{"anyOf":[{"$ref":"#/$defs/c"},{"type":"null"}]}}`,
			"[" + strings.Repeat("1,", 9_000) + "1]", `/0: fits none of the alternatives: must be ["\u003c\u003c`, schema.MaxViolations,
		},
		"a long path": {
			`{"additionalProperties":{"items":{"enum":[` + allowed + `]}}}`, `{"` + key[:200] + `":` + items + `}`,
			"/" + key[:98] + `…: must be one of "\u003c\u003c`, 1,
		},
		"names": {
			`{"allOf":[` + strings.Repeat(`{"propertyNames":{"maxLength":5}},`, 2000) + `true]}`, `{"` + key + `":1}`,
			`must not have a property named "kkk`, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, tc.schema)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := texts(s.Validate(t.Context(), json.RawMessage(tc.value)))
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > most {
				t.Errorf("the validation allocated %d MiB, want at most %d", allocated>>20, most>>20)
			}
			if len(got) != tc.want || !strings.HasPrefix(got[0], tc.prefix) {
				t.Errorf("Validate = %.300q, want %d violations, the first with the prefix %q", got, tc.want, tc.prefix)
			}
		})
	}
}

// TestLargeValuesAreCheckedAsSmallOnes checks that a value has the same violations and repairs if its failures are
// counted, because it is large.
func TestLargeValuesAreCheckedAsSmallOnes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, schema string
		// value is the first item of the list, and more is an item that is repeated and fits.
		value, more string
		want        []string
	}{
		"alternatives": {
			"the failures of alternatives that do not fit do not count if another alternative fits",
			`{"items":{"anyOf":[{"type":"string"},{"type":"integer"}]}}`, `"fits"`, "1", nil,
		},
		"not": {"a value that must not fit has no failures", `{"items":{"not":{"type":"string"}}}`, "1", "1", nil},
		"references": {
			"references to a part and to the whole schema work",
			`{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s"}},"items":{"anyOf":[{"$ref":"#"},{"type":"array"}]}}`,
			`{"a":1}`, "[]",
			[]string{`/0: fits none of the alternatives: /a: must be a string; or must be an array`},
		},
		"dynamic references": {
			"a dynamic reference works", `{"$dynamicAnchor":"s","type":["array","integer"],"items":{"$dynamicRef":"#s"}}`, `"x"`, "1",
			[]string{"/0: must be an integer or an array"},
		},
		"older draft": {
			"a schema of an older draft works",
			`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"null"}],"additionalItems":{"$ref":"#/definitions/i"},` +
				`"definitions":{"i":{"type":"integer"}}}`, "1", "1",
			[]string{"/0: must be null"},
		},
		"unevaluated": {
			"the properties that another part has evaluated are known",
			`{"items":{"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false}}`, `{"a":1,"b":2}`, `{"a":1}`,
			[]string{"/0/b: is not allowed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, tc.schema)
			got := texts(s.Validate(t.Context(), json.RawMessage("["+tc.value+strings.Repeat(","+tc.more, 20_000)+"]")))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestLongChecksTakeTurns checks that a value whose check takes long waits while another namespace uses the processor,
// and that the check of a usual value does not.
func TestLongChecksTakeTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		schema, value string
		want          bool
	}{
		"usual":               {`{"properties":{"a":{"type":"string"}}}`, `{"a":1}`, false},
		"large value":         {`{"type":"string"}`, `{"a":"` + strings.Repeat("x", 16<<10) + `"}`, true},
		"many alternatives":   {alternatives(`{"items":{"type":"null"}}`, 200), "[1,2,3]", true},
		"many required names": {`{"items":{"required":[` + quotedNumbers(1000) + `]}}`, "[{},{},{}]", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, tc.schema)
			if got := fairgatetest.Waits(t, func(ctx context.Context) { s.Validate(ctx, json.RawMessage(tc.value)) }); got != tc.want {
				t.Errorf("Validate waits: %t, want %t", got, tc.want)
			}
			if got := fairgatetest.Waits(t, func(ctx context.Context) { s.Repair(ctx, json.RawMessage(tc.value)) }); got != tc.want {
				t.Errorf("Repair waits: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestCompilationTakesTurns checks that a schema that is not in the cache waits while another namespace uses the
// processor, and that a schema in the cache does not.
func TestCompilationTakesTurns(t *testing.T) {
	for _, source := range []string{`{"title":"of TestCompilationTakesTurns"}`, `{"title":"invalid schema","type":1}`} {
		for i, want := range []bool{true, false} {
			got := fairgatetest.Waits(t, func(ctx context.Context) { _, _ = schema.Cached(ctx, json.RawMessage(source)) })
			if got != want {
				t.Errorf("compilation %d of %s waits: %t, want %t", i+1, source, got, want)
			}
		}
	}
}
