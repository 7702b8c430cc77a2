package server

// Config is a whole rules file.
type Config struct {
	// APIKeys are the bearer tokens that are accepted. Empty: no key is asked for.
	APIKeys []string `json:"apiKeys,omitempty"`
	// Models are the model names that are served and listed. Empty: any name is served, and the list of models is empty.
	Models []string `json:"models,omitempty"`
	// ContextTokens is the context window: a request whose messages are estimated at more tokens is refused with 400
	// context_length_exceeded, before any rule is asked. 1 or more; unset: no bound.
	ContextTokens *int `json:"contextTokens,omitempty"`
	// Rules are tried in order; the first that matches decides. When none does, the answer repeats the last user message.
	Rules []Rule `json:"rules,omitempty"`
}

// Rule says what happens to the requests that it matches.
type Rule struct {
	// When limits the rule to some requests. Empty: it matches every request.
	When When `json:"when,omitzero"`
	// Times limits the rule to its first matches, after which it is passed over; 1 or more. Unset: no limit.
	Times *int64 `json:"times,omitempty"`
	// Reply is the answer.
	Reply Reply `json:"reply,omitzero"`
	// Fault is what goes wrong on the way to the answer.
	Fault Fault `json:"fault,omitzero"`
}

// When is a conjunction: every condition that is given must hold. Texts are compared with regard to case.
type When struct {
	// Model is the exact name of the model.
	Model string `json:"model,omitempty"`
	// Contains is a text within the last user message.
	Contains string `json:"contains,omitempty"`
	// Matches is a regular expression (RE2) that matches somewhere in the last user message.
	Matches string `json:"matches,omitempty"`
	// SystemContains is a text within any one system or developer message.
	SystemContains string `json:"systemContains,omitempty"`
	// AnyContains is a text within any one message, whatever its role.
	AnyContains string `json:"anyContains,omitempty"`
	// ToolMessages is how many tool messages come after the last user message, exactly: the steps that a conversation has made
	// if each step is one call. 0 or more.
	ToolMessages *int `json:"toolMessages,omitempty"`
	// HasTools says whether the request offers tools.
	HasTools *bool `json:"hasTools,omitempty"`
	// ResponseFormat is the type of the answer that the request asks for: text (also where it says nothing), json_object or
	// json_schema.
	ResponseFormat ResponseFormat `json:"responseFormat,omitempty"`
}

// Reply is what the model says.
type Reply struct {
	// Text is a Go text/template over a View, with the functions that the package documentation lists. Unset: the default
	// answer, or no text at all when there are tool calls. An empty text gives an empty answer.
	Text *string `json:"text,omitempty"`
	// Reasoning is a template like Text: what the model thinks before it answers, streamed before the answer. Its tokens are
	// counted among those of the completion. Unset: none.
	Reasoning *string `json:"reasoning,omitempty"`
	// ReasoningField is the name under which reasoning is sent: reasoning_content or reasoning, as servers differ. Unset:
	// reasoning_content.
	ReasoningField ReasoningField `json:"reasoningField,omitempty"`
	// FinishReason is stop, length, tool_calls or content_filter. Unset: tool_calls if there are any, length if the answer was
	// cut to the request's token limit, else stop.
	FinishReason FinishReason `json:"finishReason,omitempty"`
	// ToolCalls are the tools that the model asks for, in order.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	// Usage replaces single numbers of the estimated usage.
	Usage UsageOverride `json:"usage,omitzero"`
	// ChunkChars is the number of characters in a streamed content chunk, 1 or more. Unset: 16.
	ChunkChars int `json:"chunkChars,omitempty"`
	// Repeat says the rendered text this many times over, 1 to 1,000,000. Unset: once.
	Repeat int `json:"repeat,omitempty"`
	// IgnoreMaxTokens lets the answer be longer than the request's max_tokens or max_completion_tokens, as a misbehaving
	// server would. Otherwise the text is cut to that many tokens and the finish reason is length.
	IgnoreMaxTokens bool `json:"ignoreMaxTokens,omitempty"`
}

// ToolCall is one function call of a reply.
type ToolCall struct {
	// ID identifies the call. Unset: one made from the request's number and the call's place.
	ID string `json:"id,omitempty"`
	// Name is the function to call. It need not be one that the request offers.
	Name string `json:"name"`
	// Arguments is a template like a reply's text. It should give a JSON object, but what it gives is sent as it is.
	// Unset: {}.
	Arguments *string `json:"arguments,omitempty"`
}

// UsageOverride replaces numbers of the usage; what is not given is estimated (or 0 for the details). All are 0 or more.
type UsageOverride struct {
	// PromptTokens replaces the estimate for the request.
	PromptTokens *int `json:"promptTokens,omitempty"`
	// CompletionTokens replaces the estimate for the answer, reasoning included.
	CompletionTokens *int `json:"completionTokens,omitempty"`
	// CachedTokens is the part of the prompt tokens that is said to come from a cache.
	CachedTokens *int `json:"cachedTokens,omitempty"`
	// ReasoningTokens is added to the estimate of the completion tokens and reported among their details. Unset: the estimate for
	// the reply's reasoning.
	ReasoningTokens *int `json:"reasoningTokens,omitempty"`
}

// Fault is what goes wrong. LatencyMilliseconds and ChunkDelayMilliseconds go with everything; of Status, Hang, CutAfterChunks,
// EndWithoutFinish and Rubbish at most one is given.
type Fault struct {
	// LatencyMilliseconds passes before the first byte, 0 to 3,600,000.
	LatencyMilliseconds int `json:"latencyMilliseconds,omitempty"`
	// ChunkDelayMilliseconds passes before each streamed content chunk, 0 to 3,600,000.
	ChunkDelayMilliseconds int `json:"chunkDelayMilliseconds,omitempty"`
	// Status answers with this HTTP status, 400 to 599, and an error body.
	Status int `json:"status,omitempty"`
	// Message is the error's message. Unset: the status' usual one.
	Message string `json:"message,omitempty"`
	// Code is the error's code, such as context_length_exceeded. Unset: the status' usual one.
	Code string `json:"code,omitempty"`
	// RetryAfterSeconds sends a Retry-After header with the error, 0 to 86,400. Unset: no header.
	RetryAfterSeconds *int `json:"retryAfterSeconds,omitempty"`
	// EchoAuthorization appends the value of the request's Authorization header to the error's message, as a careless proxy
	// might. Without a Status the error is a 401.
	EchoAuthorization bool `json:"echoAuthorization,omitempty"`
	// Hang stops before or after the response's headers and then sends nothing until the client goes away.
	Hang Hang `json:"hang,omitempty"`
	// CutAfterChunks closes the connection after this many content chunks, 0 or more, before a finish reason or [DONE]. A
	// response that is not streamed is cut in the middle, whatever the number.
	CutAfterChunks *int `json:"cutAfterChunks,omitempty"`
	// EndWithoutFinish ends a stream in good order after the content, but without finish reason, usage and [DONE]. A response
	// that is not streamed has a finish reason of null.
	EndWithoutFinish bool `json:"endWithoutFinish,omitempty"`
	// Rubbish answers 200 with something that is no completion.
	Rubbish Rubbish `json:"rubbish,omitempty"`
}

// ResponseFormat is the type of the answer that a request asks for, in the words of the wire format.
type ResponseFormat string

const (
	// ResponseText is any text.
	ResponseText ResponseFormat = "text"
	// ResponseJSONObject is a JSON object.
	ResponseJSONObject ResponseFormat = "json_object"
	// ResponseJSONSchema is JSON that fits a schema.
	ResponseJSONSchema ResponseFormat = "json_schema"
)

// ReasoningField is where a server sends the text of a model's reasoning.
type ReasoningField string

const (
	// ReasoningContentField is the name that most servers use.
	ReasoningContentField ReasoningField = "reasoning_content"
	// ReasoningPlainField is the name that others use.
	ReasoningPlainField ReasoningField = "reasoning"
)

// FinishReason is why a model stopped, in the words of the wire format.
type FinishReason string

const (
	// FinishStop is a complete answer.
	FinishStop FinishReason = "stop"
	// FinishLength is an answer that reached the token limit.
	FinishLength FinishReason = "length"
	// FinishToolCalls is an answer that asks for tools.
	FinishToolCalls FinishReason = "tool_calls"
	// FinishContentFilter is an answer that a content filter withheld or cut.
	FinishContentFilter FinishReason = "content_filter"
)

// Hang is where a response stops for ever.
type Hang string

const (
	// HangBeforeHeaders sends no byte at all.
	HangBeforeHeaders Hang = "BeforeHeaders"
	// HangAfterHeaders sends status 200 and the headers, and no body.
	HangAfterHeaders Hang = "AfterHeaders"
)

// Rubbish is a kind of 200 response that is no completion.
type Rubbish string

const (
	// RubbishNotJSON has the right content type and JSON that breaks off; in a stream within an event.
	RubbishNotJSON Rubbish = "NotJSON"
	// RubbishNotSSE is plain prose, in a stream under the content type of an event stream.
	RubbishNotSSE Rubbish = "NotSSE"
	// RubbishHTML is an HTML page such as a captive portal or a proxy sends.
	RubbishHTML Rubbish = "HTML"
)
