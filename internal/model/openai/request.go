package openai

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Bounds of the API on what a request repeats of an earlier reply.
const (
	maxCallID   = 40
	maxToolName = 64
)

// outputName is the name of the answer's schema, which the API demands.
const outputName = "answer"

// requestID is the header that carries Request.ID; OpenAI writes it into its logs.
const requestID = "X-Client-Request-Id"

// chatRequest is the library's request with messages of our own: the library leaves empty contents and empty arguments
// out, and the API demands both.
type chatRequest struct {
	api.ChatCompletionRequest
	Messages []chatMessage `json:"messages"`
}

type chatMessage struct {
	Role string `json:"role"`
	// Name is not part of a tool's message, and some servers refuse it there.
	Name string `json:"name,omitempty"`
	// Content is null for an assistant's message that has tool calls alone: some servers refuse an empty text.
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

// sending is what the transport sends in place of what the library wrote.
type sending struct {
	id string
	// body is nil once it is being sent, and again makes it anew for a connection that had closed before it took anything: an
	// answer may be long in coming, and what was sent need not wait for it.
	body  []byte
	again func() ([]byte, error)
}

// apply puts the body and the id into a request.
func (s *sending) apply(out *http.Request) {
	if out.Body != nil {
		_ = out.Body.Close() // nothing of it is sent
	}
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

// content is the body of a request. What was read of it to the end is let go of.
type content struct{ rest []byte }

// Read hands on what is left.
func (c *content) Read(p []byte) (int, error) {
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
		return n, io.EOF
	}
	return n, nil
}

// Close does nothing; it may be called while Read is.
func (c *content) Close() error { return nil }

// someTools stand for those of a request where it matters only that there are any.
var someTools = []api.Tool{{Type: api.ToolTypeFunction}}

// judged is a request without its messages and its tools, by which the library judges whether the model takes its parameters.
func judged(req *model.Request) api.ChatCompletionRequest {
	out := parametersOf(req)
	if len(req.Tools) > 0 {
		out.Tools = someTools
	}
	return out
}

// encode returns what is sent for a request.
func encode(ctx context.Context, req *model.Request) (*sending, error) {
	bytes := 0
	for i := range req.Messages {
		bytes += len(req.Messages[i].Content)
	}
	defer fairgate.Large(ctx, bytes)()
	body, err := bodyOf(req)
	if err != nil {
		return nil, err
	}
	return &sending{id: req.ID, body: body, again: func() ([]byte, error) { return bodyOf(req) }}, nil
}

// bodyOf is what is sent for a request: the same whenever it is made.
func bodyOf(req *model.Request) ([]byte, error) {
	out := &chatRequest{ChatCompletionRequest: parametersOf(req), Messages: messagesOf(req.Messages)}
	for _, t := range req.Tools {
		if len(t.Parameters) > 0 && !json.Valid(t.Parameters) {
			return nil, unsent("the parameters of tool %q are not JSON", t.Name)
		}
		out.Tools = append(out.Tools, toolOf(t))
	}
	if len(req.Output) > 0 {
		if !json.Valid(req.Output) {
			return nil, unsent("the schema of the answer is not JSON")
		}
		out.ResponseFormat = formatOf(req.Output)
	}
	return json.Marshal(out)
}

// unsent is the failure of a request that no endpoint would understand.
func unsent(format string, args ...any) *model.Error {
	return &model.Error{Kind: model.InvalidRequest, Unsent: true, Message: "the request cannot be sent: " + fmt.Sprintf(format, args...)}
}

// formatOf asks for an answer that keeps to a schema. It is not strict: the API takes only a part of JSON Schema then, and refuses
// the request for any other.
func formatOf(schema json.RawMessage) *api.ChatCompletionResponseFormat {
	return &api.ChatCompletionResponseFormat{
		Type:       api.ChatCompletionResponseFormatTypeJSONSchema,
		JSONSchema: &api.ChatCompletionResponseFormatJSONSchema{Name: outputName, Schema: schema},
	}
}

func parametersOf(req *model.Request) api.ChatCompletionRequest {
	out := api.ChatCompletionRequest{Model: req.Model, Stream: true, StreamOptions: &api.StreamOptions{IncludeUsage: true}}
	if t := req.Parameters.Temperature; t != nil {
		// The library leaves a zero out of the request; its documentation asks for the smallest number instead.
		out.Temperature = max(float32(*t), math.SmallestNonzeroFloat32)
	}
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
			// Sent without content too: the API wants an answer to each call.
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
			// A profile may ask for an empty prompt; the API refuses a message without content.
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

// shortened begins an ID that callID made of a longer one. 32 hexadecimal digits follow.
const shortened = "call_"

// callID makes the ID of a call as short as the API takes it: the same ID always to the same, and no two to one. So it also
// replaces an ID that looks like one of its own.
func callID(id string) string {
	if len(id) <= maxCallID && !isShortened(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return shortened + hex.EncodeToString(sum[:16])
}

// isShortened reports whether an ID looks like one that callID has made.
func isShortened(id string) bool {
	digits, ok := strings.CutPrefix(id, shortened)
	_, err := hex.DecodeString(digits)
	return ok && err == nil && len(digits) == 32
}

// toolName makes the name of a call fit for the API, which refuses the whole request for a name that a model made up.
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
