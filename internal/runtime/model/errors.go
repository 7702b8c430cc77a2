package model

import (
	"errors"
	"time"
)

// ErrorKind classifies what went wrong with a request, and so what to do next.
type ErrorKind string

const (
	// RateLimited means that the endpoint asks for fewer requests (HTTP 429). RetryAfter may say when to come back.
	RateLimited ErrorKind = "RateLimited"
	// Overloaded means that the endpoint failed on its side (HTTP 5xx).
	Overloaded ErrorKind = "Overloaded"
	// Timeout means no connection, or no byte, in the time allowed.
	Timeout ErrorKind = "Timeout"
	// Network means that the endpoint could not be reached, or the connection broke.
	Network ErrorKind = "Network"
	// Malformed means that the reply was not of the protocol, was empty, or ended before it was finished.
	Malformed ErrorKind = "Malformed"
	// ContextLength means that the request is longer than the model's context window.
	ContextLength ErrorKind = "ContextLength"
	// ContentFiltered means that the endpoint's content filter refused the request or withheld the reply.
	ContentFiltered ErrorKind = "ContentFiltered"
	// ReplyTooLong means that the endpoint sent more than an adapter is willing to hold.
	ReplyTooLong ErrorKind = "ReplyTooLong"
	// Auth means that the endpoint refused the credentials (HTTP 401, 403).
	Auth ErrorKind = "Auth"
	// InvalidRequest means that the endpoint refused the request (any other HTTP 4xx), as for a model it does not know.
	InvalidRequest ErrorKind = "InvalidRequest"
	// Cancelled means that the caller's context ended.
	Cancelled ErrorKind = "Cancelled"
)

// Retryable reports whether the same request may succeed later.
func (k ErrorKind) Retryable() bool {
	switch k {
	case RateLimited, Overloaded, Timeout, Network, Malformed:
		return true
	case ContextLength, ContentFiltered, ReplyTooLong, Auth, InvalidRequest, Cancelled:
		return false
	}
	return false
}

// FallsBack reports whether the next model of a chain may succeed where this one failed.
func (k ErrorKind) FallsBack() bool {
	return k.Retryable() || k == Auth || k == InvalidRequest
}

// Error is a failed request.
type Error struct {
	// Kind of the failure.
	Kind ErrorKind
	// Message for people: what happened and what to do about it, in Capstan's own words. It holds no secret.
	Message string
	// Said is what the other side has said, or the network; may be empty. It holds no secret. It is for the journal alone: whoever may read
	// a status must not read so what an endpoint answers that only this process can reach.
	Said string
	// RetryAfter is how long the endpoint asked to wait, 0 if it did not.
	RetryAfter time.Duration
	// Unsent is true if the request never left, as where a credential is missing. It does not count as a request.
	Unsent bool
	// Usage that the endpoint reported before it failed.
	Usage Usage
	// Received is how many bytes of text, reasoning and arguments came before the request failed, where the endpoint reported no
	// usage; else 0.
	Received int64
	// Err is the cause, if there is one.
	Err error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error; one of an unknown type is taken for a failure of the network.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Network, Message: err.Error(), Err: err}
}
