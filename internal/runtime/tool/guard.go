package tool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// ErrNoResult is the error of a call whose adapter has ended its goroutine. Nobody knows what became of the call. Whoever
// gives an adapter a goroutine of its own returns it.
var ErrNoResult = &Error{Class: Failed, Message: "the tool ended without a result"}

// Guarded makes a call within the time that its tool has, and makes a panic of its adapter an error of that call. A call that
// takes longer has the class Timeout, while the time of ctx is not over.
func Guarded(ctx context.Context, t *Tool, c Call) (result Result, err error) {
	timeout := t.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if recover() != nil {
			err = &Error{Class: Failed, Message: "the tool failed within Capstan, which is a bug: the turn's journal has the stack", Err: panicked(debug.Stack())}
		}
	}()
	result, err = t.Caller.Call(bounded, c)
	if err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && !isPending(err) {
		err = timedOut(timeout, err)
	}
	return result, err
}

func timedOut(after time.Duration, err error) *Error {
	return &Error{Class: Timeout, Message: fmt.Sprintf("the tool gave no result within %s", after), Err: err}
}

func isPending(err error) bool {
	_, waits := errors.AsType[*Pending](err)
	return waits
}

// IsUncertain says whether an error leaves open how far a call has got: the adapter has not said what became of it.
func IsUncertain(err error) bool {
	_, classified := errors.AsType[*Error](err)
	return !classified || StackOf(err) != "" || errors.Is(err, ErrNoResult)
}

// StackOf is where an adapter panicked; empty if it did not.
func StackOf(err error) string {
	stack, _ := errors.AsType[panicked](err)
	return string(stack)
}

// panicked is the stack of an adapter that panicked. What it panicked with may hold a secret and is not kept.
type panicked string

// Error says that there was a panic.
func (panicked) Error() string { return "panic in an adapter" }
