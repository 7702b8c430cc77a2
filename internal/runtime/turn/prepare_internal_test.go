package turn

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// TestPreparationWork checks that a preparation that compiles expressions counts as large work, for which namespaces
// take turns.
func TestPreparationWork(t *testing.T) {
	in := prepare.Input{Turn: prepare.Turn{Message: "hello"}}
	in.Profile.OutputPolicies = []outputpolicy.Policy{{Prompt: "be polite"}}
	if got := preparationWork(&in); got >= fairgate.Large {
		t.Errorf("work of %d bytes without expressions, want no wait", got)
	}
	in.Profile.OutputPolicies = append(in.Profile.OutputPolicies, outputpolicy.Policy{Expression: "true"})
	if got := preparationWork(&in); got < fairgate.Large {
		t.Errorf("work of %d bytes with an expression, want a wait", got)
	}
}
