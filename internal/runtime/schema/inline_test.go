package schema_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

func TestInline(t *testing.T) {
	for name, tc := range map[string]struct{ reason, source, want string }{
		"nothing to change": {
			"the source is returned as it is",
			`{ "type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["a"] }`,
			`{ "type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["a"] }`,
		},
		"pydantic": {
			"the order of properties stays the same",
			`{"$defs":{"Place":{"type":"object","properties":{"zip":{"type":"string"},"city":{"type":"string"}}}},"type":"object",
				"properties":{"name":{"type":"string"},"homes":{"type":"array","items":{"$ref":"#/$defs/Place"}},
				"at":{"anyOf":[{"$ref":"#/$defs/Place"},{"type":"null"}],"default":null}}}`,
			`{"type":"object","properties":{"name":{"type":"string"},"homes":{"type":"array","items":` +
				`{"type":"object","properties":{"zip":{"type":"string"},"city":{"type":"string"}}}},` +
				`"at":{"anyOf":[{"type":"object","properties":{"zip":{"type":"string"},"city":{"type":"string"}}},{"type":"null"}],` +
				`"default":null}}}`,
		},
		"keywords beside a reference": {
			"they replace those of the definition, but do not hide its properties",
			`{"$defs":{"P":{"description":"A place.","type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["a"]}},
				"properties":{"home":{"$ref":"#/$defs/P","description":"Home.","properties":{"b":{"type":"null"},"c":{}},
				"required":["a","c"]}}}`,
			`{"properties":{"home":{"description":"Home.","type":"object","properties":{"a":{"type":"string"},"b":{"type":"null"},` +
				`"c":{}},"required":["a","c"]}}}`,
		},
		"a chain of references": {
			"definitions may refer to others",
			`{"definitions":{"A":{"$ref":"#/definitions/B","title":"A"},"B":{"type":"integer","title":"B"}},"properties":
				{"n":{"$ref":"#/definitions/A"}}}`,
			`{"properties":{"n":{"type":"integer","title":"A"}}}`,
		},
		"a tree": {
			"a part that contains itself ends with its type and description",
			`{"$defs":{"Node":{"type":"object","description":"A node.","properties":{"next":{"type":"array","items":
				{"$ref":"#/$defs/Node"}}}}},"properties":{"root":{"$ref":"#/$defs/Node"}}}`,
			`{"properties":{"root":{"type":"object","description":"A node.","properties":{"next":{"type":"array","items":` +
				`{"type":"object","description":"A node."}}}}}}`,
		},
		"the whole schema": {
			"a reference may be to the root",
			`{"type":"object","properties":{"child":{"$ref":"#"}}}`,
			`{"type":"object","properties":{"child":{"type":"object"}}}`,
		},
		"a list that contains itself": {
			"endpoints require items",
			`{"$defs":{"L":{"type":"array","items":{"$ref":"#/$defs/L"}}},"properties":{"l":{"$ref":"#/$defs/L"}}}`,
			`{"properties":{"l":{"type":"array","items":{"type":"array","items":{}}}}}`,
		},
		"other places": {
			"a reference may be to any part, by its index and with escapes",
			`{"properties":{"a/b":{"type":"null"},"c":{"$ref":"#/properties/a~1b"},"d":{"$ref":"#/properties/a%7E1b"},
				"e":{"anyOf":[{"type":"string"}]},"f":{"$ref":"#/properties/e/anyOf/0"}}}`,
			`{"properties":{"a/b":{"type":"null"},"c":{"type":"null"},"d":{"type":"null"},` +
				`"e":{"anyOf":[{"type":"string"}]},"f":{"type":"string"}}}`,
		},
		"nowhere": {
			"a reference that is not followed accepts every value",
			`{"properties":{"a":{"$ref":"#/$defs/none","title":"A"},"b":{"$ref":"#anchor"},"c":{"$ref":"https://example.com/s"},
				"d":{"$ref":"#/properties/a/title/x"},"e":{"$ref":"#/required/9"},"f":{"$ref":7}}}`,
			`{"properties":{"a":{"title":"A"},"b":{},"c":{},"d":{},"e":{},"f":{}}}`,
		},
		"properties with the names of keywords": {
			"they are no keywords, and neither are the members of values",
			`{"$defs":{"A":{"type":"null"}},"properties":{"$ref":{"type":"string"},"$defs":{"$ref":"#/$defs/A"},
				"x":{"default":{"$ref":"#/$defs/A","required":["y"]}}}}`,
			`{"properties":{"$ref":{"type":"string"},"$defs":{"type":"null"},"x":{"default":{"$ref":"#/$defs/A","required":["y"]}}}}`,
		},
		"required": {
			"only declared properties can be required",
			`{"type":"object","required":["port","host"],"properties":{"host":{}},"anyOf":[{"required":["a"]},{"type":"object"}]}`,
			`{"type":"object","required":["host"],"properties":{"host":{}},"anyOf":[{},{"type":"object"}]}`,
		},
		"Booleans as schemas": {
			"they stay",
			`{"$defs":{"A":true},"properties":{"a":{"$ref":"#/$defs/A"},"b":true},"additionalProperties":false}`,
			`{"properties":{"a":{},"b":true},"additionalProperties":false}`,
		},
		"numbers": {
			"they keep their digits",
			`{"$defs":{},"properties":{"n":{"maximum":9007199254740993,"minimum":1.50}}}`,
			`{"properties":{"n":{"maximum":9007199254740993,"minimum":1.50}}}`,
		},
		"no object": {"it is no schema with parts", `true`, `true`},
		"no JSON":   {"the caller reports it", `{"$defs":`, `{"$defs":`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := string(schema.Inline(json.RawMessage(tc.source))); got != tc.want {
				t.Errorf("Inline = %s\nwant %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestInlineIsBounded checks that definitions that would grow exponentially, or that are large, are copied only so
// often.
func TestInlineIsBounded(t *testing.T) {
	var doubling strings.Builder
	for i := range 60 {
		fmt.Fprintf(&doubling, `"D%d":{"properties":{"a":{"$ref":"#/$defs/D%[2]d"},"b":{"$ref":"#/$defs/D%[2]d"}}},`, i, i+1)
	}
	large := `"L":{"type":"string","enum":["` + strings.Repeat("x", 20<<10) + `"]},`
	for name, source := range map[string]string{
		"doubling": `{"$defs":{` + doubling.String() + `"D60":{}},"properties":{"a":{"$ref":"#/$defs/D0"}}}`,
		"described": `{"$defs":{"T":{"type":"string","enum":["` + strings.Repeat("x", 70<<10) + `"],"description":"` +
			strings.Repeat("y", 10<<10) + `"}},"properties":{` + strings.Repeat(`"p":{"$ref":"#/$defs/T"},`, 1000) + `"q":{}}}`,
		"large": `{"$defs":{` + large + `"D":{}},"properties":{` + strings.Repeat(`"p":{"$ref":"#/$defs/L"},`, 1000) +
			`"q":{"$ref":"#/$defs/D"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			got := schema.Inline(json.RawMessage(source))
			if most := len(source) + 64<<10; len(got) > most || !json.Valid(got) || strings.Contains(string(got), "$ref") {
				t.Errorf("Inline returns %d bytes, JSON: %t; want at most %d, without references", len(got), json.Valid(got), most)
			}
		})
	}
}
