package loop

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestAwaitWithoutTimeLeft lets the time run out between the plan and the request for approval. The Turn must not be
// parked, because no request exists whose decision could wake it. The call must be refused instead.
func TestAwaitWithoutTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*leastTime)
		defer cancel()
		in := runner{Input: &Input{
			Config: Config{Limits: Limits{MaxToolCalls: 5}}, State: &State{}, Now: time.Now,
			Tools: func() []tool.Tool { return []tool.Tool{{Tool: prompt.Tool{Name: "send"}, RequiresApproval: true}} },
			Record: func(records ...journal.Record) error {
				t.Errorf("awaitApproval recorded %+v, want no request for approval", records)
				return nil
			},
		}}
		open := []openCall{{model.ToolCall{ID: "c", Name: "send", Arguments: "{}"}, 1}}
		if p := in.plan(ctx, 1, open); len(p.records)+len(p.wave) != 0 {
			t.Fatalf("with time left, the plan has %d records and %d calls, want a wait for approval", len(p.records), len(p.wave))
		}
		time.Sleep(leastTime + leastTime/2)
		if err := in.awaitApproval(ctx, 1, open); err != nil {
			t.Errorf("awaitApproval: %v, want the call to be planned again", err)
		}
		p := in.plan(ctx, 1, open)
		if len(p.records) != 1 || len(p.wave) != 0 {
			t.Fatalf("without time left, the plan has %d records and %d calls, want the refusal of the call", len(p.records), len(p.wave))
		}
		if r, ok := p.records[0].Payload.(CallResult); !ok || r.CallID != "c" || r.Outcome != Refused || r.Class != tool.Denied ||
			!strings.Contains(r.Content, "almost no time left") {
			t.Errorf("the plan records %+v, want the refusal of the call because of the time", p.records[0].Payload)
		}
	})
}
