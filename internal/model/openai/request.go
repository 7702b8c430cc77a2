package openai

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Bounds of the API for parts of an earlier reply that a request repeats.
const (
	maxCallID   = 40
	maxToolName = 64
)

// outputName is the name of the answer's schema, which the API requires.
const outputName = "answer"

// requestID is the header with Request.ID. OpenAI writes it into its logs.
const requestID = "X-Client-Request-Id"

// chatRequest is the library's request with its own types of fields that may be empty. The library omits empty
// contents, empty arguments and a temperature of zero, but the API requires the first two.
type chatRequest struct {
	api.ChatCompletionRequest
	Messages    []chatMessage `json:"messages"`
	Temperature *float64      `json:"temperature,omitempty"`
}

type chatMessage struct {
	Role string `json:"role"`
	// Name is not part of a tool's message, and some servers refuse it there.
	Name string `json:"name,omitempty"`
	// Content is null in an assistant's message that has only tool calls, because some servers refuse an empty
	// text.
	Content    *string    `json:"content"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     api.ToolType `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// payload holds the body and the ID of a request.
type payload struct {
	id string
	// body is nil once it is being sent, because an answer may take long and the memory is not needed meanwhile. If
	// a connection was already closed when the request was sent, again makes the body anew.
	body  []byte
	again func() ([]byte, error)
}

// apply sets the body and the ID of a request.
func (s *payload) apply(out *http.Request) {
	out.ContentLength = int64(len(s.body))
	out.GetBody = func() (io.ReadCloser, error) {
		body, err := s.again()
		return &content{rest: body}, err
	}
	out.Body, s.body = &content{rest: s.body}, nil
	if s.id != "" {
		out.Header.Set(requestID, s.id)
	}
}

// content is the body of a request. It drops the body once all of it was read.
type content struct{ rest []byte }

// Read returns the next bytes.
func (c *content) Read(p []byte) (int, error) {
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
		return n, io.EOF
	}
	return n, nil
}

// Close does nothing. It may be called during Read.
func (c *content) Close() error { return nil }

// encode returns the data that is sent for a request.
func encode(ctx context.Context, req *model.Request) (*payload, error) {
	bytes := 0
	for i := range req.Messages {
		bytes += len(req.Messages[i].Content)
	}
	defer fairgate.AcquireProcessor(ctx, bytes)()
	body, err := bodyOf(req)
	if err != nil {
		return nil, err
	}
	return &payload{id: req.ID, body: body, again: func() ([]byte, error) { return bodyOf(req) }}, nil
}

// bodyOf returns the body of a request. It returns the same bytes each time.
func bodyOf(req *model.Request) ([]byte, error) {
	out := &chatRequest{
		ChatCompletionRequest: parametersOf(req), Messages: messagesOf(req.Messages), Temperature: req.Parameters.Temperature,
	}
	for _, t := range req.Tools {
		if len(t.Parameters) > 0 && !json.Valid(t.Parameters) {
			return nil, unsendable("the parameters of tool %q are not JSON", t.Name)
		}
		out.Tools = append(out.Tools, toolOf(t))
	}
	if len(req.Output) > 0 {
		if !json.Valid(req.Output) {
			return nil, unsendable("the schema of the answer is not JSON")
		}
		out.ResponseFormat = formatOf(req.Output)
	}
	return json.Marshal(out)
}

// unsendable returns the failure of a request that no endpoint could read.
func unsendable(format string, args ...any) *model.Error {
	return &model.Error{Kind: model.InvalidRequest, Unsent: true, Message: "the request cannot be sent: " + fmt.Sprintf(format, args...)}
}

// formatOf returns a response format with a schema. It is not strict, because the API then accepts only a part of
// JSON Schema and refuses requests with other schemas.
func formatOf(schema json.RawMessage) *api.ChatCompletionResponseFormat {
	return &api.ChatCompletionResponseFormat{
		Type:       api.ChatCompletionResponseFormatTypeJSONSchema,
		JSONSchema: &api.ChatCompletionResponseFormatJSONSchema{Name: outputName, Schema: schema},
	}
}

func parametersOf(req *model.Request) api.ChatCompletionRequest {
	out := api.ChatCompletionRequest{Model: req.Model, Stream: true, StreamOptions: &api.StreamOptions{IncludeUsage: true}}
	if n := req.Parameters.MaxOutputTokens; n != nil {
		out.MaxCompletionTokens = *n
	}
	out.ReasoningEffort = req.Parameters.Effort
	return out
}

func toolOf(t model.Tool) api.Tool {
	parameters := t.Parameters
	if len(parameters) == 0 {
		parameters = json.RawMessage(`{"type":"object","properties":{}}`) // the API refuses null
	}
	return api.Tool{Type: api.ToolTypeFunction, Function: &api.FunctionDefinition{
		Name: t.Name, Description: t.Description, Parameters: parameters,
	}}
}

func messagesOf(messages []model.Message) []chatMessage {
	out := make([]chatMessage, 0, len(messages))
	for _, m := range messages {
		switch {
		case m.Role == model.RoleTool:
			// Send it even without content, because the API requires an answer to each call.
			out = append(out, chatMessage{Role: string(m.Role), Content: &m.Content, ToolCallID: callID(m.ToolCallID)})
		case len(m.ToolCalls) > 0:
			sent := chatMessage{Role: string(m.Role), Name: m.Name, ToolCalls: callsOf(m.ToolCalls)}
			if m.Content != "" {
				sent.Content = &m.Content
			}
			out = append(out, sent)
		case m.Content != "":
			out = append(out, chatMessage{Role: string(m.Role), Name: m.Name, Content: &m.Content})
		default:
			// A profile may have an empty prompt, but the API refuses a message without content.
		}
	}
	return out
}

func callsOf(calls []model.ToolCall) []chatCall {
	out := make([]chatCall, 0, len(calls))
	for _, c := range calls {
		out = append(out, chatCall{
			ID: callID(c.ID), Type: api.ToolTypeFunction, Function: chatFunction{Name: toolName(c.Name), Arguments: c.Arguments},
		})
	}
	return out
}

// shortened is the beginning of an ID that callID made from a longer one. 32 hexadecimal digits follow.
const shortened = "call_"

// callID shortens the ID of a call to the length that the API accepts. The same ID always gives the same result,
// and different IDs give different results. So callID also replaces an ID that looks like its own results.
func callID(id string) string {
	if len(id) <= maxCallID && !isShortened(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return shortened + hex.EncodeToString(sum[:16])
}

// isShortened reports whether an ID looks like a result of callID.
func isShortened(id string) bool {
	digits, ok := strings.CutPrefix(id, shortened)
	_, err := hex.DecodeString(digits)
	return ok && err == nil && len(digits) == 32
}

// toolName makes the name of a call valid for the API, which refuses the whole request if a model made up an
// invalid name.
func toolName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), maxToolName)]
}
