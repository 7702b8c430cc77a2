package outputpolicy_test

import (
	"context"
	"testing"

	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
)

// TestExpressionsTakeTurns checks that the evaluation of a policy waits while another namespace uses the processor.
func TestExpressionsTakeTurns(t *testing.T) {
	p := outputpolicy.Policy{Expression: "size(output.text) == 2"}
	if !fairgatetest.Waits(t, func(ctx context.Context) {
		if holds, why := p.Holds(ctx, &outputpolicy.Output{Text: "ok"}); !holds {
			t.Errorf("the policy does not hold: %s", why)
		}
	}) {
		t.Error("Holds does not wait for its turn")
	}
}
