package finalize

import (
	"fmt"
	"runtime"
	"strings"
)

// Steps runs the steps of the finalization of a Turn, such as the citations. They are not the steps of the loop, which
// are replies of models. A step that fails or panics does not fail the Turn: Failures names it, and the next step runs.
// The zero value is ready to use.
type Steps struct {
	// Before is called before each step with its name. It may be nil. The step fails if Before returns an error or
	// panics.
	Before func(step string) error
	// Failures are the steps that failed, with their reasons.
	Failures []string
}

// Do runs a step, and reports whether it succeeded. The changes that a failed step has already made stay.
func (s *Steps) Do(name string, step func() error) (ok bool) {
	err := Guard(func() error {
		if s.Before != nil {
			if err := s.Before(name); err != nil {
				return err
			}
		}
		return step()
	})
	if err != nil {
		s.Failures = append(s.Failures, name+": "+err.Error())
	}
	return err == nil
}

// Guard calls a function, and returns a panic as an error. The error says where the panic happened. It does not contain
// the value of the panic, which may contain a part of the conversation.
func Guard(do func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("a bug in Capstan, in %s", panicPosition())
		}
	}()
	return do()
}

// panicPosition returns the function and the line that panicked. It must be called by the function that recovers.
func panicPosition() string {
	callers := make([]uintptr, 16)
	// Skip runtime.Callers, this function, the function that recovers, and runtime.gopanic.
	frames := runtime.CallersFrames(callers[:runtime.Callers(4, callers)])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") || !more {
			return fmt.Sprintf("%s, line %d", f.Function[strings.LastIndex(f.Function, "/")+1:], f.Line)
		}
	}
}
