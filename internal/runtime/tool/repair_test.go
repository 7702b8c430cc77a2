package tool_test

import (
	"encoding/json"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestFlawedSchemas checks that a tool is offered although its schema has a flaw that common libraries make, and that
// the model receives the schema without it.
func TestFlawedSchemas(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, schema, want string }{
		"look-ahead": {
			"zod 4 writes this pattern for e-mail addresses",
			`{"type":"object","properties":{"to":{"type":"array","items":{"type":"string","format":"email",
				"pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}},
				"id":{"type":"string","pattern":"^[a-z]+$"}},"required":["to"]}`,
			`{"type":"object","properties":{"to":{"type":"array","items":{"type":"string","format":"email"}},
				"id":{"type":"string","pattern":"^[a-z]+$"}},"required":["to"]}`,
		},
		"look-ahead for names": {
			"the properties of the pattern must stay allowed",
			`{"type":"object","patternProperties":{"^(?!x)":{"type":"string"},"^y":{"type":"null"}},"additionalProperties":false,
				"unevaluatedProperties":false}`,
			`{"type":"object","properties":{},"patternProperties":{"^y":{"type":"null"}}}`,
		},
		"null": {
			"encoders write fields without a value",
			`{"type":"object","properties":{"a":{"type":"string","enum":null,"default":null},"b":{"const":null,"items":null}},
				"required":null,"additionalProperties":null,"$defs":{"c":{"description":null}}}`,
			`{"type":"object","properties":{"a":{"type":"string","default":null},"b":{"const":null}},"$defs":{"c":{}}}`,
		},
		"null at the top": {
			"a tool without parameters",
			`{"type":null,"properties":null}`,
			`{"type":"object","properties":{}}`,
		},
		"a property called required": {
			"the names of properties are no keywords",
			`{"type":"object","properties":{"required":{"type":"any"},"pattern":{"anyOf":[{"pattern":"(?=a)"},{"type":"null"}]}}}`,
			`{"type":"object","properties":{"required":{},"pattern":{"anyOf":[{},{"type":"null"}]}}}`,
		},
		"look-ahead in a negation": {
			"not and if would refuse more values without the pattern, and two schemas of oneOf would fit",
			`{"type":"object","properties":{"a":{"not":{"pattern":"(?=a)"}},
				"b":{"if":{"pattern":"(?=a)"},"then":{"maxLength":3},"else":{"maxLength":5}},
				"c":{"oneOf":[{"type":"string","pattern":"(?=a)"},{"type":"string","pattern":"^b"}]},
				"d":{"oneOf":[{"pattern":"(?=a)"},{"pattern":"^b"}],"anyOf":[{"type":"string"}]}}}`,
			`{"type":"object","properties":{"a":{},"b":{"then":{"maxLength":3},"else":{"maxLength":5}},
				"c":{"anyOf":[{"type":"string"},{"type":"string","pattern":"^b"}]},"d":{"anyOf":[{"type":"string"}]}}}`,
		},
		"tuple without a draft": {
			"older versions of libraries write this form",
			`{"type":"object","properties":{"at":{"type":"array","items":[{"type":"number"},{"pattern":"(?=a)"}],"minItems":2},
				"none":{"items":[]}}}`,
			`{"type":"object","properties":{"at":{"type":"array","prefixItems":[{"type":"number"},{}],"items":{},"minItems":2},
				"none":{"items":{}}}}`,
		},
		"tuples of draft 7": {
			"models' endpoints accept only the draft 2020-12",
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{
				"at":{"type":"array","items":[{"$ref":"#/definitions/n"},{"type":"array","items":[{"const":1}]}],"additionalItems":false},
				"items":{"type":"array","items":{"type":"string"}}},
				"definitions":{"n":{"type":"number","exclusiveMinimum":1.50}}}`,
			`{"type":"object","properties":{
				"at":{"type":"array","prefixItems":[{"$ref":"#/definitions/n"},{"type":"array","prefixItems":[{"const":1}],"items":{}}],
				"items":false},"items":{"type":"array","items":{"type":"string"}}},
				"definitions":{"n":{"type":"number","exclusiveMinimum":1.50}}}`,
		},
		"bounds of draft 4, named": {
			"models' endpoints accept only the draft 2020-12",
			`{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{"exclusiveMinimum":{"type":"integer",
				"minimum":0,"exclusiveMinimum":true}}}`,
			`{"type":"object","properties":{"exclusiveMinimum":{"type":"integer","exclusiveMinimum":0}}}`,
		},
		"an older draft without older forms": {
			"the schema stays as it is",
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"default":{"x":[1]}}}}`,
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"default":{"x":[1]}}}}`,
		},
		"bounds of draft 4": {
			"the schema does not name its draft",
			`{"type":"object","properties":{"a":{"minimum":0,"exclusiveMinimum":true,"maximum":9.50,"exclusiveMaximum":false}}}`,
			`{"type":"object","properties":{"a":{"exclusiveMinimum":0,"maximum":9.50}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flawed := withSchema(tc.schema)
			if err := tool.Unusable(t.Context(), flawed); err != nil {
				t.Fatalf("%s: Unusable: %v, want nil", tc.reason, err)
			}
			offers := []tool.Offer{{Tools: []tool.Tool{flawed}}}
			exposed := tool.NewExposure(t.Context(), offers, nil, tool.Selection{Most: 9})
			if len(exposed.Tools) != 1 {
				t.Fatalf("%s: %d tools are offered, want one", tc.reason, len(exposed.Tools))
			}
			shown, err := exposed.Tools[0].ShownSchema()
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := json.Unmarshal(shown, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestUnclearSchemaIsNotRepaired checks that a schema that parsers read differently stays unusable.
func TestUnclearSchemaIsNotRepaired(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`{"type":"object","properties":{"a":{"pattern":"(?=a)","pattern":"b"}}}`,
		`{"type":"object","required":null,"properties":{"a":{"type":"nothing"}}}`,
	} {
		if err := tool.Unusable(t.Context(), withSchema(schema)); err == nil {
			t.Errorf("Unusable(%s) is nil, want an error", schema)
		}
	}
}
