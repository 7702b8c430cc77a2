package localrun

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/translate"
)

// longestSource is the maximum number of characters shown of a source's name.
const longestSource = 512

// report prints the outcome of a Turn, and returns an error if the Turn did not succeed. The result is nil if the
// Turn did not run.
func (r *Options) report(p *bundle.Bundle, t *v1alpha1.Turn, result *turn.Result) error {
	text, err := r.answer(t, result)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if err := r.Env.PrintPaid(text); err != nil {
		return err
	}
	if result != nil {
		r.remarks(t, result)
	}
	return r.verdict(p, t)
}

// answer returns the text for standard output.
func (r *Options) answer(t *v1alpha1.Turn, result *turn.Result) (string, error) {
	if r.Output != output.Text {
		return output.Encode(t, r.Output)
	}
	if result == nil || result.Text == "" {
		return "", nil
	}
	text := r.Env.ForScreen(result.Text)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text, nil
}

// remarks prints facts about the Turn for a person, such as its usage and the sources of the answer. Programs find
// these facts in the Turn.
func (r *Options) remarks(t *v1alpha1.Turn, result *turn.Result) {
	if r.Output != output.Text {
		return
	}
	if f := result.Fallback; f != nil {
		r.Env.Logf("%s", f)
	}
	if r.continued {
		r.Env.Logf("The Turn continued from its journal.")
	}
	for i := range result.Violations {
		r.Env.Logf("%s", violation(&result.Violations[i]))
	}
	if result.Withheld {
		r.Env.Logf("The text of the model is withheld; capstan logs shows it.")
	}
	r.Env.Logf("%s", translate.Summary(t))
	if t.Status.Result != nil && t.Status.Result.Citations != nil {
		sources := make([]string, 0, len(t.Status.Result.Citations.Local))
		for _, s := range t.Status.Result.Citations.Local {
			sources = append(sources, termsafe.Line(s, longestSource))
		}
		for _, p := range t.Status.Result.Citations.Web {
			sources = append(sources, termsafe.Line(p.URL, longestSource))
		}
		r.Env.Logf("Sources: %s", strings.Join(sources, ", "))
	}
}

// violation returns one line about an output policy that the answer violates.
func violation(v *turn.PolicyViolation) string {
	finding := "The answer violates"
	if v.Unchecked {
		finding = "The answer could not be checked against"
	}
	return fmt.Sprintf("%s the output policy %s (%s): %s", finding, termsafe.Line(v.Policy, longestSource), v.OnViolation,
		termsafe.Line(v.Rule, longestSource))
}

// verdict returns an error if the Turn did not succeed.
func (r *Options) verdict(p *bundle.Bundle, t *v1alpha1.Turn) error {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	if c != nil && c.Status == metav1.ConditionTrue {
		return nil
	}
	if c == nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("%s has no result", p.Title()))
	}
	if c.Status == metav1.ConditionUnknown && c.Reason != v1alpha1.TurnReasonSuspended {
		return exit.WithCode(exit.Parked, fmt.Errorf("%s: %s: %w", p.Title(), c.Reason, r.undecidedError()))
	}
	cause := errors.New(c.Message)
	if c.Reason == v1alpha1.TurnReasonPreparationFailed {
		cause = p.Located(c.Message)
	}
	code := exit.Failed
	if t.Status.StopReason == v1alpha1.StopCancelled && t.Spec.DesiredState != v1alpha1.DesiredStateCancelled && r.DataDir == "" {
		// Without a journal, only Ctrl-C cancels a Turn whose desired state is Active. With a journal, Ctrl-C ends no
		// Turn, and an earlier run may have cancelled it.
		code, cause = exit.Interrupted, fmt.Errorf("interrupted: %w", cause)
	}
	return exit.WithCode(code, fmt.Errorf("%s: %s: %w", p.Title(), c.Reason, cause))
}
