package model_test

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestEncoding checks the JSON of messages and replies, which journals keep. Without tools, the JSON does not
// mention tools.
func TestEncoding(t *testing.T) {
	calls := []model.ToolCall{{ID: "a", Name: "count", Arguments: "{"}}
	for name, tc := range map[string]struct {
		value any
		want  string
	}{
		"message": {
			model.Message{Role: model.RoleUser, Name: "user_message", Content: "hi"},
			`{"role":"user","name":"user_message","content":"hi"}`,
		},
		"calls": {
			model.Message{Role: model.RoleAssistant, ToolCalls: calls},
			`{"role":"assistant","name":"","content":"","toolCalls":[{"id":"a","name":"count","arguments":"{"}]}`,
		},
		"result": {model.Message{Role: model.RoleTool, ToolCallID: "a"}, `{"role":"tool","name":"","content":"","toolCallID":"a"}`},
		"answer": {
			model.Reply{Text: "yes", FinishReason: model.FinishStop},
			`{"text":"yes","finishReason":"stop","usage":{"inputTokens":0,"outputTokens":0}}`,
		},
		"request": {
			model.Reply{ToolCalls: calls, FinishReason: model.FinishToolCalls},
			`{"text":"","toolCalls":[{"id":"a","name":"count","arguments":"{"}],` +
				`"finishReason":"tool_calls","usage":{"inputTokens":0,"outputTokens":0}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(tc.value)
			if err != nil || string(got) != tc.want {
				t.Errorf("encoded as %s (error %v), want %s", got, err, tc.want)
			}
		})
	}
}
