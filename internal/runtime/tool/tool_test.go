package tool_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func TestRepeatable(t *testing.T) {
	for effect, want := range map[tool.Effect]bool{
		tool.ReadOnly: true, tool.Idempotent: true, tool.Destructive: false, "": false, "readonly": false, "Unheard": false,
	} {
		if got := effect.Repeatable(); got != want {
			t.Errorf("%q is repeatable: %t, want %t: an unknown effect may do harm", effect, got, want)
		}
	}
}

func TestAsError(t *testing.T) {
	cause := errors.New("connection refused")
	classified := &tool.Error{Class: tool.Unavailable, Message: "it is away", Err: cause}
	for name, tc := range map[string]struct {
		err  error
		want tool.Error
		text string
	}{
		"classified": {classified, *classified, "it is away"},
		"wrapped":    {fmt.Errorf("call: %w", classified), *classified, "it is away"},
		"other": {
			cause,
			tool.Error{Class: tool.Failed, Message: "the tool failed", RemoteMessage: "connection refused", Err: cause},
			"the tool failed: connection refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := tool.AsError(tc.err)
			if *got != tc.want || !errors.Is(got, cause) || got.Error() != tc.text {
				t.Errorf("AsError = %+v (%s), want %+v (%s) with its cause", *got, got, tc.want, tc.text)
			}
		})
	}
}
