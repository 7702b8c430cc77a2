package tool_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestSchemasTakeTurns checks that the work on schemas that is long, or that is done for the first time, waits while
// another namespace uses the processor, and that other work does not.
func TestSchemasTakeTurns(t *testing.T) {
	var many []tool.Tool
	for i := range 20 {
		many = append(many, withSchema(fmt.Sprintf(`{"title":"%d","description":"%s"}`, i, strings.Repeat("x", 8<<10))))
		many[i].Name = fmt.Sprint("t", i)
	}
	for name, tc := range map[string]struct {
		tools       []tool.Tool
		first, next bool
	}{
		"short":      {[]tool.Tool{withSchema(`{"title":"of TestSchemasTakeTurns"}`)}, true, false},
		"long":       {[]tool.Tool{withSchema(`{"description":"` + strings.Repeat("x", 16<<10) + `"}`)}, true, true},
		"unusable":   {[]tool.Tool{withSchema(`{"title":"of TestSchemasTakeTurns","required":7}`)}, true, false},
		"no schemas": {bare("a", "b"), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for i, want := range []bool{tc.first, tc.next} {
				if got := fairgatetest.Waits(t, func(ctx context.Context) {
					tool.Expose(ctx, []tool.Offer{{Server: "s", Tools: tc.tools}}, nil)
				}); got != want {
					t.Errorf("call %d waits: %t, want %t", i+1, got, want)
				}
			}
		})
	}
	expose := func(ctx context.Context) { tool.Expose(ctx, []tool.Offer{{Server: "s", Tools: many}}, nil) }
	expose(t.Context())
	if !fairgatetest.Waits(t, expose) {
		t.Error("many short schemas that are known are decoded without a pause, want one after each 64 KiB")
	}
}
