package loop_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// interruptedJournal returns the journal of an earlier run: a reply with a call, and the intent of that call without a
// result.
func interruptedJournal(t *testing.T, effect tool.Effect) journal.Journal {
	t.Helper()
	j := &journaltest.Store{}
	in := inputOf(t, j, 1)
	err := in.Record(
		journal.Record{Kind: journal.ModelRequested, Payload: loop.Request{Step: 1, Provider: "one", Model: "m", Attempt: 1, ID: "uid/1"}},
		journal.Record{
			Kind:    journal.ModelReplied,
			Payload: loop.Step{Step: 1, Provider: "one", Model: "m", Reply: asksFor("", call("c1", "find", `{"n":1}`)).reply},
		},
		journal.Record{Kind: journal.ToolIntended, Payload: loop.Intent{
			Step: 1, CallID: "c1", Name: "find", Arguments: json.RawMessage(`{"n":1}`), Effect: effect,
			IdempotencyKey: "uid/1/c1", Attempt: 1,
		}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestInterruptedCall(t *testing.T) {
	const unknown = "error (outcome_unknown): the outcome of this call is unknown: the run was interrupted during the call" +
		unknownSuffix
	for name, tc := range map[string]struct {
		reason          string
		effect, current tool.Effect // recorded effect and current effect
		limit           int
		gone            bool
		want            string
		keys            []string
		unknown         int
	}{
		"read-only": {
			"the call is repeated with the same key", tool.ReadOnly, tool.ReadOnly, 25, false, "found",
			[]string{"uid/1/c1"},
			0,
		},
		"idempotent":    {"an idempotent call is repeated", tool.Idempotent, tool.Idempotent, 25, false, "found", []string{"uid/1/c1"}, 0},
		"destructive":   {"a harmful call may have been made", tool.Destructive, tool.Destructive, 25, false, unknown, nil, 1},
		"now harmless":  {"the recorded effect counts", tool.Destructive, tool.ReadOnly, 25, false, unknown, nil, 1},
		"now harmful":   {"the current effect counts", tool.ReadOnly, tool.Destructive, 25, false, unknown, nil, 1},
		"not known now": {"an unknown effect counts as destructive", tool.Idempotent, "", 25, false, unknown, nil, 1},
		"at the limit":  {"a repeated call counts once", tool.ReadOnly, tool.ReadOnly, 1, false, "found", []string{"uid/1/c1"}, 0},
		"gone": {
			"a missing tool cannot be called", tool.ReadOnly, tool.ReadOnly, 25, true,
			`error (unavailable): there is no tool "find": no tools are available, so answer without tools`, nil, 0,
		},
		"gone, did harm": {"the missing tool may have been called before", tool.Destructive, tool.Destructive, 25, true, unknown, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, says("Done."))
			find, found := toolOf("find", tc.current, result{content: "found"})
			in := withTools(inputOf(t, interruptedJournal(t, tc.effect), 2, c), find)
			if tc.gone {
				in.Tools = nil
			}
			in.Limits.MaxToolCalls = tc.limit
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end.Reason != loop.Answered || len(s.requests) != 1 {
				t.Fatalf("Run = %+v, %v after %d requests; want the answer after one request", end, err, len(s.requests))
			}
			if diff := cmp.Diff([]string{`assistant:  [c1 find {"n":1}]`, "tool c1: " + tc.want}, transcript(s.requests[0])); diff != "" {
				t.Errorf("the model received: %s: -want +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.keys, found.keys()); diff != "" {
				t.Errorf("calls: %s: -want +got:\n%s", tc.reason, diff)
			}
			if calls, unknown := in.State.ToolCalls(), in.State.UnknownOutcomes(); calls != 1 || unknown != tc.unknown {
				t.Errorf("%d calls and %d unknown outcomes, want 1 and %d: %s", calls, unknown, tc.unknown, tc.reason)
			}
			if n := len(tc.keys); n > 0 && in.State.Intents[n].Attempt != 2 {
				t.Errorf("the second intent is %+v, want attempt 2", in.State.Intents[n])
			}
		})
	}
}

// TestChangedLimits checks that the limits of the current run apply, whatever limits applied before.
func TestChangedLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		steps  int
		answer answer
		want   loop.Reason
		last   bool
	}{
		"lowered": {"the next step is the last", 1, says("Done."), loop.OutOfSteps, true},
		"raised":  {"more steps are left", 9, says("Done."), loop.Answered, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, tc.answer)
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			in := withTools(inputOf(t, interruptedJournal(t, tool.ReadOnly), 2, c), find)
			in.Limits.MaxSteps = tc.steps
			end, err := loop.Run(t.Context(), &in)
			offered := len(s.requests[0].Offered())
			if err != nil || end.Reason != tc.want || in.State.LastStep().Last != tc.last || (offered == 0) != tc.last {
				t.Errorf("Run = %+v, %v, asked with %d tools; want %s: %s", end, err, offered, tc.want, tc.reason)
			}
		})
	}
}

// TestEndedLoopRunsAgain runs a loop again after it has ended.
func TestEndedLoopRunsAgain(t *testing.T) {
	j := &journaltest.Store{}
	c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says("Done."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	for epoch := range int64(3) {
		end, err := loop.Run(t.Context(), new(withTools(inputOf(t, j, epoch+1, c), find)))
		if err != nil || end.Reason != loop.Answered || len(s.requests) != 2 || len(found.calls) != 1 {
			t.Fatalf("Run = %+v, %v after %d requests and %d calls; want the answer of the first run", end, err,
				len(s.requests), len(found.calls))
		}
	}
}

// TestFallbackInTheSecondStep falls back to a second model for the second step. That model gets its own prompt and the
// whole conversation.
func TestFallbackInTheSecondStep(t *testing.T) {
	one, first := candidate("one", 1, asksFor("I look.", call("c1", "find", `{}`)), fails(model.Auth))
	two, second := candidate("two", 1, asksFor("", call("c2", "find", `{}`)), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, one, two), find)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.Answered || len(first.requests) != 2 || len(second.requests) != 2 {
		t.Fatalf("Run = %+v, %v after %d and %d requests; want the second model to go on to the end", end, err,
			len(first.requests), len(second.requests))
	}
	if second.prompt(0) != "for two" {
		t.Errorf("the second model got the prompt %q, want its own", second.prompt(0))
	}
	want := []string{"assistant: I look. [c1 find {}]", "tool c1: found"}
	if diff := cmp.Diff(want, transcript(second.requests[0])); diff != "" {
		t.Errorf("the first request to the second model: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(append(want, "assistant:  [c2 find {}]", "tool c2: found"), transcript(second.requests[1])); diff != "" {
		t.Errorf("the second request to the second model: -want +got:\n%s", diff)
	}
}

func TestStateOfInvalidEntries(t *testing.T) {
	for _, kind := range []journal.Kind{
		journal.ModelRequested, journal.ModelFailed, journal.ModelReplied,
		journal.ToolIntended, journal.ToolFinished,
	} {
		for _, payload := range []string{"", "null", "[]", `"x"`, `{"step":"one"}`, `{"step":1e99}`, "{}"} {
			s := &loop.State{}
			err := s.Apply(journal.Entry{Kind: kind, Payload: []byte(payload)})
			if ok := payload == "null" || payload == "{}"; (err == nil) != ok {
				t.Errorf("Apply(%s, %s): %v, want an error: %t", kind, payload, err, !ok)
			}
			_, _, _ = s.Messages(t.Context()), s.ToolCalls(), s.UnknownOutcomes()
		}
	}
}

// TestRequestsOfOldJournals folds requests that do not contain their step.
func TestRequestsOfOldJournals(t *testing.T) {
	j := &journaltest.Store{}
	old := func(attempt int) journal.Record {
		return journal.Record{Kind: journal.ModelRequested, Payload: map[string]any{"provider": "one", "model": "m", "attempt": attempt}}
	}
	err := inputOf(t, j, 1).Record(
		old(1),
		journal.Record{
			Kind:    journal.ModelReplied,
			Payload: loop.Step{Step: 1, Provider: "one", Model: "m", Reply: asksFor("", call("c1", "find", `{}`)).reply},
		},
		journal.Record{
			Kind:    journal.ToolFinished,
			Payload: loop.CallResult{Step: 1, CallID: "c1", Name: "find", Outcome: loop.Succeeded, Content: "found"},
		},
		old(1), old(2),
	)
	if err != nil {
		t.Fatal(err)
	}
	c, s := candidate("one", 3, fails(model.Overloaded))
	in := inputOf(t, j, 2, c)
	if end, err := loop.Run(t.Context(), &in); err == nil || err.Error() != "it is Overloaded (3 attempts)" || len(s.requests) != 1 {
		t.Errorf("Run = %+v, %v after %d requests; want the third and last attempt of the second step", end, err, len(s.requests))
	}
	var steps []int
	for _, r := range in.State.Requests {
		steps = append(steps, r.Step)
	}
	if diff := cmp.Diff([]int{1, 2, 2, 2}, steps); diff != "" {
		t.Errorf("the requests are for the steps: -want +got:\n%s", diff)
	}
}

// TestMessagesAnswerEachCall checks that calls without results are left out, because no endpoint accepts them in the
// next Turn of a conversation.
func TestMessagesAnswerEachCall(t *testing.T) {
	ask := []model.ToolCall{call("c1", "find", `{}`), call("c2", "find", `{}`)}
	for name, tc := range map[string]struct {
		reason string
		text   string
		ended  []string
		want   []model.Message
	}{
		"all": {"calls with results stay", "", []string{"c1", "c2"}, []model.Message{
			{Role: model.RoleAssistant, ToolCalls: ask},
			{Role: model.RoleTool, Content: "found", ToolCallID: "c1"},
			{Role: model.RoleTool, Content: "found", ToolCallID: "c2"},
		}},
		"one": {"a call without a result is left out", "", []string{"c2"}, []model.Message{
			{Role: model.RoleAssistant, ToolCalls: ask[1:]}, {Role: model.RoleTool, Content: "found", ToolCallID: "c2"},
		}},
		"text alone": {
			"the text stays without its calls", "I look.", nil,
			[]model.Message{{Role: model.RoleAssistant, Content: "I look."}},
		},
		"nothing": {"a reply without text and results is left out", "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t)
			records := []journal.Record{{Kind: journal.ModelReplied, Payload: loop.Step{Step: 1, Reply: asksFor(tc.text, ask...).reply}}}
			for _, id := range tc.ended {
				records = append(records, journal.Record{
					Kind:    journal.ToolFinished,
					Payload: loop.CallResult{Step: 1, CallID: id, Content: "found"},
				})
			}
			if err := in.Record(records...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, in.State.Messages(t.Context())); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
