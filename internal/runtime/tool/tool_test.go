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
func TestDataOfResult(t *testing.T) {
	for _, tc := range []struct{ text, structured, want string }{
		{"Saved.", `{"id":7}`, `{"id":7}`},
		{"", `{"id":7}`, `{"id":7}`},
		{"Saved.", "", "Saved."},
		{"42", `{"id":7}`, "42"},
		{`"T-7"`, `{"id":7}`, `"T-7"`},
		{" true\n", `{"id":7}`, " true\n"},
		{`[1]`, `{"id":7}`, `[1]`},
	} {
		if got := (tool.Result{Content: tc.text, Structured: tc.structured}).Data(); got != tc.want {
			t.Errorf("the data of %q and %q is %q, want %q", tc.text, tc.structured, got, tc.want)
		}
	}
	if got := (tool.Result{Content: `{"id":9}`, Structured: `{"id":7}`, ContentIsExtra: true}).Data(); got != `{"id":7}` {
		t.Errorf("the data of a result with extra content is %q, want the structured content", got)
	}
}

func TestSplit(t *testing.T) {
	for whole, want := range map[string]tool.Result{
		"2 results\n{\"a\":1}": {Content: "2 results", Structured: `{"a":1}`}, "a\n[1]": {Content: "a", Structured: "[1]"},
		`{"a":1}`: {Content: `{"a":1}`}, "\n{}": {Content: "\n{}"}, "a\n1": {Content: "a\n1"}, "a\n{": {Content: "a\n{"},
		"": {}, "a\n": {Content: "a\n"},
	} {
		if got := tool.Split(whole); got != want || got.Whole() != whole {
			t.Errorf("Split(%q) = %+v, want %+v", whole, got, want)
		}
	}
}

func TestMapKeepsPartsOfResult(t *testing.T) {
	redact := strings.NewReplacer("secret", "x", "a\nb", "x").Replace
	for name, tc := range map[string]struct{ in, want tool.Result }{
		"nothing":    {tool.Result{}, tool.Result{}},
		"text":       {tool.Result{Content: "a secret"}, tool.Result{Content: "a x"}},
		"no change":  {tool.Result{Content: "1", Structured: "2"}, tool.Result{Content: "1", Structured: "2"}},
		"content":    {tool.Result{Content: "secret", Structured: "2"}, tool.Result{Content: "x", Structured: "2"}},
		"structured": {tool.Result{Content: "1", Structured: "secret"}, tool.Result{Content: "1", Structured: "x"}},
		"both":       {tool.Result{Content: "secret", Structured: "secret"}, tool.Result{Content: "x\nx"}},
		"both, JSON": {
			tool.Result{Content: "by secret", Structured: `{"id":7,"by":"secret"}`},
			tool.Result{Content: "by x", Structured: `{"id":7,"by":"x"}`},
		},
		"split": {tool.Result{Content: "a", Structured: "b"}, tool.Result{Content: "x"}},
	} {
		if got := tc.in.Map(redact); got != tc.want {
			t.Errorf("%s: Map = %+v, want %+v", name, got, tc.want)
		}
	}
}
