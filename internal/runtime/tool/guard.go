package tool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// ErrNoResult is the error of a call whose adapter ended its goroutine without a result, so the outcome of the call is
// unknown. Code that runs an adapter in a separate goroutine returns this error.
var ErrNoResult = &Error{Class: Failed, Message: "the tool ended without a result"}

// Guarded makes a call within the time-out of its tool, and turns a panic of its adapter into an error. A call that
// exceeds the time-out fails with the class Timeout, unless ctx has ended first. If the call must not be repeated, an
// error of the class Unavailable is kept, because it says that the call was not made.
func Guarded(ctx context.Context, t *Tool, c Call) (result Result, err error) {
	timeout := t.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if recover() != nil {
			err = &Error{
				Class: Failed, Message: "the tool failed because of a bug in Capstan: the turn's journal has the stack",
				Err: panicked(debug.Stack()),
			}
		}
	}()
	result, err = t.Caller.Call(bounded, c)
	notMade := err != nil && !c.Repeatable && AsError(err).Class == Unavailable
	if err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && !isPending(err) && !notMade {
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

// IsUncertain reports whether an error leaves the outcome of the call unknown whatever its class is: the adapter did
// not classify the error, panicked, ended its goroutine without a result (ErrNoResult), or set MayHaveActed.
func IsUncertain(err error) bool {
	e, classified := errors.AsType[*Error](err)
	return !classified || e.MayHaveActed || StackOf(err) != "" || errors.Is(err, ErrNoResult)
}

// StackOf returns the stack of a panic in an adapter, or an empty string if there was no panic.
func StackOf(err error) string {
	stack, _ := errors.AsType[panicked](err)
	return string(stack)
}

// panicked is the stack of an adapter that panicked. The value of the panic is not kept, because it may contain a
// secret.
type panicked string

// Error returns a fixed text.
func (panicked) Error() string { return "panic in an adapter" }
