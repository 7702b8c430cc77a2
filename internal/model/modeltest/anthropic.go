package modeltest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// Anthropic is a server for the Messages protocol of Anthropic. It refuses the same requests as the real server. The
// rules are from platform.claude.com (API reference, tool use, thinking, prompt caching) and from error messages.
type Anthropic struct {
	// Key is the only key that the server accepts.
	Key string
	// Reply returns the blocks of the answer to a request, and the reason why the model stopped. It is called for one
	// request at a time.
	Reply func(AnthropicRequest) (blocks []AnthropicBlock, stopReason string)

	mu       sync.Mutex
	requests []AnthropicRequest
	refused  []string
}

// AnthropicRequest is the body of a request.
type AnthropicRequest struct {
	// Body is the body as it was received.
	Body        []byte             `json:"-"`
	Model       string             `json:"model"`
	MaxTokens   int                `json:"max_tokens"`
	Stream      bool               `json:"stream"`
	System      []AnthropicBlock   `json:"system"`
	Messages    []AnthropicMessage `json:"messages"`
	Tools       []AnthropicTool    `json:"tools"`
	Temperature *float64           `json:"temperature"`
	TopK        *int               `json:"top_k"`
	TopP        *float64           `json:"top_p"`
	// Stop are the texts at which the answer ends.
	Stop        []string `json:"stop_sequences"`
	ServiceTier string   `json:"service_tier"`
	ToolChoice  *struct {
		Type            string `json:"type"`
		Name            string `json:"name"`
		DisableParallel bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	Thinking *struct {
		Type    string `json:"type"`
		Budget  int    `json:"budget_tokens"`
		Display string `json:"display"`
	} `json:"thinking"`
	OutputConfig *struct {
		Effort string `json:"effort"`
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

// AnthropicMessage is a message of a request.
type AnthropicMessage struct {
	Role    string           `json:"role"`
	Content []AnthropicBlock `json:"content"`
}

// AnthropicBlock is a part of a message, of the system prompt, or of an answer.
type AnthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	Signature string          `json:"signature,omitempty"`
	Data      string          `json:"data,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   string          `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
	// Source and Title belong to an image or a document.
	Source *struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
	} `json:"source,omitempty"`
	Title        string `json:"title,omitempty"`
	CacheControl *struct {
		Type string `json:"type"`
	} `json:"cache_control,omitempty"`
}

// AnthropicTool is a tool of a request.
type AnthropicTool struct {
	Name         string                     `json:"name"`
	Description  string                     `json:"description"`
	InputSchema  map[string]json.RawMessage `json:"input_schema"`
	Strict       bool                       `json:"strict"`
	CacheControl *struct {
		Type string `json:"type"`
	} `json:"cache_control"`
}

// Requests returns the requests that the server has accepted so far.
func (a *Anthropic) Requests() []AnthropicRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Refused returns why requests were refused so far.
func (a *Anthropic) Refused() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.refused)
}

// ServeHTTP answers a request for a reply, or for the list of models.
func (a *Anthropic) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refuse := func(status int, kind, message string) {
		a.refused = append(a.refused, message)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}})
	}
	switch {
	case r.Header.Get("X-Api-Key") != a.Key || r.Header.Get("Authorization") != "":
		refuse(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
		return
	case r.Header.Get("Anthropic-Version") != "2023-06-01":
		refuse(http.StatusBadRequest, "invalid_request_error", "anthropic-version: header is required")
		return
	case r.Method == http.MethodGet && r.URL.Path == "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"data":[{"type":"model","id":"claude-sonnet-4-5"}],"has_more":false,"first_id":null,"last_id":null}`)
		return
	case r.Method != http.MethodPost || r.URL.Path != "/v1/messages":
		refuse(http.StatusNotFound, "not_found_error", "Not found")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req := AnthropicRequest{Body: body}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		refuse(http.StatusBadRequest, "invalid_request_error", strings.TrimPrefix(err.Error(), "json: "))
		return
	}
	if problem := req.problem(); problem != "" {
		refuse(http.StatusBadRequest, "invalid_request_error", problem)
		return
	}
	a.requests = append(a.requests, req)
	blocks, reason := a.Reply(req)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = io.WriteString(w, AnthropicStream(blocks, reason))
}

// AnthropicSignature returns the signature of a thought.
func AnthropicSignature(thought string) string {
	sum := sha256.Sum256([]byte("signed " + thought))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// AnthropicStream returns an answer as a stream. Thoughts get their signatures.
func AnthropicStream(blocks []AnthropicBlock, stopReason string) string {
	var out strings.Builder
	send := func(kind string, members map[string]any) {
		members["type"] = kind
		data, err := json.Marshal(members)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&out, "event: %s\ndata: %s\n\n", kind, data)
	}
	usage := map[string]any{
		"input_tokens": 9, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1,
	}
	send("message_start", map[string]any{"message": map[string]any{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": usage,
	}})
	send("ping", map[string]any{})
	for i, b := range blocks {
		var start map[string]any
		var deltas []map[string]any
		halves := func(kind, member, text string) {
			for _, part := range []string{text[:len(text)/2], text[len(text)/2:]} {
				deltas = append(deltas, map[string]any{"type": kind, member: part})
			}
		}
		switch b.Type {
		case "thinking":
			start = map[string]any{"type": "thinking", "thinking": "", "signature": ""}
			halves("thinking_delta", "thinking", b.Thinking)
			deltas = append(deltas, map[string]any{"type": "signature_delta", "signature": AnthropicSignature(b.Thinking)})
		case "redacted_thinking":
			start = map[string]any{"type": "redacted_thinking", "data": b.Data}
		case "tool_use":
			start = map[string]any{"type": "tool_use", "id": b.ID, "name": b.Name, "input": map[string]any{}}
			halves("input_json_delta", "partial_json", string(b.Input))
		default:
			start = map[string]any{"type": "text", "text": ""}
			halves("text_delta", "text", b.Text)
		}
		send("content_block_start", map[string]any{"index": i, "content_block": start})
		for _, d := range deltas {
			send("content_block_delta", map[string]any{"index": i, "delta": d})
		}
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": stopReason, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 4},
	})
	send("message_stop", map[string]any{})
	return out.String()
}

// The forms of IDs and names.
var (
	anthropicID   = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	anthropicName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
)

// problem returns why a request is refused, or an empty text.
func (r *AnthropicRequest) problem() string {
	checks := []func() string{r.parameterProblem, r.toolProblem, r.cacheProblem, r.messageProblem, r.thinkingProblem}
	for _, check := range checks {
		if problem := check(); problem != "" {
			return problem
		}
	}
	return ""
}

func (r *AnthropicRequest) parameterProblem() string {
	switch {
	case r.Model == "":
		return "model: String should have at least 1 character"
	case r.MaxTokens < 1:
		return "max_tokens: Field required"
	case !r.Stream:
		return "this server requires streaming"
	case r.Temperature != nil && (*r.Temperature < 0 || *r.Temperature > 1):
		return "temperature: range: 0..1"
	case len(r.Messages) == 0:
		return "messages: at least one message is required"
	case slices.ContainsFunc(r.Stop, func(text string) bool { return strings.TrimSpace(text) == "" }):
		return "stop_sequences: each stop sequence must contain non-whitespace"
	case !slices.Contains([]string{"", "auto", "standard_only"}, r.ServiceTier):
		return "service_tier: Input should be 'auto' or 'standard_only'"
	}
	for i, b := range r.System {
		if b.Type != "text" || strings.TrimSpace(b.Text) == "" {
			return fmt.Sprintf("system.%d: text content blocks must be non-empty", i)
		}
	}
	if o := r.OutputConfig; o != nil && o.Format != nil && !strings.Contains(string(o.Format.Schema), `"additionalProperties":false`) {
		return "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
	}
	return ""
}

func (r *AnthropicRequest) toolProblem() string {
	names := map[string]bool{}
	for i, t := range r.Tools {
		switch {
		case !anthropicName.MatchString(t.Name):
			return fmt.Sprintf("tools.%d.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'", i)
		case names[t.Name]:
			return "tools: Tool names must be unique."
		case string(t.InputSchema["type"]) != `"object"`:
			return fmt.Sprintf("tools.%d.custom.input_schema.type: Input should be 'object'", i)
		}
		for _, name := range []string{"oneOf", "allOf", "anyOf"} {
			if _, ok := t.InputSchema[name]; ok {
				return fmt.Sprintf("tools.%d.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level", i)
			}
		}
		if !isModernSchema(t.InputSchema) {
			return fmt.Sprintf("tools.%d.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12", i)
		}
		names[t.Name] = true
	}
	choice := r.ToolChoice
	switch {
	case choice == nil:
		return ""
	case !slices.Contains([]string{"auto", "any", "tool", "none"}, choice.Type):
		return "tool_choice: Input tag '" + choice.Type + "' found using 'type' does not match any of the expected tags"
	case len(r.Tools) == 0:
		return "tool_choice: tool_choice may only be specified while providing tools"
	case choice.Type == "tool" && !names[choice.Name]:
		return "tool_choice: Tool '" + choice.Name + "' not found in provided tools"
	case r.Thinking != nil && r.Thinking.Type != "disabled" && (choice.Type == "any" || choice.Type == "tool"):
		return "Thinking may not be enabled when tool_choice forces tool use."
	}
	return ""
}

// isModernSchema reports whether a schema is one of the draft 2020-12, whatever its $schema says.
func isModernSchema(fields map[string]json.RawMessage) bool {
	fields = maps.Clone(fields)
	delete(fields, "$schema")
	source, err := json.Marshal(fields)
	if err == nil {
		_, err = schema.Compile(source)
	}
	return err == nil
}

// cacheProblem checks the markers for the cache.
func (r *AnthropicRequest) cacheProblem() string {
	marks := 0
	count := func(blocks []AnthropicBlock) string {
		for _, b := range blocks {
			switch {
			case b.CacheControl == nil:
				continue
			case b.CacheControl.Type != "ephemeral":
				return "cache_control: Input tag found using 'type' does not match 'ephemeral'"
			case b.Type == "thinking" || b.Type == "redacted_thinking":
				return "thinking.cache_control: Extra inputs are not permitted"
			}
			marks++
		}
		return ""
	}
	for _, t := range r.Tools {
		if t.CacheControl != nil {
			marks++
		}
	}
	problem := count(r.System)
	for _, m := range r.Messages {
		if problem == "" {
			problem = count(m.Content)
		}
	}
	if problem == "" && marks > 4 {
		problem = fmt.Sprintf("A maximum of 4 blocks with cache_control may be provided. Found %d.", marks)
	}
	return problem
}

func (r *AnthropicRequest) messageProblem() string {
	role := "assistant"
	var calls, all []string // calls without results, and all so far
	for i, m := range r.Messages {
		switch {
		case m.Role != "user" && m.Role != "assistant":
			return fmt.Sprintf("messages.%d.role: Input should be 'user' or 'assistant'", i)
		case m.Role == role && i == 0:
			return "messages: first message must use the \"user\" role"
		case m.Role == role:
			return "messages: roles must alternate between \"user\" and \"assistant\""
		case len(m.Content) == 0:
			return fmt.Sprintf("messages.%d: all messages must have non-empty content", i)
		}
		role = m.Role
		var problem string
		if calls, problem = m.check(calls, len(r.Tools) > 0); problem != "" {
			return fmt.Sprintf("messages.%d.%s", i, problem)
		}
		if slices.ContainsFunc(calls, func(id string) bool { return slices.Contains(all, id) }) {
			return fmt.Sprintf("messages.%d: `tool_use` ids must be unique", i)
		}
		all = append(all, calls...)
	}
	switch {
	case role == "assistant":
		return "This model does not support assistant message prefill. The conversation must end with a user message."
	case len(calls) > 0:
		return "messages: `tool_use` ids were found without `tool_result` blocks immediately after: " + strings.Join(calls, ", ")
	}
	return ""
}

// check checks the blocks of a message. calls are the IDs of the calls in the message before it; own are the IDs of its
// own calls.
func (m *AnthropicMessage) check(calls []string, hasTools bool) (own []string, problem string) {
	hasText := false
	for i, b := range m.Content {
		switch {
		case b.Type == "text" && strings.TrimSpace(b.Text) == "":
			return nil, fmt.Sprintf("content.%d.text: text content blocks must contain non-whitespace text", i)
		case b.Type == "text":
			hasText = true
		case b.Type == "tool_result" && (m.Role != "user" || !slices.Contains(calls, b.ToolUseID)):
			return nil, fmt.Sprintf("content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s", i, b.ToolUseID)
		case b.Type == "tool_result" && hasText:
			return nil, fmt.Sprintf("content.%d: `tool_result` blocks must come before text", i)
		case b.Type == "image" || b.Type == "document":
			if problem := m.sourceProblem(b); problem != "" {
				return nil, fmt.Sprintf("content.%d.%s.%s", i, b.Type, problem)
			}
			hasText = true
		case b.Type == "tool_result":
			calls = slices.DeleteFunc(slices.Clone(calls), func(id string) bool { return id == b.ToolUseID })
		case m.Role != "assistant":
			return nil, fmt.Sprintf("content.%d: unexpected block of type %q", i, b.Type)
		case b.Type == "thinking" && b.Signature != AnthropicSignature(b.Thinking):
			return nil, fmt.Sprintf("content.%d: Invalid `signature` in `thinking` block", i)
		case b.Type == "tool_use" && !hasTools:
			return nil, "content: Requests which include `tool_use` or `tool_result` blocks must define tools"
		case b.Type == "tool_use" && (!anthropicID.MatchString(b.ID) || slices.Contains(own, b.ID)):
			return nil, fmt.Sprintf("content.%d.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$' and be unique", i)
		case b.Type == "tool_use" && (!anthropicName.MatchString(b.Name) || !bytes.HasPrefix(b.Input, []byte("{"))):
			return nil, fmt.Sprintf("content.%d.tool_use: Input should be a valid dictionary", i)
		case b.Type == "tool_use":
			own = append(own, b.ID)
		}
	}
	if len(calls) > 0 {
		return nil, "content: `tool_use` ids were found without `tool_result` blocks immediately after: " + strings.Join(calls, ", ")
	}
	return own, ""
}

// mediaPrefixes are the first bytes of contents, by type of block and media type.
var mediaPrefixes = map[string]map[string]string{
	"image":    {"image/png": "\x89PNG\r\n\x1a\n", "image/jpeg": "\xff\xd8\xff", "image/gif": "GIF8", "image/webp": "RIFF"},
	"document": {"application/pdf": "%PDF-"},
}

// maxSource is the maximum size of an image or a document in base64.
const maxSource = 5 << 20

// sourceProblem checks an image or a document. The messages are from github.com/anthropics/claude-code/issues/8184,
// 10612 and 15746.
func (m *AnthropicMessage) sourceProblem(b AnthropicBlock) string {
	switch s := b.Source; {
	case m.Role != "user":
		return "source: images and documents may only be in messages of the user"
	case s == nil:
		return "source: Field required"
	case s.Type != "base64":
		return "source: Input tag '" + s.Type + "' found using 'type' does not match any of the expected tags: 'base64'"
	case mediaPrefixes[b.Type][s.MediaType] == "":
		return "source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif', 'image/webp' or 'application/pdf'"
	case len(s.Data) > maxSource:
		return fmt.Sprintf("source.base64: image exceeds 5 MB maximum: %d bytes > %d bytes", len(s.Data), maxSource)
	}
	data, err := base64.StdEncoding.DecodeString(b.Source.Data)
	switch {
	case err != nil:
		return "source.base64.data: Invalid base64 data"
	case !bytes.HasPrefix(data, []byte(mediaPrefixes[b.Type][b.Source.MediaType])):
		return "source.base64.data: Image does not match the provided media type " + b.Source.MediaType
	}
	return ""
}

// thinkingProblem checks the setting for thinking. If it is enabled, the first message of the assistant after the
// newest message of the user must start with a thought.
func (r *AnthropicRequest) thinkingProblem() string {
	t := r.Thinking
	switch {
	case t == nil || t.Type == "disabled" && t.Budget == 0:
		return ""
	case t.Type == "disabled":
		return "thinking.disabled.budget_tokens: Extra inputs are not permitted"
	case t.Type == "adaptive" && t.Budget != 0:
		return "thinking.adaptive.budget_tokens: Extra inputs are not permitted"
	case r.Temperature != nil && *r.Temperature != 1:
		return "`temperature` may only be set to 1 when thinking is enabled"
	case t.Type == "adaptive":
		return ""
	case t.Budget < 1024:
		return "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
	case t.Budget >= r.MaxTokens:
		return "`max_tokens` must be greater than `thinking.budget_tokens`."
	}
	first := ""
	for _, m := range slices.Backward(r.Messages) {
		isResult := slices.ContainsFunc(m.Content, func(b AnthropicBlock) bool { return b.Type == "tool_result" })
		if m.Role == "user" && !isResult {
			break
		}
		if m.Role == "assistant" {
			first = m.Content[0].Type
		}
	}
	if first != "" && first != "thinking" && first != "redacted_thinking" {
		return "messages: Expected `thinking` or `redacted_thinking`, but found `" + first + "`. When `thinking` is enabled, a final " +
			"`assistant` message must start with a thinking block."
	}
	return ""
}
