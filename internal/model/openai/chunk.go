package openai

import (
	"cmp"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/lenient"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// chunk is an event of a stream, or a whole answer. It has only the members that Capstan needs.
type chunk struct {
	Choices choices               `json:"choices"`
	Model   lenient.Maybe[string] `json:"model"`
	counts
	// The members below belong to an error, which is sent in place of a part of the answer.
	Object lenient.Maybe[string] `json:"object"`
	Type   lenient.Maybe[string] `json:"type"`
	endpoint.Problem
}

// counts are the members of an event that have the usage.
type counts struct {
	Usage lenient.Maybe[usage] `json:"usage"`
	// Groq is Groq's own member, which also holds the usage.
	Groq lenient.Maybe[struct {
		Usage lenient.Maybe[usage] `json:"usage"`
	}] `json:"x_groq"`
}

// raise raises the usage of an answer.
func (c *counts) raise(answer *endpoint.Answer) {
	answer.RaiseUsage(c.Usage.Value.tokens())
	answer.RaiseUsage(c.Groq.Value.Usage.Value.tokens())
}

// maxChoices bounds the choices that are read from a chunk. A chooser needs only two of them.
const maxChoices = 4

type choices []choice

// UnmarshalJSON implements json.Unmarshaler.
func (c *choices) UnmarshalJSON(data []byte) (err error) {
	*c, err = lenient.First[choice](data, maxChoices)
	return err
}

type choice struct {
	Index        lenient.Maybe[lenient.Number] `json:"index"`
	Delta        lenient.Maybe[delta]          `json:"delta"`
	FinishReason lenient.Maybe[string]         `json:"finish_reason"`
	// NativeReason is the finish reason of the service behind OpenRouter.
	NativeReason lenient.Maybe[string] `json:"native_finish_reason"`
	// Message is sent by some servers instead of Delta. A few servers send both: see decoder.part.
	Message lenient.Maybe[delta] `json:"message"`
	// Usage is in the choice if the server is Moonshot's.
	Usage lenient.Maybe[usage] `json:"usage"`
	Error json.RawMessage      `json:"error"`
}

type delta struct {
	Content prose `json:"content"`
	// ReasoningContent and Reasoning are the same: each server sends one of them, or both with the same text.
	ReasoningContent prose `json:"reasoning_content"`
	Reasoning        prose `json:"reasoning"`
	// ReasoningDetails are OpenRouter's blocks of reasoning.
	ReasoningDetails lenient.Maybe[lenient.List[json.RawMessage]] `json:"reasoning_details"`
	Refusal          lenient.Maybe[string]                        `json:"refusal"`
	ToolCalls        lenient.Maybe[lenient.List[toolCall]]        `json:"tool_calls"`
	// FunctionCall is the call of the older protocol, which allows only one.
	FunctionCall lenient.Maybe[function] `json:"function_call"`
}

type toolCall struct {
	Index    lenient.Maybe[lenient.Number] `json:"index"`
	ID       lenient.Maybe[string]         `json:"id"`
	Function lenient.Maybe[function]       `json:"function"`
	// ExtraContent holds Gemini's thought signature of the call.
	ExtraContent json.RawMessage `json:"extra_content"`
}

type function struct {
	Name      lenient.Maybe[string] `json:"name"`
	Arguments arguments             `json:"arguments"`
}

func chunkOf(event []byte) (chunk, error) {
	var c chunk
	err := json.Unmarshal(event, &c)
	return c, err
}

// failure returns the error that an endpoint has put into an event, in any form that package endpoint reads, or nil.
func (c *chunk) failure(event []byte) json.RawMessage {
	isError := c.Object.Value == "error" || c.Type.Value == "error" || endpoint.IsPresent(c.Error) || c.HasFailed()
	if isError || c.Choices == nil && c.HasText() {
		return event
	}
	for i := range c.Choices {
		if endpoint.IsPresent(c.Choices[i].Error) {
			return c.Choices[i].Error
		}
	}
	return nil
}

// finish returns the finish reason. OpenRouter may send the reason stop although the service behind it has failed:
// github.com/OleksandrChekhovskyi/hax/pull/15.
func (c *choice) finish() string {
	if native := c.NativeReason.Value; native == "error" || native == "network_error" || native == "abort" {
		return native
	}
	return c.FinishReason.Value
}

// hasAnswer reports whether a part of an answer has text or a call.
func (d *delta) hasAnswer() bool {
	return d.Content.text != "" || d.Refusal.Value != "" || len(d.ToolCalls.Value) > 0 || d.FunctionCall.Given
}

// hasContent reports whether a part of an answer has text, a call or reasoning.
func (d *delta) hasContent() bool { return d.hasAnswer() || d.reasoning() != "" }

// reasoning returns the reasoning in a part of an answer.
func (d *delta) reasoning() string {
	return cmp.Or(d.ReasoningContent.text, d.Reasoning.text, d.Content.reasoning)
}

// calls returns the pieces of calls in a part of an answer.
func (d *delta) calls() []endpoint.CallPiece {
	pieces := make([]endpoint.CallPiece, 0, len(d.ToolCalls.Value)+1)
	for _, t := range d.ToolCalls.Value {
		f := t.Function.Value
		piece := endpoint.CallPiece{Index: t.Index, ID: t.ID.Value, Name: f.Name.Value, Arguments: string(f.Arguments)}
		if endpoint.IsPresent(t.ExtraContent) {
			piece.Data = string(t.ExtraContent)
		}
		pieces = append(pieces, piece)
	}
	if f := d.FunctionCall; f.Given {
		pieces = append(pieces, endpoint.CallPiece{
			Index: lenient.Maybe[lenient.Number]{Given: true}, Name: f.Value.Name.Value, Arguments: string(f.Value.Arguments),
		})
	}
	return pieces
}

// usage counts the tokens of a request and its reply.
type usage struct {
	Prompt     lenient.Maybe[lenient.Number] `json:"prompt_tokens"`
	Completion lenient.Maybe[lenient.Number] `json:"completion_tokens"`
	Total      lenient.Maybe[lenient.Number] `json:"total_tokens"`

	PromptDetails lenient.Maybe[struct {
		Cached lenient.Maybe[lenient.Number] `json:"cached_tokens"`
		// Written and Created are the same number: OpenRouter sends Written, and LiteLLM sends Created.
		Written lenient.Maybe[lenient.Number] `json:"cache_write_tokens"`
		Created lenient.Maybe[lenient.Number] `json:"cache_creation_tokens"`
	}] `json:"prompt_tokens_details"`
	CompletionDetails lenient.Maybe[struct {
		Reasoning lenient.Maybe[lenient.Number] `json:"reasoning_tokens"`
	}] `json:"completion_tokens_details"`

	// Cached is Moonshot's name for the cached tokens, and CacheHit is DeepSeek's.
	Cached   lenient.Maybe[lenient.Number] `json:"cached_tokens"`
	CacheHit lenient.Maybe[lenient.Number] `json:"prompt_cache_hit_tokens"`
	// Written is where LiteLLM sends the tokens that are written to the cache.
	Written lenient.Maybe[lenient.Number] `json:"cache_creation_input_tokens"`
}

// tokens returns the usage in the engine's terms. The completion_tokens of xAI and Gemini do not include the reasoning,
// but their total_tokens do. The prompt_tokens include the tokens that are written to the cache, except in answers of
// older versions of LiteLLM. These answers can be recognized only if the tokens read from the cache and written to it
// are together more than prompt_tokens.
func (u *usage) tokens() model.Usage {
	input, output := u.Prompt.Value, u.Completion.Value
	if input > 0 {
		output = max(output, u.Total.Value-input)
	}
	details := &u.PromptDetails.Value
	read := cmp.Or(details.Cached.Value, u.Cached.Value, u.CacheHit.Value)
	written := cmp.Or(details.Written.Value, details.Created.Value, u.Written.Value)
	if read+written > input {
		input += written
	}
	return model.Usage{
		InputTokens: int64(input), OutputTokens: int64(output),
		ReasoningTokens: int64(u.CompletionDetails.Value.Reasoning.Value),
		CacheReadTokens: int64(read), CacheCreationTokens: int64(written),
	}
}
