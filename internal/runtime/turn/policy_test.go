package turn_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
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

// TestCheckOfAToolResultIsNotThatOfTheText cancels a Turn after the result of a tool that ends the Turn was checked.
// The text of the result is then that of the model, which no policy has checked yet.
func TestCheckOfAToolResultIsNotThatOfTheText(t *testing.T) {
	const canary = "canary-4711"
	for name, tc := range map[string]struct {
		policy   outputpolicy.Policy
		text     string
		result   string
		withheld bool
	}{
		"the text violates the policy": {
			outputpolicy.Policy{Expression: `!output.text.contains("canary")`, OnViolation: outputpolicy.Fail},
			"The code is " + canary, "It is closed.", true,
		},
		"the text complies with the policy": {
			outputpolicy.Policy{Expression: `!output.text.contains("canary")`, OnViolation: outputpolicy.Fail},
			"I close it.", "It is closed.", false,
		},
		"only a model can check the text": {
			outputpolicy.Policy{Prompt: "Give no codes.", OnViolation: outputpolicy.Fail}, "The code is " + canary, "It is closed.", true,
		},
		"the result violates the policy": {
			outputpolicy.Policy{Expression: `!output.text.contains("canary")`, OnViolation: outputpolicy.Fail},
			"I close it.", "The code is " + canary, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("p0", 1, answer{reply: calls(tc.text, call("c1", "close"))},
				says(`{"verdicts":[{"rule":"no-codes","violated":false,"reason":""}]}`))
			in := inTalk("uid", "Close it.", c)
			tc.policy.Name = "no-codes"
			in.Preparation = preparationOf(func(m *prepare.Input) { m.Profile.OutputPolicies = []outputpolicy.Policy{tc.policy} })
			last := named("close", tool.Destructive, saying(tc.result))
			last.EndsTurn = true
			in.Tools = []tool.Tool{last}
			j := &journaltest.Store{}
			mustRun(t, j, in)
			at := slices.Index(kinds(t, j), journal.OutputChecked) + 1
			if at == 0 {
				t.Fatal("the result of the tool was not checked")
			}
			in.Epoch, in.Cancel = 2, cancelled()
			result := mustRun(t, copyOf(t, j, &journaltest.Store{}, at), in)
			want := tc.text
			if tc.withheld {
				want = ""
			}
			if result.Stop != turn.StopCancelled || result.Text != want || result.Withheld != tc.withheld ||
				(len(result.Violations) > 0) != tc.withheld {
				t.Errorf("result %s with %q, withheld %t because of %+v; want %q", result.Stop, result.Text, result.Withheld,
					result.Violations, want)
			}
		})
	}
}

// TestRefusedResultOfATool checks that the result of a tool that a policy has refused as the answer reaches neither
// later Turns of the Session, nor judges and memories. The same applies to the arguments of the call, which may contain
// this result, and to the reason of the model that has checked it.
func TestRefusedResultOfATool(t *testing.T) {
	const canary = "canary-4711"
	closing := model.ToolCall{
		ID: "c2", Name: "close", Arguments: `{"text":"The code is ` + canary + `"}`, ProviderData: json.RawMessage(`{"signature":"s"}`),
	}
	reply := calls("I close it.", call("c1", "find"), closing)
	reply.ProviderData = &model.ProviderData{Format: "f", Text: "The code is " + canary, Lasting: true}
	c, _ := candidate("p0", 1, answer{reply: reply},
		says(`{"verdicts":[{"rule":"no-codes","violated":true,"reason":"It contains `+canary+`."}]}`),
		says("It is closed."), says(`{"verdicts":[{"rule":"no-codes","violated":false,"reason":""}]}`))
	in := inTalk("uid", "Close it.", c)
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Turn.Message = "Close it."
		m.Profile.OutputPolicies = []outputpolicy.Policy{
			{Name: "no-codes", Prompt: "Give no codes.", OnViolation: outputpolicy.Retry, MaxRetries: 1},
		}
	})
	last := named("close", tool.Destructive, saying("The code is "+canary))
	last.EndsTurn = true
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("found")), last}
	j := &journaltest.Store{}
	if result := mustRun(t, j, in); result.Stop != turn.StopCompleted || result.Text != "It is closed." {
		t.Fatalf("result %s with %q, want the second answer", result.Stop, result.Text)
	}
	const refused = "The result was not accepted as the answer."
	kept := model.ToolCall{ID: "c2", Name: "close", Arguments: "{}"}
	found := toolOutput(payloads[tool.Exposure](t, j, journal.ToolsExposed)[0].Nonce, "found")
	want := []model.Message{
		{Role: model.RoleUser, Content: "Close it."},
		{Role: model.RoleAssistant, Content: "I close it.", ToolCalls: []model.ToolCall{call("c1", "find"), kept}},
		{Role: model.RoleTool, Content: found, ToolCallID: "c1"},
		{Role: model.RoleTool, Content: refused, ToolCallID: "c2"},
		{Role: model.RoleAssistant, Content: "It is closed."},
	}
	if diff := cmp.Diff(want, history(t, j).Turns[0].Messages); diff != "" {
		t.Errorf("the messages for later Turns: -want +got:\n%s", diff)
	}
	subject, err := turn.Subject(t.Context(), j, "uid", nil)
	if err != nil {
		t.Fatal(err)
	}
	results := []judge.ToolResult{{Name: "find", Text: found}, {Name: "close", Text: refused}}
	if diff := cmp.Diff(results, subject.Tools); diff != "" {
		t.Errorf("the results for judges: -want +got:\n%s", diff)
	}
	recording, err := turn.ReadRecording(t.Context(), j.Read(t.Context(), "uid", 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(results, recording.Subject.Tools); diff != "" {
		t.Errorf("the results for the judges of a replay: -want +got:\n%s", diff)
	}
}

// TestRefusedResultIsNoArtifact checks that the model cannot read a long result that a policy has refused as the
// answer: the page would be another result, which is kept in the history. The same applies to a run that continues.
func TestRefusedResultIsNoArtifact(t *testing.T) {
	const refused = `error (invalid_arguments): name: there is no artifact "call-1-2": use one of call-1-1`
	find := named("find", tool.ReadOnly, saying(long))
	last := named("close", tool.Destructive, saying(long+long))
	last.EndsTurn = true
	ask := answer{reply: calls("", model.ToolCall{ID: "c3", Name: "read_artifact", Arguments: `{"name":"call-1-2"}`})}
	verdict := func(violated bool) answer {
		return says(fmt.Sprintf(`{"verdicts":[{"rule":"short","violated":%t,"reason":""}]}`, violated))
	}
	c, s := candidate("p0", 1, answer{reply: calls("", call("c1", "find"), call("c2", "close"))}, verdict(true), ask, says("Closed."),
		verdict(false))
	in := inTalk("uid", "Close it.", c)
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Profile.OutputPolicies = []outputpolicy.Policy{
			{Name: "short", Prompt: "Be short.", OnViolation: outputpolicy.Retry, MaxRetries: 1},
		}
	})
	in.Tools = []tool.Tool{find, last}
	j := &journaltest.Store{}
	check := func(j journal.Journal, in turn.Input, s *script) {
		t.Helper()
		result := mustRun(t, j, in)
		messages := s.requests[len(s.requests)-2].Messages
		if got := messages[len(messages)-1].Content; result.Text != "Closed." || got != refused {
			t.Errorf("run %d ends with %q after the model has read %q, want %q", in.Epoch, result.Text, got, refused)
		}
	}
	check(j, in, s)
	at := slices.Index(kinds(t, j), journal.OutputRejected) + 1
	in.Chain[0], s = candidate("p0", 1, ask, says("Closed."), verdict(false))
	in.Epoch = 2
	check(copyOf(t, j, &journaltest.Store{}, at), in, s)
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
