// Package exit defines the exit codes of the program, and errors that have one.
package exit

import (
	"context"
	"errors"
)

// The exit codes of the program.
const (
	// OK: the Turn succeeded, or was prepared.
	OK = 0
	// Failed: the Turn did not succeed, or could not be prepared.
	Failed = 1
	// Usage: the flags are invalid, or manifests cannot be read or are invalid.
	Usage = 2
	// Parked: the Turn requires an approval, and there is no terminal at which to ask a person.
	Parked = 3
	// Differs: render --diff found a difference. With --diff, usage errors exit with Failed instead of Usage, so
	// that 2 always means a difference.
	Differs = 2
	// Interrupted: the program received a signal, see Watch.
	Interrupted = 130
)

// Error is an error with its exit code. Errors of other types are about the command line, and have the code Usage.
type Error struct {
	// Code is the exit code.
	Code int
	err  error
}

// Error returns the message of the cause.
func (f *Error) Error() string { return f.err.Error() }

// Unwrap returns the cause.
func (f *Error) Unwrap() error { return f.err }

// WithCode returns an error with an exit code. The message is that of err.
func WithCode(code int, err error) error { return &Error{Code: code, err: err} }

// InterruptedOr returns err. If err is not nil and ctx has ended, it returns an error "interrupted" instead.
func InterruptedOr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return WithCode(Interrupted, errors.New("interrupted"))
	}
	return err
}
