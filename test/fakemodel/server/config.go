package server

// Config is a whole rules file.
type Config struct {
	// APIKeys are the accepted bearer tokens. If it is empty, the server requires no key.
	APIKeys []string `json:"apiKeys,omitempty"`
	// Models are the model names that are served and listed. If it is empty, the server accepts any name and lists no
	// model.
	Models []string `json:"models,omitempty"`
	// ContextTokens is the context window. A request whose messages have more estimated tokens is rejected with 400
	// context_length_exceeded before the rules are evaluated. It must be 1 or more. Unset: no bound.
	ContextTokens *int `json:"contextTokens,omitempty"`
	// Embeddings configures the vectors of texts.
	Embeddings Embeddings `json:"embeddings,omitzero"`
	// Rules are tried in order; the first match applies. Without a match, the answer repeats the last user message.
	Rules []Rule `json:"rules,omitempty"`
}

// Embeddings configures the vectors of texts. Each word of a text adds to one dimension of its vector, so that texts
// with the same words are similar.
type Embeddings struct {
	// Dimensions is the length of the vectors if a request does not set it, 1 to 4096. Unset: 256.
	Dimensions int `json:"dimensions,omitempty"`
	// Synonyms are lists of words that have the same meaning.
	Synonyms [][]string `json:"synonyms,omitempty"`
}

// Rule defines the response to the requests that it matches.
type Rule struct {
	// When holds the conditions of the rule. If it is empty, the rule matches every request.
	When When `json:"when,omitzero"`
	// Times is the number of requests that the rule can match, 1 or more. Unset: no limit.
	Times *int64 `json:"times,omitempty"`
	// Reply is the answer.
	Reply Reply `json:"reply,omitzero"`
	// Fault is the fault that the server injects.
	Fault Fault `json:"fault,omitzero"`
}

// When is a conjunction: every condition that is set must hold. Texts are compared case-sensitively.
type When struct {
	// Model is the exact name of the model.
	Model string `json:"model,omitempty"`
	// Contains is a text that the last user message must contain.
	Contains string `json:"contains,omitempty"`
	// Matches is a regular expression (RE2) that must match somewhere in the last user message.
	Matches string `json:"matches,omitempty"`
	// SystemContains is a text that at least one system or developer message must contain.
	SystemContains string `json:"systemContains,omitempty"`
	// AnyContains is a text that at least one message of any role must contain.
	AnyContains string `json:"anyContains,omitempty"`
	// ToolMessages is the exact number of tool messages after the last user message. If each step makes one call,
	// this is the number of finished steps. 0 or more.
	ToolMessages *int `json:"toolMessages,omitempty"`
	// HasTools is true if the request must offer tools, and false if it must not.
	HasTools *bool `json:"hasTools,omitempty"`
	// ResponseFormat is the type of the answer that the request asks for: json_object, json_schema, or text, which
	// is the default of a request.
	ResponseFormat ResponseFormat `json:"responseFormat,omitempty"`
	// Embeddings is true for a rule that matches only requests for embeddings. The texts to embed count as the last
	// user message. Only the fault of such a rule has an effect. Other rules do not match requests for embeddings.
	Embeddings bool `json:"embeddings,omitempty"`
}

// Reply is the model's reply.
type Reply struct {
	// Text is a Go text/template over a View, with the functions that the package documentation lists. Unset: the
	// default answer, or no text at all when there are tool calls. An empty text gives an empty answer.
	Text *string `json:"text,omitempty"`
	// Reasoning is a template like Text. The server streams the rendered reasoning before the answer and counts its
	// tokens as completion tokens. Unset: none.
	Reasoning *string `json:"reasoning,omitempty"`
	// ReasoningField is the name of the field for the reasoning: reasoning_content or reasoning, because servers
	// differ. Unset: reasoning_content.
	ReasoningField ReasoningField `json:"reasoningField,omitempty"`
	// FinishReason is stop, length, tool_calls or content_filter. Unset: tool_calls if the reply has tool calls, length
	// if the text was cut at the request's token limit, otherwise stop.
	FinishReason FinishReason `json:"finishReason,omitempty"`
	// ToolCalls are the calls of tools in the reply, in order.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	// Usage replaces single values of the estimated usage.
	Usage UsageOverride `json:"usage,omitzero"`
	// ChunkChars is the number of characters in a streamed content chunk, 1 or more. Unset: 16.
	ChunkChars int `json:"chunkChars,omitempty"`
	// Repeat is the number of times that the rendered text is repeated, 1 to 1,000,000. Unset: once.
	Repeat int `json:"repeat,omitempty"`
	// IgnoreMaxTokens lets the answer exceed the request's max_tokens or max_completion_tokens, like a misbehaving
	// server. Otherwise the text is cut to that many tokens and the finish reason is length.
	IgnoreMaxTokens bool `json:"ignoreMaxTokens,omitempty"`
}

// ToolCall is one function call of a reply.
type ToolCall struct {
	// ID identifies the call. Unset: an ID made from the number of the request and the position of the call.
	ID string `json:"id,omitempty"`
	// Name is the function to call. The request need not offer this function.
	Name string `json:"name"`
	// Arguments is a template like a reply's text. It should render a JSON object, but the server sends any result
	// unchanged. Unset: {}.
	Arguments *string `json:"arguments,omitempty"`
}

// UsageOverride replaces values of the usage. All values must be 0 or more. PromptTokens and CompletionTokens are
// estimated if they are not set.
type UsageOverride struct {
	// PromptTokens replaces the estimate for the request.
	PromptTokens *int `json:"promptTokens,omitempty"`
	// CompletionTokens replaces the estimate for the answer, reasoning included.
	CompletionTokens *int `json:"completionTokens,omitempty"`
	// CachedTokens is the number of prompt tokens that are reported as cached. Unset: 0.
	CachedTokens *int `json:"cachedTokens,omitempty"`
	// ReasoningTokens is added to the estimate of the completion tokens and reported among their details. Unset:
	// the estimate for the reply's reasoning.
	ReasoningTokens *int `json:"reasoningTokens,omitempty"`
}

// Fault describes a fault. LatencyMilliseconds and ChunkDelayMilliseconds can be combined with everything. At most
// one of Status, Hang, CutAfterChunks, EndWithoutFinish and Rubbish may be set.
type Fault struct {
	// LatencyMilliseconds is the delay before the first byte, 0 to 3,600,000.
	LatencyMilliseconds int `json:"latencyMilliseconds,omitempty"`
	// ChunkDelayMilliseconds is the delay before each streamed content chunk, 0 to 3,600,000.
	ChunkDelayMilliseconds int `json:"chunkDelayMilliseconds,omitempty"`
	// Status is the HTTP status of an error response, 400 to 599.
	Status int `json:"status,omitempty"`
	// Message is the error's message. Unset: the usual message of the status.
	Message string `json:"message,omitempty"`
	// Code is the error's code, such as context_length_exceeded. Unset: the usual code of the status.
	Code string `json:"code,omitempty"`
	// RetryAfterSeconds is the value of the error's Retry-After header, 0 to 86,400. Unset: no header.
	RetryAfterSeconds *int `json:"retryAfterSeconds,omitempty"`
	// EchoAuthorization appends the request's Authorization header to the error's message, like a careless proxy.
	// Without a Status the error is a 401.
	EchoAuthorization bool `json:"echoAuthorization,omitempty"`
	// Hang is the point at which the server stops sending. It then waits until the client disconnects.
	Hang Hang `json:"hang,omitempty"`
	// CutAfterChunks closes the connection after this many content chunks, 0 or more, before a finish reason or
	// [DONE]. A response without a stream is cut in the middle, independent of the number.
	CutAfterChunks *int `json:"cutAfterChunks,omitempty"`
	// EndWithoutFinish ends a stream properly after the content, but without finish reason, usage and [DONE]. A
	// response without a stream has a finish reason of null.
	EndWithoutFinish bool `json:"endWithoutFinish,omitempty"`
	// Rubbish answers 200 with a body that is not a completion.
	Rubbish Rubbish `json:"rubbish,omitempty"`
}

// ResponseFormat is the type of the answer that a request asks for, as on the wire.
type ResponseFormat string

const (
	// ResponseText is any text.
	ResponseText ResponseFormat = "text"
	// ResponseJSONObject is a JSON object.
	ResponseJSONObject ResponseFormat = "json_object"
	// ResponseJSONSchema is JSON that fits a schema.
	ResponseJSONSchema ResponseFormat = "json_schema"
)

// ReasoningField is the name of the field for the model's reasoning.
type ReasoningField string

const (
	// ReasoningContentField is the name that most servers use.
	ReasoningContentField ReasoningField = "reasoning_content"
	// ReasoningPlainField is the name that other servers use.
	ReasoningPlainField ReasoningField = "reasoning"
)

// FinishReason is the reason for which a model stopped, as on the wire.
type FinishReason string

const (
	// FinishStop is a complete answer.
	FinishStop FinishReason = "stop"
	// FinishLength is an answer that reached the token limit.
	FinishLength FinishReason = "length"
	// FinishToolCalls is an answer that calls tools.
	FinishToolCalls FinishReason = "tool_calls"
	// FinishContentFilter is an answer that a content filter suppressed or cut.
	FinishContentFilter FinishReason = "content_filter"
)

// Hang is the point at which a response stops forever.
type Hang string

const (
	// HangBeforeHeaders sends no byte at all.
	HangBeforeHeaders Hang = "BeforeHeaders"
	// HangAfterHeaders sends status 200 and the headers, and no body.
	HangAfterHeaders Hang = "AfterHeaders"
)

// Rubbish is a kind of 200 response that is not a completion.
type Rubbish string

const (
	// RubbishNotJSON has the right content type and truncated JSON; in a stream, the JSON is inside an event.
	RubbishNotJSON Rubbish = "NotJSON"
	// RubbishNotSSE is plain prose; in a stream, it has the content type of an event stream.
	RubbishNotSSE Rubbish = "NotSSE"
	// RubbishHTML is an HTML page like those of captive portals and proxies.
	RubbishHTML Rubbish = "HTML"
)
