// Package model is the engine's view of a language model: messages in, one reply or one classified error out.
// Adapters for real providers implement Provider and live outside internal/runtime.
package model

import (
	"context"
	"encoding/json"
	"time"
)

// Provider sends one request to one endpoint.
//
// Generate returns the whole reply, or nil and an *Error. A reply may hold memory until its Release is called. An
// *Error contains the kind of the failure and the usage, if the endpoint reported it. Generate cuts off a reply that is
// too long to keep. When ctx ends, Generate stops promptly, returns an *Error of kind Cancelled or Timeout, and leaves
// no goroutine running. Generate does not retry, because the loop does that. It is safe for concurrent use.
//
// The caller must not use the request until Generate returns, because Generate may change its fields. Generate must not
// change the messages and tools, because other attempts send the same ones. The request and the reply are pointers
// because thousands of waiting Turns would otherwise hold copies of them on their stacks.
type Provider interface {
	Generate(ctx context.Context, req *Request) (*Reply, error)
}

// Role is the speaker of a message.
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
	// Role is the role of the message.
	Role Role `json:"role"`
	// Name identifies the content of the message, such as system_prompt or context_pack.
	Name string `json:"name"`
	// Content is the text of the message. It may be empty in an assistant's message with tool calls.
	Content string `json:"content"`
	// ToolCalls are the calls that an assistant's message requests, in order.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	// ToolCallID is the ID of the call whose result a tool's message has. It is empty in other messages.
	ToolCallID string `json:"toolCallID,omitempty"`
	// ProviderData is data in an assistant's message for the provider that wrote the message. It is nil if another
	// provider receives the request, or if the provider needs no data.
	ProviderData *ProviderData `json:"providerData,omitempty"`
	// Attachments are the attachments of a user's message. Request.Content returns their data.
	Attachments []Attachment `json:"attachments,omitempty"`
	// StableChars is the number of leading code points that are the same for all Turns of the same agent and
	// profile. A provider that caches up to a marker sets its marker there. It is 0 in all messages except the
	// system prompt.
	StableChars int `json:"stableChars,omitempty"`
}

// Tool describes a tool that a model may call.
type Tool struct {
	// Name is the name of the tool, 1 to 64 letters, digits, '_' and '-'.
	Name string `json:"name"`
	// Description is the description of the tool. It may be empty.
	Description string `json:"description,omitempty"`
	// Parameters is the JSON Schema of the arguments, which are an object.
	Parameters json.RawMessage `json:"parameters"`
}

// ToolCall is a call of a tool that a model requests.
type ToolCall struct {
	// ID is the ID of the call: 1 to MaxCallID printable ASCII characters without a space. An adapter makes the ID
	// unique within its reply, and the loop makes it unique within its Turn: see IdentifyCalls. Journals of older
	// versions have longer IDs and repeat IDs between replies.
	ID string `json:"id"`
	// Name is the name of the tool as the model wrote it.
	Name string `json:"name"`
	// Arguments are the arguments. In a request, they are a JSON object. In a reply, they are the text that the model
	// wrote, which should be a JSON object but may be any text.
	Arguments string `json:"arguments"`
	// ProviderData is the data of this call for the provider, as JSON that is sent back unchanged. It supplements the
	// ProviderData of the message, and is nil if the message has none.
	ProviderData json.RawMessage `json:"providerData,omitempty"`
}

// Parameters control a reply. If a parameter is nil, the provider decides.
type Parameters struct {
	// Temperature is the sampling temperature, from 0 to 2.
	Temperature *float64 `json:"temperature,omitempty"`
	// MaxOutputTokens is the maximum number of tokens in the reply, at least 1.
	MaxOutputTokens *int `json:"maxOutputTokens,omitempty"`
	// Effort is the effort of the model's reasoning: low, medium or high, or EffortNone. If it is empty, the provider
	// decides.
	Effort string `json:"effort,omitempty"`
	// Seed makes replies to the same request more alike, as far as the endpoint can. It is at least 0.
	Seed *int64 `json:"seed,omitempty"`
	// Stop are at most 4 texts. The reply ends before the first of them that the model writes.
	Stop []string `json:"stop,omitempty"`
	// ServiceTier is the endpoint's own name of the tier that processes the request. It may be empty.
	ServiceTier string `json:"serviceTier,omitempty"`
	// Extra are further fields of the request's body. An adapter refuses names of fields that it sends itself.
	Extra []ExtraField `json:"extra,omitempty"`
}

// EffortNone is the effort of a model that must not reason.
const EffortNone = "none"

// ForQuestion returns the parameters for a question about a Turn that has ended. It removes the stop sequences, because
// they are for the answers of the Agent and may occur in the reply.
func (p Parameters) ForQuestion() Parameters {
	p.Stop = nil
	return p
}

// ExtraField is a further field of a request's body.
type ExtraField struct {
	// Name is the name of the field.
	Name string `json:"name"`
	// Value is the value of the field. It must be JSON; otherwise no request is sent.
	Value string `json:"value"`
}

// Unsupported is a parameter that an endpoint cannot fulfill.
type Unsupported struct {
	// Parameter is the name of the parameter, as in Parameters but in camel case, such as serviceTier.
	Parameter string
	// Problem says why, and what to do instead.
	Problem string
}

// Error returns the parameter and the problem.
func (u *Unsupported) Error() string { return u.Parameter + ": " + u.Problem }

// Request is a request to a model.
type Request struct {
	// ID is the ID of the request for the endpoint's logs, at most 128 printable ASCII characters. It may be empty.
	ID string
	// Model is the name of the model as the endpoint knows it.
	Model string
	// Messages are the messages in order. The first one is the system prompt.
	Messages []Message
	// Tools are the tools that the model may call. If there are none, the model must answer.
	Tools []Tool
	// NoCalls is true if the model must answer without calling Tools. They are then in the request only because an
	// earlier request had them, and endpoints keep the beginning of a request in a cache. If an endpoint cannot forbid
	// calls, its provider omits Tools.
	NoCalls bool
	// Parameters are the parameters of the reply.
	Parameters Parameters
	// OutputLimit is the maximum number of tokens in the reply, if the budget or the context window leaves less than
	// the Agent and the model allow. Then the reply may have less reasoning than requested. Otherwise, OutputLimit is
	// 0.
	OutputLimit int
	// Output is the JSON Schema that the answer must fit, for endpoints that can enforce it. It is empty if there
	// is none.
	Output json.RawMessage
	// Content returns the data of an attachment. It must not be nil if a message has attachments. Until Generate
	// returns, it may be called several times, but not concurrently. Its errors are of type *Error.
	Content func(a *Attachment) ([]byte, error) `json:"-"`
	// FirstEventTimeout limits the time until the first part of the answer arrives. If it is 0, only the provider and
	// the context limit that time.
	FirstEventTimeout time.Duration
	// Observer follows the answer while it arrives. It may be nil.
	Observer Observer `json:"-"`
	// Facts receives facts about the answer until Generate returns. It may be nil.
	Facts *Facts `json:"-"`
	// Embed asks for vectors instead of a text. Such a request has no messages, tools and parameters. It is nil in any
	// other request.
	Embed *Embed `json:"embed,omitempty"`
}

// Offered returns the tools that the model may call.
func (r *Request) Offered() []Tool {
	if r.NoCalls {
		return nil
	}
	return r.Tools
}

// MaxOutput returns the maximum number of tokens in the reply, or 0 if the provider decides.
func (r *Request) MaxOutput() int {
	if most := r.Parameters.MaxOutputTokens; r.OutputLimit == 0 && most != nil {
		return *most
	}
	return r.OutputLimit
}

// Embed asks for the vectors of texts, which are embeddings. Such a request is one kind of Request, so that everything
// that guards and counts requests applies to it, too.
type Embed struct {
	// Texts are 1 to MaxEmbedTexts texts, of which none is blank.
	Texts []string `json:"texts"`
	// Dimensions is the length of the vectors, at most MaxDimensions. If it is 0, the model decides.
	Dimensions int `json:"dimensions,omitempty"`
}

// The bounds of a request for vectors.
const (
	// MaxEmbedTexts is the maximum number of texts. Cohere accepts 96, and Gemini 100. A smaller number bounds the
	// answer, which has up to 32 bytes of text for each element of a vector.
	MaxEmbedTexts = 16
	// MaxDimensions is the maximum length of a vector.
	MaxDimensions = 4096
)

// Facts are facts about an answer that are not part of it.
type Facts struct {
	// Model is the name of the model that answers, as the endpoint states it, at most 256 bytes. It is empty if the
	// endpoint names none.
	Model string
	// FirstEvent is the time from the request to the first part of the answer. It is 0 if no part has arrived.
	FirstEvent time.Duration
}

// FinishReason says why a model stopped.
type FinishReason string

const (
	// FinishStop means that the model had finished.
	FinishStop FinishReason = "stop"
	// FinishLength means that the reply reached a length limit and is cut off. It then contains no tool calls.
	FinishLength FinishReason = "length"
	// FinishRefusal means that the model refused to answer. The text is the refusal.
	FinishRefusal FinishReason = "refusal"
	// FinishToolCalls means that the model waits for the results of tool calls.
	FinishToolCalls FinishReason = "tool_calls"
)

// Reply is the reply of a model. A provider returns a reply only if the endpoint said that the reply was finished.
type Reply struct {
	// Text is the text of the answer, without reasoning. It is never blank if FinishReason is FinishStop or
	// FinishRefusal.
	Text string `json:"text"`
	// ToolCalls are the calls that the model requests, even if it was offered no tools. There is at least one if
	// FinishReason is FinishToolCalls, and none otherwise.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	// Reasoning is the text of the model's reasoning, for people. It is empty if the endpoint sends none. It is never
	// sent back: see ProviderData.
	Reasoning string `json:"reasoning,omitempty"`
	// ProviderData is the data that the endpoint needs when it receives this reply again in later requests, or nil if
	// it needs none.
	ProviderData *ProviderData `json:"providerData,omitempty"`
	// FinishReason says why the model stopped.
	FinishReason FinishReason `json:"finishReason"`
	// TooLong is true if the adapter cut off a reply that was too long to keep. FinishReason is then FinishLength.
	TooLong bool `json:"tooLong,omitempty"`
	// Usage is the usage that the endpoint reported. It is zero if the endpoint reported none.
	Usage Usage `json:"usage"`
	// Received is the number of bytes of text, reasoning and arguments that arrived, if the reply was too long or lacks
	// calls or a text that arrived. It is 0 for other replies, and if the endpoint reported the final usage. It is not
	// in the journal, because the loop immediately estimates the usage from it.
	Received int64 `json:"-"`
	// Vectors are the vectors of the texts of a request with Embed, in the order of the texts. They are normalized, and
	// have the same number of elements, at most MaxDimensions. A vector is nil if the endpoint sent no usable one, but
	// not all are nil. A reply with vectors has no text. The journal does not keep the vectors.
	Vectors [][]float32 `json:"-"`
	// Release releases the memory that a long reply reserved. It is nil if the reply reserved none. The receiver
	// must call it once: when another reservation includes the reply, or when the reply is no longer in memory. Before
	// that call, the receiver must not wait for memory for another reply or result.
	Release func() `json:"-"`
}

// Usage counts tokens.
type Usage struct {
	// InputTokens is the number of tokens of the request, including cached tokens.
	InputTokens int64 `json:"inputTokens"`
	// OutputTokens is the number of tokens of the reply, including reasoning.
	OutputTokens int64 `json:"outputTokens"`
	// ReasoningTokens is the part of OutputTokens spent on reasoning.
	ReasoningTokens int64 `json:"reasoningTokens,omitempty"`
	// CacheReadTokens is the part of InputTokens read from the provider's cache.
	CacheReadTokens int64 `json:"cacheReadTokens,omitempty"`
	// CacheCreationTokens is the part of InputTokens written to the provider's cache. Some providers charge more for
	// it.
	CacheCreationTokens int64 `json:"cacheCreationTokens,omitempty"`
	// Estimated is true if a part of the tokens is estimated because the endpoint did not report it.
	Estimated bool `json:"estimated,omitempty"`
}

// MaxTokens is the maximum of each number of tokens. An endpoint may report any number, and sums must not overflow.
const MaxTokens int64 = 1 << 50

// Add returns the sum of two usages. Each number stays between 0 and MaxTokens.
func (u Usage) Add(o Usage) Usage {
	sum := func(a, b int64) int64 { return min(Tokens(a)+Tokens(b), MaxTokens) }
	return Usage{
		InputTokens:         sum(u.InputTokens, o.InputTokens),
		OutputTokens:        sum(u.OutputTokens, o.OutputTokens),
		ReasoningTokens:     sum(u.ReasoningTokens, o.ReasoningTokens),
		CacheReadTokens:     sum(u.CacheReadTokens, o.CacheReadTokens),
		CacheCreationTokens: sum(u.CacheCreationTokens, o.CacheCreationTokens),
		Estimated:           u.Estimated || o.Estimated,
	}
}

// Tokens limits a number that an endpoint reported to the range from 0 to MaxTokens.
func Tokens(n int64) int64 { return min(max(0, n), MaxTokens) }
