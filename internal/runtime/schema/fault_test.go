package schema_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// TestSummaryQuotesNothing checks that the summary of a fault has the kind and the place of the fault, and no text of
// the schema.
func TestSummaryQuotesNothing(t *testing.T) {
	for name, tc := range map[string]struct{ source, want string }{
		"not JSON":        {`EVIL`, "it is not JSON"},
		"type":            {`{"properties":{"EVIL":{"type":"EVIL"}}}`, "it is not a valid JSON Schema, at /properties/*/type"},
		"several":         {`{"type":"EVIL","allOf":[{"minLength":"EVIL"}]}`, "it is not a valid JSON Schema, at /allOf/0/minLength"},
		"pattern":         {`{"properties":{"type":{"pattern":"(EVIL"}}}`, "a pattern is invalid or too large, at /properties/*/pattern"},
		"name by pattern": {`{"patternProperties":{"(EVIL":true}}`, "it is not a valid JSON Schema, at /patternProperties"},
		"older draft": {
			`{"$schema":"http://json-schema.org/draft-04/schema#","patternProperties":{"(EVIL":{}}}`,
			"a pattern is invalid or too large, at /patternProperties",
		},
		"document":  {`{"$ref":"https://EVIL.example/s.json"}`, "references to other documents are not followed"},
		"draft":     {`{"$schema":"https://EVIL.example/s.json"}`, "references to other documents are not followed"},
		"reference": {`{"$ref":"#/EVIL"}`, "a reference leads to no part of it"},
		"anchor":    {`{"$ref":"#EVIL"}`, "a reference leads to no part of it"},
		"twice":     {`{"EVIL":{"EVIL":1,"EVIL":2}}`, "a part of it appears twice in its object, at /*/*"},
		"number": {
			`{"properties":{"EVIL/1":{"const":1e999}}}`,
			"a part of it is a number that is too large, too small or too long, at /properties/*/const",
		},
		"too many parts": {`{"EVIL":[` + strings.Repeat("true,", 5001) + `1]}`, "it has too many parts"},
		"id":             {`{"$id":"::EVIL"}`, "it is not a valid JSON Schema"},
		"long": {
			strings.Repeat(`{"allOf":[`, 30) + `{"type":"EVIL"}` + strings.Repeat("]}", 30),
			"it is not a valid JSON Schema, at /allOf/0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := schema.Compile(json.RawMessage(tc.source))
			fault, ok := errors.AsType[*schema.Fault](err)
			if !ok {
				t.Fatalf("Compile: %v, want a fault", err)
			}
			got := fault.Summary()
			if !strings.HasPrefix(got, "the schema cannot be used: "+tc.want) || name != "long" && !strings.HasSuffix(got, tc.want) {
				t.Errorf("Summary = %q, want %q", got, tc.want)
			}
			if strings.Contains(got, "EVIL") || len(got) > 256 {
				t.Errorf("Summary = %q, want at most 256 bytes without text of the schema", got)
			}
			if !strings.HasPrefix(err.Error(), "the schema ") {
				t.Errorf("error %q, want one about the schema", err)
			}
		})
	}
}
