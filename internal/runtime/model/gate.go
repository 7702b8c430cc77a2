package model

import (
	"context"
	"errors"
	"time"
)

// MaxPause bounds the time for which a Gate holds requests back because an endpoint asks for a pause.
const MaxPause = 5 * time.Minute

// Gate is a Provider whose requests wait until they may be sent.
//
// Enter waits until one request may be sent. If the request must not wait, because its endpoint fails or asks for a
// long pause, or because the wait would exceed the bounds in Wait, Enter returns an *Error whose Unsent is true. It
// returns ErrStopped if Stop is closed, and the cause of ctx if ctx ends. The caller must call Generate or Leave of the
// ticket.
type Gate interface {
	Provider
	Enter(ctx context.Context, w Wait) (Ticket, error)
}

// Ticket is the permission for one request. Generate sends the request and uses up the ticket. If the ticket is some
// seconds old, Generate first waits again, as Enter does. All its errors are of type *Error; if the wait was stopped,
// the error wraps ErrStopped. Leave returns an unused ticket, and does nothing if the ticket was used.
type Ticket interface {
	Provider
	Leave()
}

// ErrStopped means that a wait ended because Wait.Stop was closed.
var ErrStopped = errors.New("the wait was stopped")

// Wait says how a request waits at a Gate.
type Wait struct {
	// Model is the name of the model.
	Model string
	// Tokens is the estimated number of tokens of the prompt.
	Tokens int64
	// Fallback is true if another model can answer. If it is true, the request does not wait while its endpoint fails,
	// and it waits for at most FallbackTime while the endpoint accepts no requests.
	Fallback     bool
	FallbackTime time.Duration
	// MaxWait bounds the whole wait if it is not 0.
	MaxWait time.Duration
	// Stop ends the wait when it is closed. It may be nil.
	Stop <-chan struct{}
}

// Observer follows an answer while it arrives. Its methods must not block.
type Observer interface {
	// ObserveLimits receives the limits that the endpoint states, once.
	ObserveLimits(stated StatedLimits)
	// ObserveBegin is called once, when the first part of the answer has arrived.
	ObserveBegin()
}

// ErrOwnMemory is wrapped by the failure of a request if this process had no memory for the answer. Such a failure says
// nothing about the endpoint.
var ErrOwnMemory = errors.New("no memory in this process")

// ErrNoSpace is wrapped, beside ErrOwnMemory, by the failure of a request whose answer was not received because it
// could not be stored. The run must stop, and ask again when there is space.
var ErrNoSpace = errors.New("no space to store the answer")

// ErrOwnStore is wrapped by the failure of a request that could not be made because the store could not be read. The
// run must stop, and ask again when the store works. Such a failure says nothing about the endpoint.
var ErrOwnStore = errors.New("the store could not be read")

// ErrOwnShortage is wrapped by the failure of a request that was not sent because this process or its machine had no
// socket for it. Such a request uses up no attempt, and the failure says nothing about the endpoint.
var ErrOwnShortage = errors.New("no socket in this process")

// StatedLimits are the limits that an endpoint states in an answer.
type StatedLimits struct {
	Requests, Tokens StatedLimit
}

// StatedLimit is the number of requests or tokens that an endpoint still accepts, and the time until it accepts more.
// Reset is 0 if the endpoint states no limit.
type StatedLimit struct {
	Remaining int64
	Reset     time.Duration
}
