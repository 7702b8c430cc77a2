package turn_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// stepsOf runs a Turn in a Session, with an output policy that has the given action. The finalizing step with the given
// name calls fail first. stepsOf returns the result, and the names of all finalizing steps in order.
func stepsOf(
	t *testing.T, j journal.Journal, action outputpolicy.Action, name string, fail func() error,
) (*turn.Result, []string) {
	t.Helper()
	c, _ := candidate("p0", 1, says("Nothing."))
	in := inTalk("uid", "What is new?", c)
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Profile.OutputPolicies = []outputpolicy.Policy{{
			Name: "short", Expression: "size(output.text) < 100", OnViolation: action,
		}}
	})
	in.AppendCitations = true
	e := engine(j)
	var names []string
	e.Finalizing = func(step string) error {
		if names = append(names, step); step == name {
			return fail()
		}
		return nil
	}
	result, err := e.Run(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	return result, names
}

// TestStepsThatFinalize checks that a step that fails or panics leaves out only its own part of the result, and that
// the result names the step. The answer is withheld only if its policies could not be checked.
func TestStepsThatFinalize(t *testing.T) {
	whole, names := stepsOf(t, &journaltest.Store{}, outputpolicy.Fail, "", nil)
	if len(whole.Record.Failures) > 0 || whole.Session == nil || len(names) < 10 || !strings.Contains(whole.Text, "notes/a.md") {
		t.Fatalf("without a fault, the result is %+v after the steps %q", whole, names)
	}
	for _, step := range names {
		for how, fail := range map[string]func() error{
			"fails":  func() error { return errors.New("out of order") },
			"panics": func() error { panic("a part of the conversation") },
		} {
			t.Run(step+" "+how, func(t *testing.T) {
				j := &journaltest.Store{}
				got, all := stepsOf(t, j, outputpolicy.Fail, step, fail)
				if diff := cmp.Diff(names, all); diff != "" {
					t.Errorf("the steps: -want +got:\n%s", diff)
				}
				if f := got.Record.Failures; len(f) != 1 || !strings.HasPrefix(f[0], step+": ") || strings.Contains(f[0], "conversation") {
					t.Errorf("the failures are %q, want one of step %q without the value of the panic", f, step)
				}
				if got.Stop != turn.StopCompleted || got.Message != whole.Message {
					t.Errorf("the Turn ended with %s: %s", got.Stop, got.Message)
				}
				want := *whole
				want.Record.Failures = got.Record.Failures
				switch step {
				case "citations":
					want.Record.Citations, want.Text, want.SourcesBytes = nil, "Nothing.", 0
				case "policies":
					want.Text, want.SourcesBytes, want.Withheld = "", 0, true
				case "sources":
					want.Text, want.SourcesBytes = "Nothing.", 0
				case "requests", "usage":
					want.Record.Usage.InputTokens, want.Record.Usage.OutputTokens = 0, 0
				case "decision":
					want.Record.Decision = nil
				case "session history":
					want.Session = nil
				}
				if step != "session history" {
					if n := len(history(t, j).Turns[0].Messages); (n == 0) != (step == "policies") {
						t.Errorf("later Turns receive %d messages, want none if the answer is withheld", n)
					}
				}
				if step == "requests" || step == "cost" {
					want.Record.Cost = nil
				}
				if step != "session history" { // its totals depend on the usage and the cost
					want.Session = got.Session
				}
				if diff := cmp.Diff(&want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		}
	}
}

// TestAReportThatFailsWithholdsNothing checks that an answer is not withheld for policies that never withhold one.
func TestAReportThatFailsWithholdsNothing(t *testing.T) {
	j := &journaltest.Store{}
	got, _ := stepsOf(t, j, outputpolicy.Report, "policies", func() error { return errors.New("out of order") })
	if f := got.Record.Failures; len(f) != 1 || got.Withheld || !strings.HasPrefix(got.Text, "Nothing.") {
		t.Errorf("the text is %q, withheld %t, with the failures %q; want the answer and one failure", got.Text, got.Withheld, f)
	}
	if n := len(history(t, j).Turns[0].Messages); n == 0 {
		t.Error("later Turns do not receive the answer")
	}
}
