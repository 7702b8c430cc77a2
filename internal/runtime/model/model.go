// Package model is the engine's view of a language model: messages in, one reply or one classified error out.
// Adapters for real providers implement Provider and live outside internal/runtime.
package model

import (
	"context"
	"encoding/json"
)

// Provider sends one request to one endpoint.
//
// Generate returns the whole reply, which may hold memory until its Release is called, or an *Error that says what kind of failure it was, with the usage the endpoint
// reported if it reported any. It bounds what it keeps of a reply: a longer one is cut off. It stops promptly when ctx ends, returns then an *Error of kind Cancelled or Timeout,
// and leaves nothing running behind. It never retries: the loop does. It is safe for concurrent use.
type Provider interface {
	Generate(ctx context.Context, req Request) (Reply, error)
}

// Asker is a Provider that takes a request and gives its reply where they are, without copies: what waits for a reply is held on the
// stacks of thousands of Turns.
type Asker interface {
	// Ask is Generate into a reply, which is the zero Reply before, and stays that if there is an error.
	Ask(ctx context.Context, req *Request, reply *Reply) error
}

// Ask asks a provider for a reply. The reply is zero before.
func Ask(ctx context.Context, p Provider, req *Request, reply *Reply) error {
	if a, ok := p.(Asker); ok {
		return a.Ask(ctx, req, reply)
	}
	return generate(ctx, p, req, reply)
}

// generate is apart from Ask, whose frame is on the stack of each waiting Turn.
//
//go:noinline
func generate(ctx context.Context, p Provider, req *Request, reply *Reply) (err error) {
	*reply, err = p.Generate(ctx, *req)
	return err
}

// Role is who a message speaks for.
type Role string

// The roles of messages.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one message of a request.
type Message struct {
	// Role of the message.
	Role Role `json:"role"`
	// Name says what the message holds, such as system_prompt or context_pack.
	Name string `json:"name"`
	// Content of the message. That of an assistant's message with tool calls may be empty.
	Content string `json:"content"`
	// ToolCalls that an assistant's message asks for, in order.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	// ToolCallID is the call that a tool's message answers; empty on all others.
	ToolCallID string `json:"toolCallID,omitempty"`
	// StableChars is the number of leading code points that are the same for every Turn of the same agent and profile;
	// a provider that caches by marker sets its marker there. It is 0 on all messages but the system prompt.
	StableChars int `json:"stableChars,omitempty"`
}

// Tool is what a model may ask for.
type Tool struct {
	// Name of the tool, 1 to 64 letters, digits, '_' and '-'.
	Name string `json:"name"`
	// Description of what it does; may be empty.
	Description string `json:"description,omitempty"`
	// Parameters is the JSON Schema of its arguments, which are an object.
	Parameters json.RawMessage `json:"parameters"`
}

// ToolCall is a tool that a model asks for.
type ToolCall struct {
	// ID of the call: 1 to MaxCallID printable ASCII characters without a space. An adapter makes it unique within its reply, and
	// the loop within its Turn: see IdentifyCalls. Journals of older versions have longer IDs and repeat IDs between replies.
	ID string `json:"id"`
	// Name of the tool as the model wrote it.
	Name string `json:"name"`
	// Arguments are meant to be a JSON object. In a reply they are as the model wrote them, and may be anything; in a request they
	// are a JSON object.
	Arguments string `json:"arguments"`
}

// Parameters shape a reply. What is nil is left to the provider.
type Parameters struct {
	// Temperature from 0 to 2.
	Temperature *float64 `json:"temperature,omitempty"`
	// MaxOutputTokens caps the reply; at least 1.
	MaxOutputTokens *int `json:"maxOutputTokens,omitempty"`
	// Effort is how long the model should reason: low, medium or high; empty to leave it to the provider.
	Effort string `json:"effort,omitempty"`
}

// Request is what a model is asked.
type Request struct {
	// ID of the request, at most 128 printable ASCII characters, for the endpoint's logs; may be empty.
	ID string
	// Model is the name of the model as the endpoint knows it.
	Model string
	// Messages in order; the first is the system prompt.
	Messages []Message
	// Tools that the model may ask for; none for a request that must be answered.
	Tools []Tool
	// Parameters of the reply.
	Parameters Parameters
	// Output is the JSON Schema that the answer is to keep to, for endpoints that can see to that; empty for none.
	Output json.RawMessage
}

// FinishReason is why a model stopped.
type FinishReason string

const (
	// FinishStop means that the model was done.
	FinishStop FinishReason = "stop"
	// FinishLength means that the reply reached a limit of its length and is cut off. Calls of tools are left out then.
	FinishLength FinishReason = "length"
	// FinishRefusal means that the model refused to answer; the text is what it said instead.
	FinishRefusal FinishReason = "refusal"
	// FinishToolCalls means that the model waits for the results of tools.
	FinishToolCalls FinishReason = "tool_calls"
)

// Reply is what a model answered. A provider returns a reply only if the endpoint said that it was finished.
type Reply struct {
	// Text of the answer, without reasoning; never blank when FinishReason is FinishStop or FinishRefusal.
	Text string `json:"text"`
	// ToolCalls that the model asks for, also where it was offered none; at least one when FinishReason is FinishToolCalls, and else none.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	// Reasoning is the text of the model's reasoning; empty where the endpoint gives none. It is never sent back.
	Reasoning string `json:"reasoning,omitempty"`
	// FinishReason is why the model stopped.
	FinishReason FinishReason `json:"finishReason"`
	// TooLong is true where the adapter cut the reply off because it is longer than an adapter keeps. FinishReason is FinishLength.
	TooLong bool `json:"tooLong,omitempty"`
	// Usage as the endpoint reported it; zero where it reported none.
	Usage Usage `json:"usage"`
	// Received is how many bytes of text, reasoning and arguments came of a reply that is too long, kept or not, where the endpoint
	// reported no usage; else 0. It is not journalled: an estimate of the usage is made of it at once.
	Received int64 `json:"-"`
	// Release gives back the memory that a long reply holds; nil where it holds none. Who gets the reply calls it once, when the reply
	// is counted elsewhere or no longer held. Until then nobody waits for memory of another reply or result.
	Release func() `json:"-"`
}

// Usage counts tokens.
type Usage struct {
	// InputTokens of the request, cached ones included.
	InputTokens int64 `json:"inputTokens"`
	// OutputTokens of the reply, reasoning included.
	OutputTokens int64 `json:"outputTokens"`
	// ReasoningTokens is the part of OutputTokens spent on reasoning.
	ReasoningTokens int64 `json:"reasoningTokens,omitempty"`
	// CacheReadTokens is the part of InputTokens read from the provider's cache.
	CacheReadTokens int64 `json:"cacheReadTokens,omitempty"`
	// Estimated is true where a part of the tokens is estimated, because the endpoint did not report it.
	Estimated bool `json:"estimated,omitempty"`
}

// MaxTokens bounds a count of tokens: an endpoint may report anything, and sums must not overflow.
const MaxTokens int64 = 1 << 50

// Add returns the sum of two usages. Counts stay from 0 to MaxTokens.
func (u Usage) Add(o Usage) Usage {
	sum := func(a, b int64) int64 { return min(Tokens(a)+Tokens(b), MaxTokens) }
	return Usage{
		InputTokens:     sum(u.InputTokens, o.InputTokens),
		OutputTokens:    sum(u.OutputTokens, o.OutputTokens),
		ReasoningTokens: sum(u.ReasoningTokens, o.ReasoningTokens),
		CacheReadTokens: sum(u.CacheReadTokens, o.CacheReadTokens),
		Estimated:       u.Estimated || o.Estimated,
	}
}

// Tokens brings a count that an endpoint reported within 0 and MaxTokens.
func Tokens(n int64) int64 { return min(max(0, n), MaxTokens) }
