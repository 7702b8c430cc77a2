// Package tool is the engine's view of a tool: arguments in, one result or one classified error out. Adapters for real
// tools implement Caller and live outside internal/runtime.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// Effect is what a call does to the world, and so whether it may be made again.
type Effect string

const (
	// ReadOnly calls change nothing.
	ReadOnly Effect = "ReadOnly"
	// Idempotent calls change no more when they are made twice.
	Idempotent Effect = "Idempotent"
	// Destructive calls must not be made twice. So are those of which nobody knows.
	Destructive Effect = "Destructive"
)

// Repeatable says whether a call whose outcome is unknown may be made again.
func (e Effect) Repeatable() bool { return e == ReadOnly || e == Idempotent }

// DefaultTimeout bounds a call where its tool says nothing.
const DefaultTimeout = 45 * time.Second

// Tool is what a model is told of a tool, and how it is called.
type Tool struct {
	prompt.Tool
	// Effect of a call; Destructive if empty.
	Effect Effect
	// Timeout of a call; DefaultTimeout if 0.
	Timeout time.Duration
	// Caller makes the calls.
	Caller Caller
}

// Caller makes the calls of one tool.
//
// Call returns the result, or an *Error that says what kind of failure it was. It stops promptly when ctx ends and leaves
// nothing running behind. It never retries: the loop does. It is safe for concurrent use.
type Caller interface {
	Call(ctx context.Context, c Call) (Result, error)
}

// CallerFunc is a function that is a Caller.
type CallerFunc func(ctx context.Context, c Call) (Result, error)

// Call calls the function.
func (f CallerFunc) Call(ctx context.Context, c Call) (Result, error) { return f(ctx, c) }

// Call of a tool.
type Call struct {
	// IdempotencyKey names the call for ever: it is the same when the call is made again. For servers that can use one.
	IdempotencyKey string
	// Arguments are a JSON object.
	Arguments json.RawMessage
}

// Result of a call.
type Result struct {
	// Content for the model.
	Content string
}

// Class says what kind of failure a call has ended with. Models are told.
type Class string

// The classes of failures.
const (
	// InvalidArguments means that the tool cannot work with the arguments.
	InvalidArguments Class = "invalid_arguments"
	// Timeout means that there was no result in time. The call may have been done all the same.
	Timeout Class = "timeout"
	// Unavailable means that the tool is out of reach, or unknown.
	Unavailable Class = "unavailable"
	// Denied means that the call is not allowed.
	Denied Class = "denied"
	// Failed means that the tool has failed.
	Failed Class = "failed"
	// OutcomeUnknown means that nobody knows whether the call was done: the run was cut off, or the adapter of the tool failed.
	OutcomeUnknown Class = "outcome_unknown"
)

// Error is a failed call.
type Error struct {
	// Class of the failure.
	Class Class
	// Message for the model and for people.
	Message string
	// Err is the cause; may be nil.
	Err error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns an error as an *Error; one of no class has Failed.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Class: Failed, Message: err.Error(), Err: err}
}
