package openai_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestBlankReplies checks that blank texts of the assistant are not sent back: gateways to Claude refuse them.
func TestBlankReplies(t *testing.T) {
	var body string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body = string(data)
		respond(200, events(`{"choices":[{"index":0,"delta":{"content":"fine"},"finish_reason":"stop"}]}`), stream)(w, r)
	})
	req := request("hello")
	req.Messages = append(req.Messages,
		model.Message{Role: model.RoleAssistant, Content: "\n\n", ToolCalls: []model.ToolCall{{ID: "a", Name: "find", Arguments: "{}"}}},
		model.Message{Role: model.RoleTool, ToolCallID: "a", Content: "x"},
		model.Message{Role: model.RoleAssistant, Content: " "},
		model.Message{Role: model.RoleUser, Content: "Go on."})
	if _, err := generate(t.Context(), provider(t, url), req); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(body, `"content":"\n\n"`) || strings.Contains(body, `"content":" "`) {
		t.Errorf("sent a blank text: %s", body)
	}
	if n := strings.Count(body, `"role":"assistant"`); n != 1 || !strings.Contains(body, `"content":null`) {
		t.Errorf("sent %d messages of the assistant, not one without content: %s", n, body)
	}
}

// TestRefusedJSON checks that an answer that Groq itself has refused as no JSON is a malformed one.
func TestRefusedJSON(t *testing.T) {
	answer := `{"error":{"message":"Failed to validate JSON.","type":"invalid_request_error","code":"json_validate_failed"}}`
	if e := failure(t, provider(t, serve(t, respond(400, answer, jsonType)))); e.Kind != model.Malformed {
		t.Errorf("the kind is %s, not %s", e.Kind, model.Malformed)
	}
}
