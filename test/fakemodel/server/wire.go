package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The wire types are defined here and not taken from a client library. If the server used the types of the client
// under test, a mistake in the types would stay hidden, because both sides would make it.

// completionRequest is the part of a request's body that the server uses. The server ignores all other parameters.
type completionRequest struct {
	Model               string        `json:"model"`
	Messages            []wireMessage `json:"messages"`
	Stream              bool          `json:"stream"`
	MaxTokens           int           `json:"max_tokens"`
	MaxCompletionTokens int           `json:"max_completion_tokens"`
	N                   *int          `json:"n"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools []wireTool `json:"tools"`
	// ToolChoice is a text or an object. Only "none" has an effect.
	ToolChoice     json.RawMessage     `json:"tool_choice"`
	ResponseFormat *wireResponseFormat `json:"response_format"`
}

// maxTokens returns the token limit of the answer, or 0 for none.
func (r *completionRequest) maxTokens() int {
	if r.MaxCompletionTokens > 0 {
		return r.MaxCompletionTokens
	}
	return r.MaxTokens
}

// invalid returns an error that names the invalid parameter, or nil if the request is valid.
func (r *completionRequest) invalid() *wireError {
	switch {
	case r.Model == "":
		return refuse("model", "", "You must provide a model.")
	case len(r.Messages) == 0:
		return refuse("messages", "", "There must be at least one message.")
	case r.N != nil && *r.N != 1:
		return refuse("n", "", "This server gives one choice only.")
	case r.MaxTokens < 0 || r.MaxCompletionTokens < 0:
		return refuse("max_tokens", "", "The token limit must be 1 or more.")
	}
	for i, m := range r.Messages {
		switch m.Role {
		case "system", "developer", "user", "assistant", "tool", "function":
		default:
			return refuse(fmt.Sprintf("messages[%d].role", i), "", "The role %q is unknown.", m.Role)
		}
	}
	return cmp.Or(invalidTools(r.Tools), invalidToolMessages(r.Messages), r.ResponseFormat.invalid())
}

type wireMessage struct {
	Role string `json:"role"`
	Name string `json:"name"`
	// Content is nil if it is missing or null.
	Content    *wireContent   `json:"content"`
	ToolCallID string         `json:"tool_call_id"`
	ToolCalls  []sentToolCall `json:"tool_calls"`
}

func (m wireMessage) text() string {
	if m.Content == nil {
		return ""
	}
	return string(*m.Content)
}

// sentToolCall is a call of an earlier reply that a client sends back to the server.
type sentToolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name string `json:"name"`
		// Arguments is nil if there are none.
		Arguments *string `json:"arguments"`
	} `json:"function"`
}

// wireContent is the text of a message, which arrives as a string or as a list of parts. Parts that are not text
// are left out.
type wireContent string

// UnmarshalJSON accepts a string and a list of parts.
func (c *wireContent) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err == nil {
		*c = wireContent(text)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return errors.New("content must be a string, null or a list of parts")
	}
	var all strings.Builder
	for _, part := range parts {
		all.WriteString(part.Text)
	}
	*c = wireContent(all.String())
	return nil
}

// wireToolCall is a call of a reply.
type wireToolCall struct {
	// Index is the position of the call in the reply; only streamed calls have it.
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// completion is a whole response, or a chunk of a streamed response. The choices of a chunk have deltas instead of
// messages.
type completion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	ServiceTier       string       `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Choices           []wireChoice `json:"choices"`
	// Usage is raw because the chunks of one stream need three forms of it: no field, null, and numbers.
	Usage json.RawMessage `json:"usage,omitempty"`
}

type wireChoice struct {
	Index        int           `json:"index"`
	Message      *replyMessage `json:"message,omitempty"`
	Delta        *replyDelta   `json:"delta,omitempty"`
	Logprobs     *struct{}     `json:"logprobs"`
	FinishReason *FinishReason `json:"finish_reason"`
}

type replyMessage struct {
	Role    string  `json:"role"`
	Content *string `json:"content"`
	Refusal *string `json:"refusal"`
	thought
	Annotations []struct{}     `json:"annotations"`
	ToolCalls   []wireToolCall `json:"tool_calls,omitempty"`
}

type replyDelta struct {
	thought
	Role      string         `json:"role,omitempty"`
	Content   *string        `json:"content,omitempty"`
	ToolCalls []wireToolCall `json:"tool_calls,omitempty"`
}

// thought is the text of a model's reasoning, under one of two names. OpenAI's API has neither.
type thought struct {
	ReasoningContent string `json:"reasoning_content,omitempty"`
	Reasoning        string `json:"reasoning,omitempty"`
}

// setReasoning sets the field with this name.
func (t *thought) setReasoning(field ReasoningField, text string) {
	if field == ReasoningPlainField {
		t.Reasoning = text
		return
	}
	t.ReasoningContent = text
}

type wireUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
		AudioTokens  int `json:"audio_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens          int `json:"reasoning_tokens"`
		AudioTokens              int `json:"audio_tokens"`
		AcceptedPredictionTokens int `json:"accepted_prediction_tokens"`
		RejectedPredictionTokens int `json:"rejected_prediction_tokens"`
	} `json:"completion_tokens_details"`
}

// raw returns the usage as JSON. Its fields are integers, so encoding cannot fail.
func (u wireUsage) raw() json.RawMessage {
	data, err := json.Marshal(u)
	if err != nil {
		panic(err)
	}
	return data
}

type wireError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

type errorBody struct {
	Error wireError `json:"error"`
}

type wireModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []wireModel `json:"data"`
}
