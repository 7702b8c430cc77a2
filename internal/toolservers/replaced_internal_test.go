package toolservers

import (
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestOnlyCallsWithoutEffectAreMadeAgain checks after which errors a call is made again on the new connection of a
// server, and that the error of the second call does not hide that the first one may have taken effect. The client sets
// MayHaveActed only for calls that are safe to repeat.
func TestOnlyCallsWithoutEffectAreMadeAgain(t *testing.T) {
	notSent := &tool.Error{Class: tool.Unavailable, Err: fmt.Errorf("connect: %w", mcp.ErrClosed)}
	sentEarlier := &tool.Error{Class: tool.Unavailable, Err: mcp.ErrClosed, MayHaveActed: true}
	refused := &tool.Error{Class: tool.Failed, Message: "refused"}
	for name, tc := range map[string]struct {
		errs         []error // one for each call
		class        tool.Class
		mayHaveActed bool
	}{
		"success":                {errs: []error{nil}},
		"not sent":               {errs: []error{notSent, nil}},
		"not sent, refused":      {[]error{notSent, refused}, tool.Failed, false},
		"not sent twice":         {[]error{notSent, notSent}, tool.Unavailable, false},
		"sent earlier":           {errs: []error{sentEarlier, nil}},
		"sent earlier, refused":  {[]error{sentEarlier, refused}, tool.Failed, true},
		"sent earlier, not sent": {[]error{sentEarlier, notSent}, tool.Unavailable, true},
		"sent":                   {[]error{&tool.Error{Class: tool.OutcomeUnknown, Err: mcp.ErrClosed}}, tool.OutcomeUnknown, false},
		"another cause":          {[]error{&tool.Error{Class: tool.Unavailable}}, tool.Unavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			_, err := onReplacement(func() (tool.Result, error) {
				calls++
				return tool.Result{}, tc.errs[min(calls, len(tc.errs))-1]
			})
			if calls != len(tc.errs) {
				t.Errorf("the call is made %d times, want %d", calls, len(tc.errs))
			}
			if tc.class == "" {
				if err != nil {
					t.Errorf("the call returns %v, want success", err)
				}
				return
			}
			if got := tool.AsError(err); got.Class != tc.class || got.MayHaveActed != tc.mayHaveActed {
				t.Errorf("the call returns %+v, want %s that may have acted: %t", got, tc.class, tc.mayHaveActed)
			}
		})
	}
	if refused.MayHaveActed {
		t.Error("the error of the second call was changed, which others may read")
	}
}
