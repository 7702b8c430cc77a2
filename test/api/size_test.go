package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// maxObjectBytes is the maximum size of a whole object in the API contract.
const maxObjectBytes = 256 << 10

// byteLimits has the fields of a status with a limit in bytes of JSON, whatever their characters. These are fields that
// are cut to this size when they are written, and names and decimals that are ASCII.
var byteLimits = map[string]int{
	"result.text":                      32 << 10,
	"result.data":                      32 << 10,
	"result.citations":                 16 << 10,
	"toolCalls":                        16 << 10,
	"pendingApprovals[].argumentsHash": 64,
	"pendingApprovals[].schemaHash":    64,
	"pendingApprovals[].requestID":     64,
	"pendingApprovals[].toolServerUID": 64,
	"pendingApprovals[].callID":        128,
	"awaitedTurns[]":                   253,
	"decision.toolsUsed[]":             64,
	"prices[].provider":                253,
	"prices[].date":                    10,
	"traceID":                          32,
	"awaitedBudget.name":               253,
	"awaitedBudget.uid":                64,
	"policyViolations[].policy":        63,
	"redactions":                       4 << 10,
	"evaluations[].name":               63,
	"evaluations[].reason":             600,
	"evaluations[].model":              600,
	"evaluations[].usage.knownCost":    40,
	"usage.knownCost":                  40,
	"subAgentUsage.knownCost":          40,
	"preparation.toolServersMissing[]": 253,
}

// TestLargestTurn measures the largest Turn that the schema allows. The data that Capstan writes must fit into an
// object together with the spec. Three checks guarantee this:
//
//  1. The schema bounds the status, except for fields with a limit in bytes.
//  2. The code that writes these fields bounds their bytes. TestLargestStatus of package turnstatus measures this.
//  3. The bytes of the spec are checked when a Turn is reconciled.
func TestLargestTurn(t *testing.T) {
	t.Parallel()
	all, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, definition := range all {
		if definition.Spec.Names.Kind != "Turn" {
			continue
		}
		schema := schemaOf(definition)
		spec, status := schema.Properties["spec"], schema.Properties["status"]
		conditions := status.Properties["conditions"]
		withoutConditions := status.DeepCopy()
		delete(withoutConditions.Properties, "conditions")

		t.Logf("largest spec: %d bytes of 4-byte characters, %d bytes of escaped ones", largest(t, &spec, "\U0001F680"),
			largest(t, &spec, "\x01"))
		t.Logf("largest conditions: %d bytes of 4-byte characters", largest(t, &conditions, "\U0001F680"))
		t.Logf("largest status without conditions: %d bytes of 4-byte characters, %d bytes of escaped ones",
			largest(t, withoutConditions, "\U0001F680"), largest(t, withoutConditions, "\x01"))
		if size := largest(t, withoutConditions, "\U0001F680"); size > maxObjectBytes {
			t.Errorf("a status without its conditions may have %d bytes, want at most %d", size, maxObjectBytes)
		}
		return
	}
	t.Error("got no CRD of the kind Turn")
}

// largest returns the JSON size in bytes of the largest value that a schema allows, with text of only one
// character.
func largest(t *testing.T, s *apiextensionsv1.JSONSchemaProps, character string) int {
	t.Helper()
	text, err := json.Marshal(fill("", s, character))
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// fill returns the largest value that a schema allows at a path. If a string has a pattern, fill uses ASCII and
// otherwise ignores the pattern.
func fill(path string, s *apiextensionsv1.JSONSchemaProps, character string) any {
	switch {
	case byteLimits[path] > 0:
		return strings.Repeat("a", byteLimits[path])
	case path == "output.schema": // part of a spec, whose bytes are checked when the Turn is reconciled
		return nil
	case len(s.Enum) > 0:
		return longest(s.Enum)
	case s.Type == "object":
		object := make(map[string]any, len(s.Properties))
		for name, property := range s.Properties {
			object[name] = fill(strings.TrimPrefix(path+"."+name, "."), &property, character)
		}
		return object
	case s.Type == "array":
		list := make([]any, *s.MaxItems)
		for i := range list {
			list[i] = fill(path+"[]", s.Items.Schema, character)
		}
		return list
	case s.Type == "integer":
		return int64(1<<63 - 1)
	case s.Type == "boolean":
		return false
	case s.Format == "date-time":
		return "2026-01-01T00:00:00.000000Z"
	case s.Pattern != "":
		return strings.Repeat("a", int(*s.MaxLength)) // patterns allow only ASCII
	default:
		return strings.Repeat(character, int(*s.MaxLength))
	}
}

func longest(enum []apiextensionsv1.JSON) json.RawMessage {
	var found json.RawMessage
	for _, value := range enum {
		if len(value.Raw) > len(found) {
			found = value.Raw
		}
	}
	return found
}
