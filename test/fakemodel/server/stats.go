package server

import (
	"encoding/json"
	"net/http"
	"time"
)

// Outcome is the way in which a request ended.
type Outcome string

const (
	// OutcomeAnswered means that the whole answer was sent.
	OutcomeAnswered Outcome = "answered"
	// OutcomeCancelled means that the client disconnected before the end of the response, for example in a hang.
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeUnauthorized means that the key was missing or invalid (401).
	OutcomeUnauthorized Outcome = "unauthorized"
	// OutcomeUnknownModel means that the model is not served (404).
	OutcomeUnknownModel Outcome = "unknownModel"
	// OutcomeInvalidRequest means that the request violated the wire format or its bounds (400, 413).
	OutcomeInvalidRequest Outcome = "invalidRequest"
	// OutcomeError means that the server sent the error that the rule's fault describes.
	OutcomeError Outcome = "error"
	// OutcomeCut means that a rule cut off the response.
	OutcomeCut Outcome = "cut"
	// OutcomeUnfinished means that a rule ended the response without a finish reason.
	OutcomeUnfinished Outcome = "unfinished"
	// OutcomeRubbish means that a rule made the response unreadable.
	OutcomeRubbish Outcome = "rubbish"
	// OutcomeReleased means that a hang or a delay ended because the server was closed.
	OutcomeReleased Outcome = "released"
	// OutcomeFailed means that a template could not be rendered (500), and the message says which one; or that the
	// handler panicked.
	OutcomeFailed Outcome = "failed"
)

// Stats counts the requests for completions and embeddings since the start or the last reset. Requests for lists of
// models have a count of their own.
type Stats struct {
	// Requests counts the requests that arrived, finished or not.
	Requests int64 `json:"requests"`
	// InFlight counts the requests without an outcome.
	InFlight int64 `json:"inFlight"`
	// PeakInFlight is the highest value of InFlight so far.
	PeakInFlight int64 `json:"peakInFlight"`
	// Cancelled counts the clients that disconnected before the end of the response.
	Cancelled int64 `json:"cancelled"`
	// ByModel counts the requests by model name, served or not. After 1,000 names, all others are counted as
	// "(other)".
	ByModel map[string]int64 `json:"byModel"`
	// ByOutcome counts the finished requests by their outcome.
	ByOutcome map[Outcome]int64 `json:"byOutcome"`
	// PromptTokens, CompletionTokens, CachedTokens and ReasoningTokens are the total usage of the requests that
	// were answered in full.
	PromptTokens     int64 `json:"promptTokens"`
	CompletionTokens int64 `json:"completionTokens"`
	CachedTokens     int64 `json:"cachedTokens"`
	ReasoningTokens  int64 `json:"reasoningTokens"`
	// Billed counts the requests that were billed, see Bill. BilledInputTokens and BilledOutputTokens are the sums of
	// their billed tokens.
	Billed             int64 `json:"billed"`
	BilledInputTokens  int64 `json:"billedInputTokens"`
	BilledOutputTokens int64 `json:"billedOutputTokens"`
	// ModelLists counts the requests for the list of models or for one model, including those with an invalid key.
	ModelLists int64 `json:"modelLists"`
}

// Request is one request for a completion or for embeddings, with its outcome.
type Request struct {
	// Number counts from 1 since the start or the last reset.
	Number int64 `json:"number"`
	// Received is the time at which the server had read the whole body.
	Received time.Time `json:"received"`
	// Authorized reports whether the key was valid, or no key was required. The key itself is not kept.
	Authorized bool `json:"authorized"`
	// Header has all request headers except Authorization and Proxy-Authorization.
	Header http.Header `json:"header"`
	// ClientRequestID is the value of the header X-Client-Request-Id, with which a client can identify its request.
	ClientRequestID string `json:"clientRequestID,omitempty"`
	// Body is the request's body as JSON. It is a JSON string if the body is not JSON, and an empty string if the
	// body could not be read to its end.
	Body json.RawMessage `json:"body"`
	// Model is the requested model.
	Model string `json:"model"`
	// Stream reports whether the client requested a stream.
	Stream bool `json:"stream"`
	// ResponseFormat is the requested type of the answer, or empty if the request does not set it. Its schema is in
	// the body.
	ResponseFormat ResponseFormat `json:"responseFormat,omitempty"`
	// Rule is the index of the rule that matched, or -1 if no rule matched.
	Rule int `json:"rule"`
	// Outcome is the way in which the request ended. It is empty while the request is in flight.
	Outcome Outcome `json:"outcome,omitempty"`
	// Billed reports whether the request was billed. InputTokens and OutputTokens are the billed tokens. See Bill.
	Billed       bool  `json:"billed"`
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	// Delivered reports whether the whole answer was written to the network while the client was connected.
	Delivered bool `json:"delivered"`
}
