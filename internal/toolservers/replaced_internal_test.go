package toolservers

import (
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestOnlyCallsWithoutEffectAreMadeAgain checks after which errors a call is made again on the new connection of a
// server. The error of a second call would hide that the first one may have taken effect.
func TestOnlyCallsWithoutEffectAreMadeAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"success":                    {nil, false},
		"not sent":                   {&tool.Error{Class: tool.Unavailable, Err: fmt.Errorf("connect: %w", mcp.ErrClosed)}, true},
		"sent in an earlier session": {&tool.Error{Class: tool.Unavailable, Err: mcp.ErrClosed, MayHaveActed: true}, false},
		"sent":                       {&tool.Error{Class: tool.OutcomeUnknown, Err: mcp.ErrClosed}, false},
		"another cause":              {&tool.Error{Class: tool.Unavailable}, false},
	} {
		if got := wasReplaced(tc.err); got != tc.want {
			t.Errorf("%s: the call is made again: %t, want %t", name, got, tc.want)
		}
	}
}
