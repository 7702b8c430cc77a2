package undo

import (
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestANewTurnMayMakeAllCalls checks that the limits of the new Turn allow all calls of the plan.
func TestANewTurnMayMakeAllCalls(t *testing.T) {
	t.Parallel()
	for _, possible := range []int{1, 25, 26, turn.MaxUndoCalls} {
		plan := &turn.UndoPlan{Name: "first", Calls: make([]turn.UndoCall, turn.MaxUndoCalls+1)}
		for i := range plan.Calls {
			plan.Calls[i].State = turn.UndoImpossible
			if i < possible {
				plan.Calls[i].State = turn.UndoPossible
			}
		}
		limits := (&Options{}).newTurn(plan).Spec.Limits
		if n := v1alpha1.MaxToolCalls(limits, nil); n < possible {
			t.Errorf("a Turn that undoes %d calls may make %d", possible, n)
		}
		strict := &v1alpha1.Limits{MaxToolCalls: new(int32(2))}
		if n := v1alpha1.MaxToolCalls(limits, strict); n > 2 {
			t.Errorf("a Turn that undoes %d calls may make %d, want the Agent's limit of 2 to apply", possible, n)
		}
	}
}
