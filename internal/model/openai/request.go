package openai

import (
	"encoding/json"
	"slices"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// outputName is the name of the answer's schema, which the API requires.
const outputName = "answer"

// afterResults is a reply that is inserted between the results of calls and a message of the user. Without it, Mistral
// refuses the request, also behind other servers: github.com/avante-corp/avante.nvim/issues/2562 and
// github.com/mistralai/mistral-common/issues/169.
const afterResults = "I have the results."

// toolChoiceNone forbids calls.
const toolChoiceNone = "none"

// roleDeveloper is the role of system messages for OpenAI's newer models.
const roleDeveloper = "developer"

// chatRequest replaces fields of the library's request. The library omits empty contents and empty arguments, which the
// API requires, and a temperature of zero.
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
	// Name is the name of a system message. The messages of a conversation have no name: a later Turn of a Session must
	// send the same bytes again, so that the server finds them in its cache. Some servers refuse a name in the message
	// of a tool.
	Name string `json:"name,omitempty"`
	// Content is a *string, or a []part if the message has images or files. It is null in an assistant's message that
	// has only tool calls, because some servers refuse an empty text.
	Content    any        `json:"content"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	// ReasoningContent and ReasoningDetails are data that the endpoint sent and needs again.
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	ReasoningDetails json.RawMessage `json:"reasoning_details,omitempty"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     api.ToolType `json:"type"`
	Function chatFunction `json:"function"`
	// ExtraContent is data that the endpoint sent and needs again.
	ExtraContent json.RawMessage `json:"extra_content,omitempty"`
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// bodyOf returns the body of a request. The same request always gives the same bytes.
func bodyOf(req *model.Request, d *Dialect, c *endpoint.Contents) ([]byte, error) {
	if unsupported := Check(req.Model, &req.Parameters, d); unsupported != nil {
		return nil, endpoint.Unsendable("%s", unsupported)
	}
	out := &chatRequest{
		ChatCompletionRequest: parametersOf(req, d), Messages: messagesOf(req.Messages, d, c), Temperature: req.Parameters.Temperature,
	}
	out.addParameters(&req.Parameters, d)
	tools := req.Offered()
	if d.ForbidsCalls && len(tools) < len(req.Tools) {
		tools, out.ToolChoice = req.Tools, toolChoiceNone
	}
	for _, t := range tools {
		if len(t.Parameters) > 0 && !json.Valid(t.Parameters) {
			return nil, endpoint.Unsendable("the parameters of tool %q are not JSON", t.Name)
		}
		t.Parameters = d.schemaOf(t.Parameters)
		out.Tools = append(out.Tools, toolOf(t, d.StrictSchemas))
	}
	hasSchema := len(req.Output) > 0
	mayHaveTools := !hasSchema || !d.SchemasExcludeTools
	if d.NeedsTool && len(tools) == 0 && hasCalls(req.Messages) && mayHaveTools {
		out.Tools = []api.Tool{toolOf(noTool, false)}
	}
	if hasSchema {
		if !json.Valid(req.Output) {
			return nil, endpoint.Unsendable("the schema of the answer is not JSON")
		}
		out.ResponseFormat = formatOf(d.schemaOf(req.Output), d)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return endpoint.WithExtra(body, d.Extra, req.Parameters.Extra)
}

// schemaOf returns a schema in the form of the dialect.
func (d *Dialect) schemaOf(source json.RawMessage) json.RawMessage {
	if d.InlineSchemas {
		return schema.Inline(source)
	}
	return source
}

// formatOf returns a response format with a schema. If the format is strict, the API accepts only a part of JSON
// Schema, and refuses requests with other schemas.
func formatOf(schema json.RawMessage, d *Dialect) *responseFormat {
	if d.SchemaInJSONObject {
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
	if d.UseMaxTokens {
		out.MaxTokens = req.MaxOutput() //nolint:staticcheck // because many servers support only the older name
	} else {
		out.MaxCompletionTokens = req.MaxOutput()
	}
	if d.ParallelCalls != nil && len(req.Offered()) > 0 { // without tools the API refuses the parameter
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

// noTool is the tool of a request without tools whose messages have calls. LiteLLM refuses the tool_choice none for
// Bedrock, so the description must keep the model from calling the tool: github.com/anomalyco/opencode/pull/18539.
var noTool = model.Tool{Name: "no_more_tools", Description: "Never call this tool. It does nothing. Answer with text."}

// hasCalls reports whether a message has calls.
func hasCalls(messages []model.Message) bool {
	return slices.ContainsFunc(messages, func(m model.Message) bool { return len(m.ToolCalls) > 0 })
}

func messagesOf(messages []model.Message, d *Dialect, c *endpoint.Contents) []chatMessage {
	messages = placeSystemMessages(messages, d.System)
	out := make([]chatMessage, 0, len(messages))
	lastUser := -1
	ids := callIDs{form: d.CallIDs, thoughts: map[string]string{}}
	for i, m := range messages {
		if m.Role == model.RoleUser {
			lastUser = i
		}
	}
	for i, m := range messages {
		if m.Role == model.RoleAssistant && strings.TrimSpace(m.Content) == "" {
			m.Content = "" // gateways to Claude refuse a blank text: github.com/anomalyco/opencode/issues/31259
		}
		sent := chatMessage{Role: string(m.Role), Content: contentOf(&m, c)}
		if m.Role == model.RoleSystem && !d.NoNames {
			sent.Name = m.Name
		}
		switch {
		case m.Role == model.RoleTool:
			// Send the result even without content, because the API requires a result of each call.
			sent.ToolCallID = ids.sent(m.ToolCallID)
		case len(m.ToolCalls) > 0:
			sent.ToolCalls = ids.callsOf(m.ToolCalls)
			if m.Content == "" {
				sent.Content = nil
			}
			d.addReturned(&sent, &m, i > lastUser)
		case m.Content == "" && len(m.Attachments) == 0:
			continue // a profile may have an empty prompt, but the API refuses a message without content
		case m.Role == model.RoleSystem && d.DeveloperRole:
			sent.Role = roleDeveloper
		}
		out = d.appendMessage(out, sent)
	}
	return out
}

// appendMessage appends a message. If the dialect restricts system messages, the models behind it have chat templates.
// Many templates refuse two messages of the user in a row, so these become one message:
// github.com/vllm-project/vllm/issues/6862, github.com/charmbracelet/crush/issues/279 and
// github.com/anomalyco/opencode/issues/5034.
func (d *Dialect) appendMessage(out []chatMessage, m chatMessage) []chatMessage {
	if d.System == SystemInPlace || m.Role != api.ChatMessageRoleUser || len(out) == 0 {
		return append(out, m)
	}
	switch last := &out[len(out)-1]; last.Role {
	case api.ChatMessageRoleUser:
		last.Content = joinContents(last.Content, m.Content)
		return out
	case api.ChatMessageRoleTool:
		text := afterResults
		out = append(out, chatMessage{Role: api.ChatMessageRoleAssistant, Content: &text})
	}
	return append(out, m)
}

// placeSystemMessages returns the messages with system messages only where they are allowed. It merges the other system
// messages into one, after the allowed ones at the front. But if the system messages at the end follow a message of the
// assistant, they become messages of the user: many servers continue a last message of the assistant, or refuse it.
func placeSystemMessages(messages []model.Message, where SystemPlace) []model.Message {
	if where == SystemInPlace {
		return messages
	}
	tail := len(messages) // the index of the first of the system messages at the end
	for tail > 0 && messages[tail-1].Role == model.RoleSystem {
		tail--
	}
	kept := make([]model.Message, 0, len(messages)+1)
	var merged []string
	front := 0 // the number of allowed system messages at the front
	replied := false
	for i, m := range messages {
		replied = replied || m.Role == model.RoleAssistant || m.Role == model.RoleTool
		switch {
		case m.Role != model.RoleSystem, where == SystemBeforeReplies && !replied:
			if m.Role == model.RoleSystem && len(kept) == front {
				front++
			}
		case i >= tail && tail > 0 && messages[tail-1].Role == model.RoleAssistant:
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
	return slices.Insert(kept, front, model.Message{Role: model.RoleSystem, Content: strings.Join(merged, "\n\n")})
}

// callIDs returns the IDs of calls as they are sent.
type callIDs struct {
	form endpoint.CallIDForm
	// thoughts are the ends of the IDs of calls so far: see splitThought.
	thoughts map[string]string
}

// sent returns the ID of the newest call with an ID, in the form of the endpoint. Only CallIDsAny allows
// the end of an ID that splitThought has split off.
func (c *callIDs) sent(id string) string {
	out := endpoint.CallID(id, c.form)
	if c.form == endpoint.CallIDsAny {
		out += c.thoughts[id]
	}
	return out
}

func (c *callIDs) callsOf(calls []model.ToolCall) []chatCall {
	out := make([]chatCall, 0, len(calls))
	for i := range calls {
		call := &calls[i]
		c.thoughts[call.ID] = thoughtOf(call)
		out = append(out, chatCall{
			ID: c.sent(call.ID), Type: api.ToolTypeFunction,
			Function: chatFunction{Name: endpoint.ToolName(call.Name), Arguments: call.Arguments},
		})
	}
	return out
}
