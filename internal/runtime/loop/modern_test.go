package loop_test

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// TestEndpointReceivesAModernSchema checks that an endpoint receives the schema of the answer without the forms of
// older drafts, as it does the schemas of tools, and that the answer is checked against the schema in its own draft.
func TestEndpointReceivesAModernSchema(t *testing.T) {
	const (
		older = `{"$schema":"http://json-schema.org/draft-07/schema#","type":"array","items":[{"type":"string"}],"additionalItems":false}`
		want  = `{"items":false,"prefixItems":[{"type":"string"}],"type":"array"}`
	)
	output, err := schema.Compile(json.RawMessage(older))
	if err != nil {
		t.Fatal(err)
	}
	c, s := candidate("one", 1, says(`["Oslo","Bergen"]`), says(`["Oslo"]`))
	c.StructuredOutput = true
	in := input(t, c)
	in.Output = output
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.Answered || len(s.requests) != 2 {
		t.Fatalf("Run = %+v, %v after %d requests, want the second answer to fit", end, err, len(s.requests))
	}
	for i, r := range s.requests {
		if string(r.Output) != want {
			t.Errorf("request %d has the schema %s, want %s: endpoints refuse lists in items", i+1, r.Output, want)
		}
	}
}
