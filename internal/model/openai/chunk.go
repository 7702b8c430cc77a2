package openai

import (
	"cmp"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// chunk is an event of a stream, or a whole answer. It has only the members that Capstan needs.
type chunk struct {
	Choices []choice     `json:"choices"`
	Usage   maybe[usage] `json:"usage"`
	// Groq has the usage of Groq's own member.
	Groq maybe[struct {
		Usage maybe[usage] `json:"usage"`
	}] `json:"x_groq"`
	// The other members belong to an error instead of the next part of the answer.
	Object maybe[string] `json:"object"`
	Type   maybe[string] `json:"type"`
	problem
}

type choice struct {
	Index        maybe[number] `json:"index"`
	Delta        maybe[delta]  `json:"delta"`
	FinishReason maybe[string] `json:"finish_reason"`
	// Message is sent by some servers instead of a delta, and by a few in addition. The latter repeat the whole text.
	Message maybe[delta] `json:"message"`
	// Usage is sent here by Moonshot.
	Usage maybe[usage]    `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type delta struct {
	Content prose `json:"content"`
	// ReasoningContent and Reasoning are the same: each server sends one of them, or both with the same text.
	ReasoningContent prose             `json:"reasoning_content"`
	Reasoning        prose             `json:"reasoning"`
	Refusal          maybe[string]     `json:"refusal"`
	ToolCalls        maybe[[]toolCall] `json:"tool_calls"`
	// FunctionCall is the only call of the older protocol.
	FunctionCall maybe[function] `json:"function_call"`
}

type toolCall struct {
	Index    maybe[number]   `json:"index"`
	ID       maybe[string]   `json:"id"`
	Function maybe[function] `json:"function"`
}

type function struct {
	Name      maybe[string] `json:"name"`
	Arguments arguments     `json:"arguments"`
}

func chunkOf(event []byte) (chunk, error) {
	var c chunk
	err := json.Unmarshal(event, &c)
	return c, err
}

// failure returns the error that an endpoint has put into an event, in any of the forms that errorOf reads, or nil if
// there is none.
func (c *chunk) failure(event []byte) json.RawMessage {
	isError := c.Object.value == "error" || c.Type.value == "error" || isPresent(c.Error)
	if isError || c.Choices == nil && (isPresent(c.Message) || isPresent(c.Detail)) {
		return event
	}
	for i := range c.Choices {
		if isPresent(c.Choices[i].Error) {
			return c.Choices[i].Error
		}
	}
	return nil
}

// news returns the new part of the answer in a choice.
func (c *choice) news() *delta {
	if c.Delta.given {
		return &c.Delta.value
	}
	return &c.Message.value
}

// reasoning returns the reasoning in a part of an answer.
func (d *delta) reasoning() string {
	return cmp.Or(d.ReasoningContent.text, d.Reasoning.text, d.Content.reasoning)
}

// calls returns the pieces of calls in a part of an answer.
func (d *delta) calls() []callPiece {
	pieces := make([]callPiece, 0, len(d.ToolCalls.value)+1)
	for _, t := range d.ToolCalls.value {
		f := t.Function.value
		pieces = append(pieces, callPiece{index: t.Index, id: t.ID.value, name: f.Name.value, arguments: string(f.Arguments)})
	}
	if f := d.FunctionCall; f.given {
		pieces = append(pieces, callPiece{
			index: maybe[number]{given: true}, name: f.value.Name.value, arguments: string(f.value.Arguments),
		})
	}
	return pieces
}

// usage counts the tokens of a request and its reply.
type usage struct {
	Prompt     maybe[number] `json:"prompt_tokens"`
	Completion maybe[number] `json:"completion_tokens"`
	Total      maybe[number] `json:"total_tokens"`

	PromptDetails maybe[struct {
		Cached maybe[number] `json:"cached_tokens"`
	}] `json:"prompt_tokens_details"`
	CompletionDetails maybe[struct {
		Reasoning maybe[number] `json:"reasoning_tokens"`
	}] `json:"completion_tokens_details"`

	// Cached is what Moonshot calls the cached tokens, and CacheHit what DeepSeek calls them.
	Cached   maybe[number] `json:"cached_tokens"`
	CacheHit maybe[number] `json:"prompt_cache_hit_tokens"`
}

// tokens returns the usage in the engine's terms. The output of xAI and Gemini does not include the reasoning, but
// their total does.
func (u *usage) tokens() model.Usage {
	input, output := u.Prompt.value, u.Completion.value
	if input > 0 {
		output = max(output, u.Total.value-input)
	}
	return model.Usage{
		InputTokens: int64(input), OutputTokens: int64(output),
		ReasoningTokens: int64(u.CompletionDetails.value.Reasoning.value),
		CacheReadTokens: int64(cmp.Or(u.PromptDetails.value.Cached.value, u.Cached.value, u.CacheHit.value)),
	}
}
