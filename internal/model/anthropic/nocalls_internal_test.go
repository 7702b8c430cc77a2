package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestToolsThatMustNotBeCalled checks that Anthropic receives tools that must not be called, as in earlier requests,
// with a tool choice that forbids calls. Other servers receive declarations of the tools that were called.
func TestToolsThatMustNotBeCalled(t *testing.T) {
	const (
		whole    = `"tools":[{"name":"find","description":"Finds.","input_schema":{"type":"object"}`
		declared = `"tools":[{"name":"find","input_schema":{"type":"object"}`
		answer   = `"tool_choice":{"type":"tool","name":"` + answerTool + `"}`
		none     = `"tool_choice":{"type":"none"}`
	)
	for name, tc := range map[string]struct {
		url, output   string
		tools, choice string
	}{
		"Anthropic":           {"https://api.anthropic.com/v1", "", whole, none},
		"Anthropic, a schema": {"https://api.anthropic.com/v1", `{"type":"object"}`, whole, answer},
		"another server":      {"https://llm.internal/v1", "", declared, none},
		"and a schema":        {"https://llm.internal/v1", `{"type":"object"}`, declared, answer},
	} {
		t.Run(name, func(t *testing.T) {
			req := &model.Request{
				Model: "m", NoCalls: true, Tools: []model.Tool{{Name: "find", Description: "Finds."}}, Output: json.RawMessage(tc.output),
				Messages: []model.Message{
					{Role: model.RoleUser, Content: "a"},
					{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: "c", Name: "find", Arguments: "{}"}}},
					{Role: model.RoleTool, ToolCallID: "c", Content: "b"},
				},
			}
			body, err := protocolOf(&Config{Config: endpoint.Config{BaseURL: tc.url}}).Body(req, new(endpoint.Contents))
			if err != nil || !strings.Contains(string(body), tc.tools) || !strings.Contains(string(body), tc.choice) {
				t.Errorf("Body = %s, %v; want %s and %s", body, err, tc.tools, tc.choice)
			}
			if n := strings.Count(string(body), `"cache_control"`); n != 1 {
				t.Errorf("the body has %d markers for the cache, want only that of the tools: no request follows", n)
			}
		})
	}
}
