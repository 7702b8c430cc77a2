package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestSchemasWithReferences checks that Gemini receives no references, which it refuses, and that other endpoints
// receive schemas unchanged.
func TestSchemasWithReferences(t *testing.T) {
	const (
		source = `{"$defs":{"n":{"type":"integer"}},"type":"object","properties":{"z":{"$ref":"#/$defs/n"}},"required":["z","port"]}`
		inline = `{"type":"object","properties":{"z":{"type":"integer"}},"required":["z"]}`
	)
	for dialect, want := range map[string]string{"Gemini": inline, "OpenAI": source, openai.Generic: source} {
		t.Run(dialect, func(t *testing.T) {
			config := withDialect(openai.DialectOf(dialect, ""))
			req := request("hello")
			req.Tools = []model.Tool{{Name: "count", Parameters: json.RawMessage(source)}}
			got, _ := sentBody(t, req, "tools", config)
			if want := `[{"function":{"name":"count","parameters":` + want + `},"type":"function"}]`; got != want {
				t.Errorf("tools: sent %s, want %s", got, want)
			}
			req = request("hello")
			req.Output = json.RawMessage(source)
			got, _ = sentBody(t, req, "response_format", config)
			if want := `{"type":"json_schema","json_schema":{"name":"answer","schema":` + want + `,"strict":false}}`; got != want {
				t.Errorf("response_format: sent %s, want %s", got, want)
			}
		})
	}
}
