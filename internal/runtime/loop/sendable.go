package loop

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// noArguments stand in a request for the arguments of a call that no endpoint would read.
const noArguments = "{}"

// sendable returns a message as every endpoint takes it: the arguments of its calls are JSON objects. Strict endpoints refuse a
// whole request for other arguments, and with them every later request of the conversation. The journal keeps the reply as the model
// wrote it.
func sendable(m model.Message) model.Message {
	unfit := func(c model.ToolCall) bool { return sendableArguments(c.Arguments) != c.Arguments }
	if !slices.ContainsFunc(m.ToolCalls, unfit) {
		return m
	}
	m.ToolCalls = slices.Clone(m.ToolCalls)
	for i := range m.ToolCalls {
		m.ToolCalls[i].Arguments = sendableArguments(m.ToolCalls[i].Arguments)
	}
	return m
}

// sendableArguments returns arguments as every endpoint can read them: as they are, if they are a JSON object that all parsers read
// alike, and none otherwise.
func sendableArguments(text string) string {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") || len(schema.Plain(json.RawMessage(text))) > 0 {
		return noArguments
	}
	if !strings.Contains(strings.ToLower(text), `\ud`) {
		return text
	}
	whole, err := canonical.JSON(json.RawMessage(text)) // half a surrogate pair becomes U+FFFD: some parsers refuse it
	if err != nil {
		return noArguments
	}
	return string(whole)
}
