package turn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestOutputPolicy checks the result and the history of a Turn whose answer violates a policy.
func TestOutputPolicy(t *testing.T) {
	const canary = "canary-4711"
	cutOff := says("The code is " + canary)
	cutOff.reply.FinishReason = model.FinishLength
	rule := func(a outputpolicy.Action) outputpolicy.Policy {
		return outputpolicy.Policy{
			Name: "no-codes", Expression: `!output.text.contains("canary")`, Message: "Give no codes.", OnViolation: a, MaxRetries: 1,
		}
	}
	violation := func(a outputpolicy.Action) []turn.PolicyViolation {
		return []turn.PolicyViolation{{Policy: "no-codes", OnViolation: a, Rule: "Give no codes."}}
	}
	for name, tc := range map[string]struct {
		reason     string
		policy     outputpolicy.Policy
		answers    []answer
		stop       turn.Stop
		text       string
		withheld   bool
		violations []turn.PolicyViolation
		later      []string
	}{
		"fail": {
			"neither the result nor later Turns have the answer", rule(outputpolicy.Fail),
			[]answer{says("The code is " + canary)},
			turn.StopOutputPolicy, "", true, violation(outputpolicy.Fail), nil,
		},
		"report": {
			"the answer is delivered", rule(outputpolicy.Report),
			[]answer{says("The code is " + canary)},
			turn.StopCompleted, "The code is " + canary, false, violation(outputpolicy.Report),
			[]string{"user: Tell.", "assistant: The code is " + canary},
		},
		"retry": {
			"the rejected draft is not kept", rule(outputpolicy.Retry),
			[]answer{says("The code is " + canary), says("I cannot tell.")},
			turn.StopCompleted, "I cannot tell.", false, nil,
			[]string{"user: Tell.", "assistant: I cannot tell."},
		},
		"cut off": {
			"a part of an answer is checked, too", rule(outputpolicy.Fail),
			[]answer{cutOff},
			turn.StopMaxOutputTokens, "", true, violation(outputpolicy.Fail), nil,
		},
		"the model fails after a draft": {
			"the rejected draft does not become the text", rule(outputpolicy.Retry),
			[]answer{says("The code is " + canary), {err: &model.Error{Kind: model.Auth, Message: "no"}}},
			turn.StopModelError, "", true, violation(outputpolicy.Retry), nil,
		},
		"a part that no model has checked": {
			"it is not known whether the answer follows the rule",
			outputpolicy.Policy{Name: "no-codes", Prompt: "Give no codes.", OnViolation: outputpolicy.Fail},
			[]answer{cutOff},
			turn.StopMaxOutputTokens, "", true,
			[]turn.PolicyViolation{{Policy: "no-codes", OnViolation: outputpolicy.Fail, Unchecked: true, Rule: "Give no codes."}},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("p0", 1, tc.answers...)
			in := inTalk("uid", "Tell.", c)
			in.Preparation = preparationOf(func(m *prepare.Input) {
				m.Turn.Message = "Tell."
				m.Profile.OutputPolicies = []outputpolicy.Policy{tc.policy}
			})
			j := &journaltest.Store{}
			result := mustRun(t, j, in)
			if result.Stop != tc.stop || result.Text != tc.text || result.Withheld != tc.withheld {
				t.Errorf("result %s with %q, withheld %t; want %s with %q: %s", result.Stop, result.Text, result.Withheld,
					tc.stop, tc.text, tc.reason)
			}
			if diff := cmp.Diff(tc.violations, result.Violations); diff != "" {
				t.Errorf("violations: -want +got:\n%s", diff)
			}
			var later []string
			for _, m := range history(t, j).Turns[0].Messages {
				later = append(later, fmt.Sprintf("%s: %s", m.Role, m.Content))
			}
			if diff := cmp.Diff(tc.later, later); diff != "" {
				t.Errorf("the messages for later Turns: -want +got:\n%s", diff)
			}
			if tc.text == "" && strings.Contains(fmt.Sprintf("%+v", result), canary) {
				t.Errorf("the result has the withheld text: %+v", result)
			}
			in.Epoch, in.Preparation = 2, mustNotPrepare(t)
			asked := s.asked()
			end := len(entries(t, j, "uid")) - 1 // without the end of the Turn
			again := mustRun(t, copyOf(t, j, &journaltest.Store{}, end), in)
			if again.Stop != tc.stop || again.Text != tc.text || again.Withheld != tc.withheld || tc.stop != turn.StopModelError &&
				s.asked() != asked {
				t.Errorf("a run that continues after the check ends with %s and %q after %d more requests, want the same", again.Stop,
					again.Text,
					s.asked()-asked)
			}
		})
	}
}

// TestInvalidOutputPolicy checks that a Turn whose profile has an invalid expression ends before a model is asked.
func TestInvalidOutputPolicy(t *testing.T) {
	c, s := candidate("p0", 1, says("never"))
	in := inTalk("uid", "Tell.", c)
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Profile.OutputPolicies = []outputpolicy.Policy{{Name: "p", Expression: "output.txt == ''", OnViolation: outputpolicy.Fail}}
	})
	result := mustRun(t, &journaltest.Store{}, in)
	if want := "PromptProfile spec.outputPolicy[0].expression:1:7: undefined field 'txt'"; result.Stop != turn.StopPreparationError ||
		result.Message != want || s.asked() != 0 {
		t.Errorf("result %s, %q after %d requests; want %q", result.Stop, result.Message, s.asked(), want)
	}
}

// TestUsageOfAPolicyCheck checks that the request for a verdict counts in the usage of the Turn.
func TestUsageOfAPolicyCheck(t *testing.T) {
	c, _ := candidate("p0", 1, says("Good day."), says(`{"verdicts":[{"rule":"polite","violated":false,"reason":""}]}`))
	in := inTalk("uid", "Tell.", c)
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Profile.OutputPolicies = []outputpolicy.Policy{{Name: "polite", Prompt: "Be polite.", OnViolation: outputpolicy.Fail}}
	})
	result := mustRun(t, &journaltest.Store{}, in)
	one := says("").reply.Usage
	if want := one.Add(one); result.Record.Usage != want || result.Counts.ModelRequests != 2 || result.Counts.Steps != 1 {
		t.Errorf("usage %+v with %+v, want %+v for two requests of one step", result.Record.Usage, result.Counts, want)
	}
}
