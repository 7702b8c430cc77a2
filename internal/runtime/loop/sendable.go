package loop

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// noArguments replaces the arguments of a call in a request if an endpoint could not read them, and in the history if
// the result of the call was refused.
const noArguments = "{}"

// sendable returns a message that every endpoint accepts: the arguments of its calls are JSON objects. A strict
// endpoint refuses a whole request for other arguments, and would refuse every later request of the conversation
// too. The journal keeps the reply as the model wrote it.
func sendable(ctx context.Context, m model.Message) model.Message {
	unfit := func(c model.ToolCall) bool { return sendableArguments(ctx, c.Arguments) != c.Arguments }
	if !slices.ContainsFunc(m.ToolCalls, unfit) {
		return m
	}
	m.ToolCalls = slices.Clone(m.ToolCalls)
	for i := range m.ToolCalls {
		m.ToolCalls[i].Arguments = sendableArguments(ctx, m.ToolCalls[i].Arguments)
	}
	return m
}

// sendableArguments returns arguments that every endpoint can read. A JSON object that all parsers read alike stays
// unchanged; anything else becomes noArguments. With long arguments, it first waits until the namespace of ctx is next.
func sendableArguments(ctx context.Context, text string) string {
	defer fairgate.AcquireProcessor(ctx, len(text))()
	if !strings.HasPrefix(strings.TrimSpace(text), "{") || len(schema.Ambiguities(json.RawMessage(text))) > 0 {
		return noArguments
	}
	if !strings.Contains(strings.ToLower(text), `\ud`) {
		return text
	}
	whole, err := canonical.JSON(json.RawMessage(text)) // some parsers refuse half a surrogate pair, so it becomes U+FFFD
	if err != nil {
		return noArguments
	}
	return string(whole)
}
