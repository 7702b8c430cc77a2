package schema_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

func compiled(t *testing.T, source string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(json.RawMessage(source))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// texts returns violations as one line each.
func texts(all []schema.Violation) []string {
	var lines []string
	for _, v := range all {
		lines = append(lines, v.String())
	}
	return lines
}

func TestCompile(t *testing.T) {
	doubling := `{"$defs":{"n0":{"type":"string"}`
	for i := range 20 {
		doubling += fmt.Sprintf(`,"n%d":{"anyOf":[{"$ref":"#/$defs/n%d"},{"$ref":"#/$defs/n%d"}]}`, i+1, i, i)
	}
	for name, tc := range map[string]struct {
		reason, source string
		want           string // a part of the error; empty if the schema can be used
	}{
		"an object": {"most tools have an object", `{"type":"object","properties":{"n":{"type":"integer"}}}`, ""},
		"anything":  {"true is a schema", `true`, ""},
		"draft 7": {
			"an older draft is selected by its URL",
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`, "",
		},
		"own reference": {
			"a reference within the document is followed",
			`{"$defs":{"n":{"type":"integer"}},"properties":{"n":{"$ref":"#/$defs/n"}}}`, "",
		},
		"recursive":         {"a schema may refer to itself", `{"properties":{"inner":{"$ref":"#"}}}`, ""},
		"incomplete schema": {"incomplete JSON is not a schema", `{"type":`, "the schema is not JSON"},
		"two schemas":       {"two values are not a schema", `{} {}`, "the schema is not JSON"},
		"unknown type":      {"a type must have a known name", `{"type":"number or so"}`, "the schema cannot be used"},
		"a file": {
			"files of the machine are not read", `{"$ref":"file:///etc/passwd"}`,
			"references to other documents are not followed: file:///etc/passwd",
		},
		"relative": {
			"files next to the schema are not read", `{"$ref":"other.json"}`,
			"references to other documents are not followed: other.json",
		},
		"over the network": {
			"the network is not used", `{"$ref":"https://example.com/x"}`,
			"references to other documents are not followed: https://example.com/x",
		},
		"unknown dialect": {
			"the network is not used for a dialect", `{"$schema":"https://example.com/dialect"}`,
			"references to other documents are not followed",
		},
		"pattern": {"Go does not support this pattern", `{"pattern":"(?=a)b"}`, "the schema cannot be used"},
		"too long": {
			"the size of a schema is limited", `{"title":"` + strings.Repeat("x", schema.MaxSource) + `"}`,
			"the maximum is 1048576",
		},
		"too deep": {
			"the depth of a schema is limited", strings.Repeat(`{"not":`, 70) + "{}" + strings.Repeat("}", 70),
			"is nested deeper than 64 levels",
		},
		"doubling": {
			"a value must not require 2 to the power of 20 checks", doubling + `},"$ref":"#/$defs/n20"}`,
			"too many alternatives",
		},
		"doubling, for part": {
			"a part of a value must not require 2 to the power of 20 checks",
			doubling + `},"properties":{"a":{"$ref":"#/$defs/n20"}}}`, "too many alternatives",
		},
		"refers to itself": {"the validation would not end", `{"$ref":"#"}`, "refers to itself for the same value"},
		"circle of references": {
			"a circle of references would not end",
			`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
			"refers to itself for the same value",
		},
		"circle for a part": {
			"a circle of references for a part of the value would not end",
			`{"properties":{"a":{"items":{"anyOf":[{"type":"null"},{"$ref":"#/properties/a/items"}]}}}}`,
			"refers to itself for the same value",
		},
		"recursion into parts": {
			"a recursion that ends with the value is allowed", `{"allOf":[{"properties":{"a":{"$ref":"#"}}}]}`, "",
		},
		"long chain": {"the length of a chain of references is limited", chain(1000), "too many alternatives"},
		"many parts": {
			"the number of parts is limited, because each takes memory",
			`{"allOf":[` + strings.Repeat("{},true,", 2500) + `{}]}`, "too many parts",
		},
		"dynamic": {
			"a dynamic reference with a single target is allowed",
			`{"$dynamicAnchor":"n","properties":{"a":{"$dynamicRef":"#n"}}}`, "",
		},
		"dynamic, several": {
			"a dynamic reference with several targets is rejected",
			`{"$id":"https://example.com/a","$dynamicAnchor":"n",` +
				`"$defs":{"b":{"$id":"b","$dynamicAnchor":"n","items":{"$dynamicRef":"#n"}}},"$ref":"b"}`,
			"dynamic references",
		},
		"recursive 2019": {
			"a recursive reference with a single target is allowed",
			`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"properties":{"a":{"$recursiveRef":"#"}}}`,
			"",
		},
		"recursive within": {
			"a recursive reference to a nested anchor is rejected",
			`{"$schema":"https://json-schema.org/draft/2019-09/schema",` +
				`"properties":{"a":{"$id":"https://example.com/a","$recursiveAnchor":true,"items":{"$recursiveRef":"#"}}}}`,
			"dynamic references",
		},
		"schema of schemas": {
			"a value may be required to be a schema",
			`{"properties":{"s":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`, "",
		},
		"extended schema of schemas": {
			"a document must not extend the schema of schemas dynamically",
			`{"$dynamicAnchor":"meta","allOf":[{"$ref":"https://json-schema.org/draft/2020-12/schema"}]}`,
			"dynamic references",
		},
		"pattern bomb": {
			"the expanded size of a pattern is limited", `{"pattern":"^` + strings.Repeat("a{0,1000}", 100) + `$"}`,
			"repetitions are expanded",
		},
		"pattern bomb for names": {
			"the expanded size of a pattern for names is limited",
			`{"patternProperties":{"^(a{0,6}bbbbbbbbbbbbbbbbbbbb){0,100}$":{}}}`, "repetitions are expanded",
		},
		"long pattern": {
			"the length of a pattern is limited", `{"pattern":"` + strings.Repeat("a", 1025) + `"}`, "the maximum is 1024",
		},
		"usual patterns": {
			"usual patterns are allowed",
			`{"pattern":"^[a-z]{1,1000}$","items":{"pattern":"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}}`, "",
		},
		"many patterns": {
			"the number of patterns is limited", `{"allOf":[` + manyPatterns(257, 1) + `]}`, "patterns of the schema are too many",
		},
		"large patterns": {
			"the total size of patterns is limited", `{"allOf":[` + manyPatterns(30, 900) + `]}`, "or too long",
		},
		"patterns with large classes": {
			"the memory of patterns is limited", `{"allOf":[` + classPatterns(20, 60) + `]}`, "take more than 4 MiB of memory together",
		},
		"patterns with overlapping classes": {
			"the work of compiling patterns is limited", `{"allOf":[` + overlappingPatterns(20) + `]}`, "take too long to compile",
		},
		"some large classes": {"usual classes are allowed", `{"allOf":[` + classPatterns(50, 3) + `]}`, ""},
		"same pattern": {
			"equal patterns count once", `{"allOf":[` + strings.Repeat(`{"pattern":"a{900}"},`, 300) + `{}]}`, "",
		},
		"doubling, a little": {"a few alternatives are allowed", doubling + `},"$ref":"#/$defs/n5"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cached := func(source json.RawMessage) (*schema.Schema, error) { return schema.Cached(t.Context(), source) }
			for _, compile := range []func(json.RawMessage) (*schema.Schema, error){schema.Compile, cached, cached} {
				s, err := compile(json.RawMessage(tc.source))
				switch {
				case tc.want == "" && (err != nil || string(s.Source) != tc.source):
					t.Errorf("error %v: %s", err, tc.reason)
				case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
					t.Errorf("error %v, want one with %q: %s", err, tc.want, tc.reason)
				}
			}
		})
	}
}

func TestValidate(t *testing.T) {
	const order = `{
		"type":"object","additionalProperties":false,"required":["n","unit"],
		"properties":{
			"n":{"type":"integer","minimum":1,"maximum":1e3},"unit":{"enum":["kg","g",null]},
			"tags":{"type":"array","items":{"type":"string","maxLength":3},"maxItems":2,"uniqueItems":true},
			"a/b~c":{"type":"object","properties":{"d":{"const":7}}},
			"either":{"anyOf":[{"type":"integer"},{"type":"null"}]},
			"shape":{"oneOf":[{"required":["r"]},{"required":["w","h"]}]},
			"step":{"multipleOf":0.5,"exclusiveMinimum":0},
			"name":{"type":"string","pattern":"^[a-z]+$","minLength":1}
		}
	}`
	many := map[string]int{}
	for i := range 40 {
		many[fmt.Sprintf("extra%02d", i)] = i
	}
	extras, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason, value string
		want          []string
	}{
		"fits": {
			"a value that fits has no violations",
			`{"n":1,"unit":"kg","tags":["a"],"either":null,"shape":{"r":1},"step":1.5}`, nil,
		},
		"integral":      {"1.0 is an integer", `{"n":1.0,"unit":null}`, nil},
		"not an object": {"the path of the whole value is empty", `[]`, []string{"must be an object"}},
		"missing":       {"all missing properties are listed", `{}`, []string{`must have "n", "unit"`}},
		"unknown": {
			"unknown properties are listed", `{"n":1,"unit":"g","x":1,"w":2}`, []string{`must not have "w", "x"`},
		},
		"many unknown": {
			"only the first unknown properties are listed", string(extras),
			[]string{`must have "n", "unit"`, `must not have "extra00", "extra01", "extra02", "extra03", "extra04" and 35 more`},
		},
		"types": {
			"the required type is named", `{"n":"1","unit":"g","tags":{}}`,
			[]string{"/n: must be an integer", "/tags: must be an array"},
		},
		"lower bounds": {
			"the lower bound is named", `{"n":0,"unit":"g","step":0.3}`,
			[]string{"/n: must be at least 1", "/step: must be a multiple of 0.5"},
		},
		"upper bounds": {
			"the upper bound is named", `{"n":1001,"unit":"g","step":0}`,
			[]string{"/n: must be at most 1000", "/step: must be more than 0"},
		},
		"enum": {
			"the allowed values are listed", `{"n":1,"unit":"lb"}`, []string{`/unit: must be one of "kg", "g", null`},
		},
		"paths": {
			"a path is a JSON pointer", `{"n":1,"unit":"g","a/b~c":{"d":8},"tags":["a","long"]}`,
			[]string{"/a~1b~0c/d: must be 7", "/tags/1: must have at most 3 characters, but has 4"},
		},
		"items": {
			"lists are checked", `{"n":1,"unit":"g","tags":["a","a","b"]}`,
			[]string{"/tags: has equal items at 0 and 1", "/tags: must have at most 2 items, but has 3"},
		},
		"alternatives of types": {
			"alternatives that differ only in their types give one violation", `{"n":1,"unit":"g","either":"x"}`,
			[]string{"/either: must be an integer or null"},
		},
		"alternatives": {
			"the first problem of each alternative is listed", `{"n":1,"unit":"g","shape":{"w":1}}`,
			[]string{`/shape: fits none of the alternatives: must have "r"; or must have "h"`},
		},
		"two alternatives fit": {
			"a value that fits more than one alternative is named as such",
			`{"n":1,"unit":"g","shape":{"r":1,"w":1,"h":1}}`,
			[]string{"/shape: must fit exactly one of the alternatives, but fits several"},
		},
		"pattern": {
			"the pattern is quoted", `{"n":1,"unit":"g","name":"A B"}`, []string{"/name: must match the pattern ^[a-z]+$"},
		},
		"empty": {
			"the required and the actual length are named", `{"n":1,"unit":"g","name":""}`,
			[]string{"/name: must have at least 1 characters, but has 0", "/name: must match the pattern ^[a-z]+$"},
		},
		"incomplete JSON": {"incomplete JSON is rejected", `{"n":1`, []string{"is not JSON"}},
		"two values":      {"two values are rejected", `{} {}`, []string{"is not JSON"}},
		"empty text":      {"an empty text is rejected", ``, []string{"is not JSON"}},
		"duplicate key": {
			"a duplicate key is ambiguous", `{"n":1,"n":2,"unit":"g","shape":{"r":[{"x":1,"x":1}]}}`,
			[]string{"/n: appears twice in its object", "/shape/r/0/x: appears twice in its object"},
		},
		"escaped key": {
			"an escaped duplicate key is ambiguous", `{"n":1,"\u006e":2,"unit":"g"}`,
			[]string{"/n: appears twice in its object"},
		},
		"equal keys in different objects": {
			"equal keys in different objects are allowed", `{"n":1,"unit":"g","shape":{"r":{"n":1}},"tags":["n","m"]}`, nil,
		},
		"huge number": {
			"a huge number would fill the memory", `{"n":1e999999,"unit":"g"}`,
			[]string{"/n: is a number that is too large, too small or too long"},
		},
		"tiny number": {
			"a tiny number would become 0", `{"n":1,"unit":"g","step":1e-999999}`,
			[]string{"/step: is a number that is too large, too small or too long"},
		},
		"long number": {
			"a long number would take long to parse", `{"n":1` + strings.Repeat("0", 200) + `,"unit":"g"}`,
			[]string{"/n: is a number that is too large, too small or too long"},
		},
		"zero": {"zero is not a tiny number", `{"n":1,"unit":"g","shape":{"r":[0,-0,0.00,0e5]}}`, nil},
		"deep": {
			"the depth is limited",
			`{"n":1,"unit":"g","shape":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
			[]string{short("/shape" + strings.Repeat("/0", 62) + ": is nested deeper than 64 levels")},
		},
		"too long": {
			"the size is limited", `"` + strings.Repeat("x", schema.MaxValue) + `"`,
			[]string{"has 1048578 bytes, and the maximum is 1048576"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, texts(compiled(t, order).Validate(t.Context(), json.RawMessage(tc.value)))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestInvisibleCharactersAreShown checks that a message shows the invisible characters of names and values, so that it
// does not demand a name that the value already has.
func TestInvisibleCharactersAreShown(t *testing.T) {
	const name = "نام\u200cخانوادگی"
	s := compiled(t, `{"required":["`+name+`"],"properties":{"`+name+`":{"enum":["a\u200db"]}},"propertyNames":{"pattern":"."},`+
		`"dependentRequired":{"x":["y\u00adz"]},"additionalProperties":{"const":"\u007f"}}`)
	for value, want := range map[string][]string{
		`{}`:                                 {`must have "نام\u200cخانوادگی"`},
		`{"` + name + `":"ab"}`:              {`/نام\u200cخانوادگی: must be one of "a\u200db"`},
		`{"` + name + `":"a\u200db","x":""}`: {`must have "y\u00adz", which "x" requires`, `/x: must be "\u007f"`},
	} {
		if diff := cmp.Diff(want, texts(s.Validate(t.Context(), json.RawMessage(value)))); diff != "" {
			t.Errorf("the violations of %s: -want +got:\n%s", value, diff)
		}
	}
}

// short returns a line with its path cut to the maximum length.
func short(line string) string {
	path, message, _ := strings.Cut(line, ": ")
	return path[:99] + "…: " + message
}

// TestViolationsAreBounded checks the bounds for any schema and value.
func TestViolationsAreBounded(t *testing.T) {
	long := strings.Repeat("ü\n", 5000)
	name, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	properties, value := []string{}, []string{}
	for i := range 50 {
		properties = append(properties, fmt.Sprintf(`"p%d":{"enum":[%s]}`, i, name))
		value = append(value, fmt.Sprintf(`"p%d":{%s:1}`, i, name))
	}
	s := compiled(t, `{"properties":{`+strings.Join(properties,
		",")+`},"patternProperties":{"ü":{"type":"string"}},"additionalProperties":false}`)
	got := s.Validate(t.Context(), json.RawMessage(`{`+strings.Join(value, ",")+`,`+string(name)+`:1,"\u202eq":1}`))
	if len(got) != schema.MaxViolations {
		t.Errorf("%d violations, want the first %d", len(got), schema.MaxViolations)
	}
	for _, v := range got {
		if utf8.RuneCountInString(v.Path) > 100 || utf8.RuneCountInString(v.Message) > 200 || strings.ContainsAny(v.String(), "\n\u202e") {
			t.Errorf("violation %q, want one short line", v)
		}
	}
}

// TestManyEqualItems checks a list for which a quadratic algorithm would need minutes.
func TestManyEqualItems(t *testing.T) {
	s := compiled(t, `{"uniqueItems":true}`)
	var items []string
	for i := range 20_000 {
		items = append(items, fmt.Sprint(i))
	}
	if got := s.Validate(t.Context(), json.RawMessage("["+strings.Join(items, ",")+"]")); got != nil {
		t.Errorf("violations %v, want none", got)
	}
}

// chain returns a schema with n references, each to the next one.
func chain(n int) string {
	defs := []string{`"d0":{}`}
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d":{"$ref":"#/$defs/d%d"}`, i+1, i))
	}
	return fmt.Sprintf(`{"$defs":{%s},"$ref":"#/$defs/d%d"}`, strings.Join(defs, ","), n)
}

// manyPatterns returns n schemas with different patterns of a size.
func manyPatterns(n, size int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"pattern":"%c{%d}"}`, rune(0x4e00+i), size))
	}
	return strings.Join(all, ",")
}

// classPatterns returns n schemas with different patterns, each with a number of large classes.
func classPatterns(n, classes int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"pattern":"%d%s"}`, i, strings.Repeat(`\\pL`, classes)))
	}
	return strings.Join(all, ",")
}

// overlappingPatterns returns n schemas with different patterns, each with one class that takes long to compile.
func overlappingPatterns(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"pattern":"%d[%s]"}`, i, strings.Repeat(`\\pL`, 150)))
	}
	return strings.Join(all, ",")
}

// numbers returns a list of n different numbers.
func numbers(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	return strings.Join(all, ",")
}

func TestCachedIsSafeForConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 700 {
				s, err := schema.Cached(t.Context(), json.RawMessage(fmt.Sprintf(`{"title":"of TestCached","const":%d}`, i)))
				if err != nil || s.Validate(t.Context(), json.RawMessage(fmt.Sprint(i))) != nil ||
					s.Validate(t.Context(), json.RawMessage(fmt.Sprint(i+1))) == nil {
					t.Errorf("Cached returns a wrong schema for number %d (error %v)", i, err)
				}
			}
		})
	}
	wg.Wait()
	one, err := schema.Cached(t.Context(), json.RawMessage(`{"title":"kept"}`))
	if err != nil {
		t.Fatal(err)
	}
	if two, err := schema.Cached(t.Context(), json.RawMessage(`{"title":"kept"}`)); err != nil || one != two {
		t.Errorf("a schema was compiled twice (error %v), want it kept", err)
	}
}
