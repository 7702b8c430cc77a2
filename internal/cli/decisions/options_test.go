package decisions

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// TestOnlyATerminalConfirms checks that the confirmation of a decision is never read from a file or a pipe.
func TestOnlyATerminalConfirms(t *testing.T) {
	t.Parallel()
	turn := &v1alpha1.Turn{}
	turn.Status.PendingApprovals = []v1alpha1.PendingApproval{{CallID: "call_1"}}
	for name, d := range map[string]*Options{"the only call": {}, "--call": {Call: "call_1"}, "--all": {All: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.Env = terminal.Environment{In: strings.NewReader("y\n")}
			const want = "there is no terminal at which to ask"
			if calls, err := d.selected(turn); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("without a terminal: selected = %v, %v, want an error with %q", calls, err, want)
			}
			d.Env.InIsTerminal, d.Env.ErrIsTerminal = true, true
			if calls, err := d.selected(turn); err != nil || len(calls) != 1 {
				t.Errorf("at a terminal: selected = %v, %v, want the call", calls, err)
			}
			d.Env.InIsTerminal, d.Yes = false, true
			if calls, err := d.selected(turn); err != nil || len(calls) != 1 {
				t.Errorf("with -y: selected = %v, %v, want the call", calls, err)
			}
		})
	}
}
