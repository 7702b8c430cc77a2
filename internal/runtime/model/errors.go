package model

import (
	"errors"
	"time"
)

// ErrorKind classifies the failure of a request. The kind decides whether the request is repeated, and whether another
// model of the chain is asked.
type ErrorKind string

const (
	// RateLimited means that the endpoint asks for fewer requests (HTTP 429). RetryAfter may say how long to wait.
	RateLimited ErrorKind = "RateLimited"
	// Overloaded means that the endpoint failed on its side (HTTP 5xx, or 409, 424, 498 or 499), or reported an error
	// within an answer.
	Overloaded ErrorKind = "Overloaded"
	// Timeout means that no connection was made, or that no part of an answer arrived, within a time limit.
	Timeout ErrorKind = "Timeout"
	// Network means that the endpoint could not be reached, or the connection broke.
	Network ErrorKind = "Network"
	// Malformed means that the reply did not follow the protocol, was empty, or ended before it was finished.
	Malformed ErrorKind = "Malformed"
	// ContextLength means that the request is longer than the model's context window.
	ContextLength ErrorKind = "ContextLength"
	// ContentFiltered means that the endpoint's content filter refused the request or withheld the reply.
	ContentFiltered ErrorKind = "ContentFiltered"
	// ReplyTooLong means that the endpoint sent more than the adapter may keep.
	ReplyTooLong ErrorKind = "ReplyTooLong"
	// Auth means that the endpoint or a proxy refused the credentials (HTTP 401, 403 or 407, or 400 with a message
	// about the key), or that they are missing.
	Auth ErrorKind = "Auth"
	// QuotaExceeded means that the quota or the credit of the account is used up (HTTP 402, or an error whose code or
	// message says so).
	QuotaExceeded ErrorKind = "QuotaExceeded"
	// InvalidRequest means that the endpoint refused the request (any other HTTP 4xx), for example because it does
	// not know the model.
	InvalidRequest ErrorKind = "InvalidRequest"
	// OverBudget means that no request was sent, because the limits of the Turn, its Session or a Budget do not allow
	// it.
	OverBudget ErrorKind = "BudgetExceeded"
	// Unusable means that no request can be sent, for example because the ModelProvider does not exist.
	Unusable ErrorKind = "Unusable"
	// Cancelled means that the caller's context ended.
	Cancelled ErrorKind = "Cancelled"
)

// Retryable reports whether the same request may succeed later.
func (k ErrorKind) Retryable() bool {
	switch k {
	case RateLimited, Overloaded, Timeout, Network, Malformed:
		return true
	case ContextLength, ContentFiltered, ReplyTooLong, Auth, QuotaExceeded, InvalidRequest, OverBudget, Unusable, Cancelled:
		return false
	}
	return false
}

// MayConcernText reports whether the text of the request may be the reason for the failure, so that a request with
// another text may succeed.
func (k ErrorKind) MayConcernText() bool {
	switch k {
	case InvalidRequest, ContextLength, ContentFiltered:
		return true
	case RateLimited, Overloaded, Timeout, Network, Malformed, ReplyTooLong, Auth, QuotaExceeded, OverBudget, Unusable, Cancelled:
		return false
	}
	return false
}

// NextModel says which later models of a chain may succeed after a failure.
type NextModel int

const (
	// NoModel means that the failure ends the Turn.
	NoModel NextModel = iota
	// LargerModel means that only a model with a larger context window may succeed.
	LargerModel
	// AnyModel means that any model may succeed.
	AnyModel
)

// Next returns which later models of a chain may succeed after a failure of this kind. An unknown kind ends the Turn.
func (k ErrorKind) Next() NextModel {
	switch k {
	case RateLimited, Overloaded, Timeout, Network, Malformed, Auth, QuotaExceeded, InvalidRequest, OverBudget, Unusable:
		return AnyModel
	case ContextLength:
		return LargerModel
	case ContentFiltered, ReplyTooLong, Cancelled: // do not bypass a filter, and do not pay for the same long reply twice
		return NoModel
	}
	return NoModel
}

// Error is a failed request.
type Error struct {
	// Kind is the kind of the failure.
	Kind ErrorKind
	// Message tells people what happened and what to do, in Capstan's own words. It contains no secret.
	Message string
	// RemoteMessage is the text of the endpoint or of the network; it may be empty. It contains no secret. It belongs
	// only in the journal: users who can read the status must not see answers of internal endpoints that they cannot
	// reach themselves.
	RemoteMessage string
	// RetryAfter is the wait that the endpoint requested, or 0.
	RetryAfter time.Duration
	// Unsent is true if the request was never sent, for example because a credential is missing. An unsent request does
	// not count as a request.
	Unsent bool
	// NotReached is true if the request was attempted, but no part of it reached the endpoint, for example because no
	// connection was made. Like an unsent request, it does not count as a request. Unlike an unsent request, it may
	// show that the endpoint fails.
	NotReached bool
	// MayBeBilled is true if the endpoint may bill the failed request: it timed out, broke off or was cancelled after
	// it was sent, it failed after a part of the answer, its answer was too long, compressed or, after some time,
	// unreadable, or the reply was whole but has no usable answer.
	MayBeBilled bool
	// Internal is true if the endpoint failed with the status 500, which some servers also send for a text from which
	// they cannot make a vector.
	Internal bool
	// Empty is true if the reply was whole, but had neither text nor calls. A model often replies in the same way to
	// the same request, so a repeated request asks for an answer in words.
	Empty bool
	// Usage is the usage that the endpoint reported before the request failed.
	Usage Usage
	// Received is the number of bytes of text, reasoning and arguments that arrived before the request failed. It
	// is 0 if the endpoint reported the final usage.
	Received int64
	// Err is the cause, or nil.
	Err error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error. An error of another type counts as a failure of the network.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Network, Message: err.Error(), Err: err}
}
