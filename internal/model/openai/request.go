package openai

import (
	"encoding/json"
	"slices"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// outputName is the name of the answer's schema, which the API requires.
const outputName = "answer"

// afterResults is a reply between results of calls and a message of the user. Mistral refuses such a message without
// it, also behind other servers: github.com/avante-corp/avante.nvim/issues/2562 and
// github.com/mistralai/mistral-common/issues/169.
const afterResults = "I have the results."

// roleDeveloper is the name of OpenAI's newer models for the role of system messages.
const roleDeveloper = "developer"

// chatRequest is the library's request with its own types of fields that may be empty. The library omits empty
// contents, empty arguments and a temperature of zero, but the API requires the first two.
type chatRequest struct {
	api.ChatCompletionRequest
	Messages    []chatMessage `json:"messages"`
	Temperature *float64      `json:"temperature,omitempty"`
	// ResponseFormat has a schema in the form of the dialect.
	ResponseFormat *responseFormat `json:"response_format,omitempty"`
	// RandomSeed and Thinking are parameters of some dialects.
	RandomSeed *int64          `json:"random_seed,omitempty"`
	Thinking   *thinkingSwitch `json:"thinking,omitempty"`
}

type responseFormat struct {
	Type       api.ChatCompletionResponseFormatType        `json:"type"`
	JSONSchema *api.ChatCompletionResponseFormatJSONSchema `json:"json_schema,omitempty"`
	Schema     json.RawMessage                             `json:"schema,omitempty"`
}

type chatMessage struct {
	Role string `json:"role"`
	// Name is that of a system message. The messages of a conversation have none: a later Turn of a Session must send
	// the same bytes again, so that the server finds them in its cache. In a tool's message, some servers refuse a
	// name.
	Name string `json:"name,omitempty"`
	// Content is a *string, or a []part if the message has images or files. It is null in an assistant's message that
	// has only tool calls, because some servers refuse an empty text.
	Content    any        `json:"content"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	// ReasoningContent and ReasoningDetails are data of the endpoint that it needs again.
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	ReasoningDetails json.RawMessage `json:"reasoning_details,omitempty"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     api.ToolType `json:"type"`
	Function chatFunction `json:"function"`
	// ExtraContent is data of the endpoint that it needs again.
	ExtraContent json.RawMessage `json:"extra_content,omitempty"`
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// bodyOf returns the body of a request. It returns the same bytes each time.
func bodyOf(req *model.Request, d *Dialect, c *endpoint.Contents) ([]byte, error) {
	if wrong := Check(req.Model, &req.Parameters, d); wrong != nil {
		return nil, endpoint.Unsendable("%s", wrong)
	}
	out := &chatRequest{
		ChatCompletionRequest: parametersOf(req, d), Messages: messagesOf(req.Messages, d, c), Temperature: req.Parameters.Temperature,
	}
	out.addParameters(&req.Parameters, d)
	for _, t := range req.Tools {
		if len(t.Parameters) > 0 && !json.Valid(t.Parameters) {
			return nil, endpoint.Unsendable("the parameters of tool %q are not JSON", t.Name)
		}
		out.Tools = append(out.Tools, toolOf(t, d.StrictSchemas))
	}
	if len(req.Output) > 0 {
		if !json.Valid(req.Output) {
			return nil, endpoint.Unsendable("the schema of the answer is not JSON")
		}
		out.ResponseFormat = formatOf(req.Output, d)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return endpoint.WithExtra(body, d.Extra, req.Parameters.Extra)
}

// formatOf returns a response format with a schema. If it is strict, the API accepts only a part of JSON Schema, and
// refuses requests with other schemas.
func formatOf(schema json.RawMessage, d *Dialect) *responseFormat {
	if d.SchemasOfObjects {
		return &responseFormat{Type: api.ChatCompletionResponseFormatTypeJSONObject, Schema: schema}
	}
	return &responseFormat{
		Type:       api.ChatCompletionResponseFormatTypeJSONSchema,
		JSONSchema: &api.ChatCompletionResponseFormatJSONSchema{Name: outputName, Schema: schema, Strict: d.StrictSchemas},
	}
}

func parametersOf(req *model.Request, d *Dialect) api.ChatCompletionRequest {
	out := api.ChatCompletionRequest{Model: req.Model, Stream: true}
	if !d.NoStreamOptions {
		out.StreamOptions = &api.StreamOptions{IncludeUsage: true}
	}
	if n := req.Parameters.MaxOutputTokens; n != nil && d.UseMaxTokens {
		out.MaxTokens = *n //nolint:staticcheck // because many servers know only the older name
	} else if n != nil {
		out.MaxCompletionTokens = *n
	}
	if d.ParallelCalls != nil && len(req.Tools) > 0 { // without tools the API refuses the parameter
		out.ParallelToolCalls = *d.ParallelCalls
	}
	return out
}

func toolOf(t model.Tool, strict bool) api.Tool {
	parameters := t.Parameters
	if len(parameters) == 0 {
		parameters = json.RawMessage(`{"type":"object","properties":{}}`) // the API refuses null
	}
	return api.Tool{Type: api.ToolTypeFunction, Function: &api.FunctionDefinition{
		Name: t.Name, Description: t.Description, Parameters: parameters, Strict: strict,
	}}
}

func messagesOf(messages []model.Message, d *Dialect, c *endpoint.Contents) []chatMessage {
	messages = place(messages, d.System)
	out := make([]chatMessage, 0, len(messages))
	user := -1
	for i, m := range messages {
		if m.Role == model.RoleUser {
			user = i
		}
	}
	for i, m := range messages {
		sent := chatMessage{Role: string(m.Role), Content: contentOf(&m, c)}
		if m.Role == model.RoleSystem && !d.NoNames {
			sent.Name = m.Name
		}
		switch {
		case m.Role == model.RoleTool:
			// Send it even without content, because the API requires an answer to each call.
			sent.ToolCallID = endpoint.CallID(m.ToolCallID, d.CallIDs)
		case len(m.ToolCalls) > 0:
			sent.ToolCalls = callsOf(m.ToolCalls, d.CallIDs)
			if m.Content == "" {
				sent.Content = nil
			}
			d.addReturned(&sent, &m, i > user)
		case m.Content == "" && len(m.Attachments) == 0:
			continue // a profile may have an empty prompt, but the API refuses a message without content
		case m.Role == model.RoleUser && d.System != SystemInPlace && len(out) > 0 && out[len(out)-1].Role == api.ChatMessageRoleTool:
			text := afterResults
			out = append(out, chatMessage{Role: api.ChatMessageRoleAssistant, Content: &text})
		case m.Role == model.RoleSystem && d.DeveloperRole:
			sent.Role = roleDeveloper
		}
		out = append(out, sent)
	}
	return out
}

// place returns the messages with system messages only where they are allowed. Those that are not are merged into one,
// behind the first ones that are. But if a last one follows a message of the assistant, it is sent as the user's: many
// servers continue the last message if it is the assistant's, or refuse it.
func place(messages []model.Message, where SystemPlace) []model.Message {
	if where == SystemInPlace {
		return messages
	}
	notes := len(messages) // the system messages at the end
	for notes > 0 && messages[notes-1].Role == model.RoleSystem {
		notes--
	}
	kept := make([]model.Message, 0, len(messages)+1)
	var merged []string
	first := 0 // where the merged message belongs
	replied := false
	for i, m := range messages {
		replied = replied || m.Role == model.RoleAssistant || m.Role == model.RoleTool
		switch {
		case m.Role != model.RoleSystem, where == SystemBeforeReplies && !replied:
			if m.Role == model.RoleSystem && len(kept) == first {
				first++
			}
		case i >= notes && notes > 0 && messages[notes-1].Role == model.RoleAssistant:
			m.Role = model.RoleUser
		default:
			if m.Content != "" {
				merged = append(merged, m.Content)
			}
			continue
		}
		kept = append(kept, m)
	}
	if len(merged) == 0 {
		return kept
	}
	return slices.Insert(kept, first, model.Message{Role: model.RoleSystem, Content: strings.Join(merged, "\n\n")})
}

func callsOf(calls []model.ToolCall, form endpoint.CallIDForm) []chatCall {
	out := make([]chatCall, 0, len(calls))
	for _, c := range calls {
		out = append(out, chatCall{
			ID: endpoint.CallID(c.ID, form), Type: api.ToolTypeFunction,
			Function: chatFunction{Name: endpoint.ToolName(c.Name), Arguments: c.Arguments},
		})
	}
	return out
}
