package loop

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestLongArgumentsAndAnswersTakeTurns checks that the checks of long arguments and of long answers wait while another
// namespace uses the processor, and that the checks of short ones do not.
func TestLongArgumentsAndAnswersTakeTurns(t *testing.T) {
	output, err := schema.Compile(json.RawMessage(`{"type":"object"}`))
	if err != nil {
		t.Fatal(err)
	}
	checkGates(viewWith(t)) // compiles the schema of the tool
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"short": {`{"n":1}`, false},
		"long":  {`{"n":1,"x":"` + strings.Repeat("x", 16<<10) + `"}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fairgatetest.Waits(t, func(ctx context.Context) {
				validArguments(viewWith(t, func(v *view) { v.ctx, v.call.Arguments = ctx, tc.text }))
			}); got != tc.want {
				t.Errorf("the check of arguments waits: %t, want %t", got, tc.want)
			}
			if got := fairgatetest.Waits(t, func(ctx context.Context) { violations(ctx, output, tc.text) }); got != tc.want {
				t.Errorf("the check of an answer waits: %t, want %t", got, tc.want)
			}
			if got := fairgatetest.Waits(t, func(ctx context.Context) { sendableArguments(ctx, tc.text) }); got != tc.want {
				t.Errorf("the check of earlier arguments waits: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestSourcesOfLargeResultsTakeTurns checks that the search for sources in a large result waits while another namespace
// uses the processor, and that the search in a short result does not.
func TestSourcesOfLargeResultsTakeTurns(t *testing.T) {
	const page = `[{"title":"Returns","url":"https://shop.example/returns"}`
	for name, tc := range map[string]struct {
		role   tool.Role
		result tool.Result
		want   bool
	}{
		"short":                  {tool.WebSearch, tool.Result{Content: page + "]"}, false},
		"web":                    {tool.WebSearch, tool.Result{Content: page + strings.Repeat(",1", 8<<10) + "]"}, true},
		"local, structured":      {tool.LocalSearch, tool.Result{Structured: page + strings.Repeat(",1", 8<<10) + "]"}, true},
		"a tool without sources": {"", tool.Result{Content: page + strings.Repeat(",1", 8<<10) + "]"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := resultBuilder{role: tc.role}
			if got := fairgatetest.Waits(t, func(ctx context.Context) { b.findSources(ctx, tc.result) }); got != tc.want {
				t.Errorf("the search for sources waits: %t, want %t", got, tc.want)
			}
			if found := len(b.Pages) + len(b.Documents); found != 1 && tc.role != "" {
				t.Errorf("%d sources were found, want 1", found)
			}
		})
	}
}
