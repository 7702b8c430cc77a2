package loop

import (
	"context"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestAwaitWithoutTimeLeft lets the time run out between the plan and the request for approval. The Turn must not be
// parked, because no request exists whose decision could wake it.
func TestAwaitWithoutTimeLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	in := runner{Input: &Input{
		Config: Config{Limits: Limits{MaxToolCalls: 5}}, State: &State{}, Now: time.Now,
		Tools: func() []tool.Tool { return []tool.Tool{{Tool: prompt.Tool{Name: "send"}, RequiresApproval: true}} },
	}}
	open := []openCall{{model.ToolCall{ID: "c", Name: "send", Arguments: "{}"}, 1}}
	if err := in.awaitApproval(ctx, 1, open); err != nil {
		t.Errorf("awaitApproval: %v, want the call to be planned again", err)
	}
	if p := in.plan(ctx, 1, open); len(p.records) != 1 {
		t.Errorf("the plan has %d records, want the refusal of the call", len(p.records))
	}
}
