package tool_test

import (
	"errors"
	"fmt"
	"strings"
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

// TestMapKeepsPartsOfResult checks that the parts of a result stay separate if only one of them changes.
func TestMapKeepsPartsOfResult(t *testing.T) {
	redact := strings.NewReplacer("secret", "x", "a\nb", "x").Replace
	for name, tc := range map[string]struct{ in, want tool.Result }{
		"nothing":    {tool.Result{}, tool.Result{}},
		"text":       {tool.Result{Content: "a secret"}, tool.Result{Content: "a x"}},
		"no change":  {tool.Result{Content: "1", Structured: "2"}, tool.Result{Content: "1", Structured: "2"}},
		"content":    {tool.Result{Content: "secret", Structured: "2"}, tool.Result{Content: "x", Structured: "2"}},
		"structured": {tool.Result{Content: "1", Structured: "secret"}, tool.Result{Content: "1", Structured: "x"}},
		"both":       {tool.Result{Content: "secret", Structured: "secret"}, tool.Result{Content: "x\nx"}},
		"split":      {tool.Result{Content: "a", Structured: "b"}, tool.Result{Content: "x"}},
	} {
		if got := tc.in.Map(redact); got != tc.want {
			t.Errorf("%s: Map = %+v, want %+v", name, got, tc.want)
		}
	}
}
