package server

import (
	"encoding/json"
	"net/http"
	"time"
)

// Outcome is how a request ended.
type Outcome string

const (
	// OutcomeAnswered is a whole answer, sent.
	OutcomeAnswered Outcome = "answered"
	// OutcomeCancelled is a client that went away before the end, in a hang too.
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeUnauthorized is a missing or wrong key (401).
	OutcomeUnauthorized Outcome = "unauthorized"
	// OutcomeUnknownModel is a model that is not served (404).
	OutcomeUnknownModel Outcome = "unknownModel"
	// OutcomeInvalidRequest is a request that breaks the wire format or its bounds (400, 413).
	OutcomeInvalidRequest Outcome = "invalidRequest"
	// OutcomeError is an error that a rule asked for.
	OutcomeError Outcome = "error"
	// OutcomeCut is a response that a rule cut off.
	OutcomeCut Outcome = "cut"
	// OutcomeUnfinished is a response that a rule ended without a finish reason.
	OutcomeUnfinished Outcome = "unfinished"
	// OutcomeRubbish is a response that a rule made unreadable.
	OutcomeRubbish Outcome = "rubbish"
	// OutcomeReleased is a hang or a delay that ended because the server was closed.
	OutcomeReleased Outcome = "released"
	// OutcomeFailed is a template that could not be rendered (500); the message says which.
	OutcomeFailed Outcome = "failed"
)

// Stats counts completion requests since the start or the last reset. Lists of models are counted apart.
type Stats struct {
	// Requests is how many arrived, finished or not.
	Requests int64 `json:"requests"`
	// InFlight is how many have no outcome yet.
	InFlight int64 `json:"inFlight"`
	// PeakInFlight is the most that ever were in flight at once.
	PeakInFlight int64 `json:"peakInFlight"`
	// Cancelled is how many clients went away before the end.
	Cancelled int64 `json:"cancelled"`
	// ByModel counts by the model asked for, served or not. After 1,000 names the rest are counted as "(other)".
	ByModel map[string]int64 `json:"byModel"`
	// ByOutcome counts the finished ones by their end.
	ByOutcome map[Outcome]int64 `json:"byOutcome"`
	// PromptTokens, CompletionTokens, CachedTokens and ReasoningTokens add up the usage of the requests answered in full.
	PromptTokens     int64 `json:"promptTokens"`
	CompletionTokens int64 `json:"completionTokens"`
	CachedTokens     int64 `json:"cachedTokens"`
	ReasoningTokens  int64 `json:"reasoningTokens"`
	// Billed is how many requests were billed, see Bill; BilledInputTokens and BilledOutputTokens add up what they cost.
	Billed             int64 `json:"billed"`
	BilledInputTokens  int64 `json:"billedInputTokens"`
	BilledOutputTokens int64 `json:"billedOutputTokens"`
	// ModelLists is how often the models were listed or one of them looked up, with a right key or not.
	ModelLists int64 `json:"modelLists"`
}

// Request is one completion request as it arrived, and how it went.
type Request struct {
	// Number counts from 1 since the start or the last reset.
	Number int64 `json:"number"`
	// Received is when the body had been read.
	Received time.Time `json:"received"`
	// Authorized says whether the key was right, or none was asked for. The key itself is not kept.
	Authorized bool `json:"authorized"`
	// Header has all request headers but Authorization and Proxy-Authorization.
	Header http.Header `json:"header"`
	// ClientRequestID is the value of the header X-Client-Request-Id, by which a client finds its request again.
	ClientRequestID string `json:"clientRequestID,omitempty"`
	// Body is the request's body: the JSON itself, a JSON string of a body that is not JSON, or an empty string
	// for one that could not be read to its end.
	Body json.RawMessage `json:"body"`
	// Model is the model asked for.
	Model string `json:"model"`
	// Stream says whether a stream was asked for.
	Stream bool `json:"stream"`
	// ResponseFormat is the type of the answer that was asked for; empty where the request says nothing. The body has its schema.
	ResponseFormat ResponseFormat `json:"responseFormat,omitempty"`
	// Rule is the index of the rule that decided, -1 if none did.
	Rule int `json:"rule"`
	// Outcome is how the request ended, empty while it is in flight.
	Outcome Outcome `json:"outcome,omitempty"`
	// Billed says whether the request was billed; InputTokens and OutputTokens what for. See Bill.
	Billed       bool  `json:"billed"`
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	// Delivered says whether the whole answer was handed to the network while the client was still there.
	Delivered bool `json:"delivered"`
}
