package prompt_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

func TestJSONSchema(t *testing.T) {
	const object = `"additionalProperties":false,"properties":`
	for name, tc := range map[string]struct {
		reason string
		tool   prompt.Tool
		want   string
	}{
		"none": {"a tool without parameters takes an empty object", prompt.Tool{Name: "t"}, `{` + object + `{},"type":"object"}`},
		"default": {
			"the default type is string", parameters(prompt.Parameter{Name: "s"}),
			`{` + object + `{"s":{"type":"string"}},"type":"object"}`,
		},
		"enum": {
			"an enum is a string", parameters(prompt.Parameter{Name: "e", Type: "enum", Enum: []string{"b", "a"}}),
			`{` + object + `{"e":{"enum":["b","a"],"type":"string"}},"type":"object"}`,
		},
		"no enum": {
			"an empty enum is left out", parameters(prompt.Parameter{Name: "e", Enum: []string{}}),
			`{` + object + `{"e":{"type":"string"}},"type":"object"}`,
		},
		"array": {
			"an array may contain anything", parameters(prompt.Parameter{Name: "a", Type: "array"}),
			`{` + object + `{"a":{"items":{},"type":"array"}},"type":"object"}`,
		},
		"required": {
			"required parameters keep their order",
			parameters(prompt.Parameter{Name: "z", Required: true}, prompt.Parameter{Name: "o"},
				prompt.Parameter{Name: "a", Required: true}),
			`{` + object + `{"a":{"type":"string"},"o":{"type":"string"},"z":{"type":"string"}},"required":["z","a"],"type":"object"}`,
		},
		"texts": {"texts are unchanged", parameters(prompt.Parameter{Name: "n", Type: "number", Description: "How <much>.", Default: raw(
			`1.0`)}), `{` + object + `{"n":{"default":1.0,"description":"How \u003cmuch\u003e.","type":"number"}},"type":"object"}`},
		"null": {
			"null is no default", parameters(prompt.Parameter{Name: "o", Type: "object", Default: raw("null")}),
			`{` + object + `{"o":{"type":"object"}},"type":"object"}`,
		},
		"spaced": {"white space around null does not matter", parameters(prompt.Parameter{
			Name: "o", Type: "object",
			Default: raw(" null\n"),
		}), `{` + object + `{"o":{"type":"object"}},"type":"object"}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.tool.JSONSchema()
			if diff := cmp.Diff(tc.want, string(got)); diff != "" || err != nil {
				t.Errorf("JSONSchema (error %v): %s: -want +got:\n%s", err, tc.reason, diff)
			}
			// A resumed Turn has its tools from the journal, and the endpoint must get the same schema.
			data, err := json.Marshal(tc.tool)
			if err != nil {
				t.Fatal(err)
			}
			var back prompt.Tool
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			again, err := back.JSONSchema()
			if diff := cmp.Diff(string(got), string(again)); diff != "" || err != nil {
				t.Errorf("JSONSchema after a round trip through JSON (error %v): -first +second:\n%s", err, diff)
			}
		})
	}
}

func TestJSONSchemaOfABrokenDefault(t *testing.T) {
	if got, err := parameters(prompt.Parameter{Name: "o", Default: raw("{")}).JSONSchema(); err == nil {
		t.Errorf("JSONSchema = %s, want an error", got)
	}
}
