package loop_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// killAt makes a run die when it is about to write the n-th record of a kind.
func killAt(in *loop.Input, kind journal.Kind, n int) {
	record := in.Record
	in.Record = func(records ...journal.Record) error {
		for _, r := range records {
			if r.Kind == kind {
				n--
			}
		}
		if n <= 0 {
			return errCutOff
		}
		return record(records...)
	}
}

// TestRepeatedCallAfterAKill kills a run while the first of several equal calls is running. The next run makes none of
// the equal calls, whatever their form and position, and even if they are approved.
func TestRepeatedCallAfterAKill(t *testing.T) {
	const same = "the call was not made, because the outcome of an identical call in this turn is unknown: check " +
		"whether that call took effect, or tell the user"
	for name, tc := range map[string]struct {
		reason     string
		calls      []model.ToolCall
		later      []model.ToolCall // calls of the next reply
		approval   bool
		sequential bool
		made       []string // idempotency keys
		outcomes   map[string]loop.Outcome
	}{
		"in the same reply": {
			reason: "equal calls in the same reply", calls: []model.ToolCall{call("a", "send", `{"n":1}`), call("b", "send", `{"n":1}`)},
			made: []string{keyOf("uid/1/a")}, outcomes: map[string]loop.Outcome{"a": loop.Unknown, "b": loop.Refused},
		},
		"one after another": {
			reason: "equal calls with the sequential policy",
			calls:  []model.ToolCall{call("a", "send", `{"n":1}`), call("b", "send", `{"n":1}`)}, sequential: true,
			made: []string{keyOf("uid/1/a")}, outcomes: map[string]loop.Outcome{"a": loop.Unknown, "b": loop.Refused},
		},
		"three, with others between": {
			reason: "other calls in between are made", calls: []model.ToolCall{
				call("a", "send", `{"n":1}`),
				call("r", "find", `{}`), call("b", "send", `{"n":1}`), call("o", "send", `{"n":2}`), call("c", "send", `{"n":1}`),
			},
			made: []string{keyOf("uid/1/a"), keyOf("uid/1/o")}, outcomes: map[string]loop.Outcome{
				"a": loop.Unknown,
				"r": loop.Succeeded, "b": loop.Refused, "o": loop.Succeeded, "c": loop.Refused,
			},
		},
		"in another form": {
			reason: "the repaired arguments are compared", calls: []model.ToolCall{
				call("a", "send", `{"n":1}`),
				call("b", "send", ` { "n" : "1" } `), call("c", "send", `"{\"n\":1}"`),
			},
			made: []string{keyOf("uid/1/a")}, outcomes: map[string]loop.Outcome{"a": loop.Unknown, "b": loop.Refused, "c": loop.Refused},
		},
		"approved": {
			reason: "an approval does not prove that the first call was not made",
			calls:  []model.ToolCall{call("a", "send", `{"n":1}`), call("b", "send", `{"n":1}`)}, approval: true,
			made: []string{keyOf("uid/1/a")}, outcomes: map[string]loop.Outcome{"a": loop.Unknown, "b": loop.Refused},
		},
		"in the next reply": {
			reason: "the model repeats the call without checking its outcome", calls: []model.ToolCall{call("a", "send", `{"n":1}`)},
			later:    []model.ToolCall{call("a", "send", `{"n":1}`), call("b", "send", `{"n":3}`)},
			made:     []string{keyOf("uid/1/a"), keyOf("uid/2/b")},
			outcomes: map[string]loop.Outcome{"a": loop.Unknown, "2/a_2": loop.Refused, "2/b": loop.Succeeded},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			o := &approver{now: noon, decisions: map[string]loop.Decision{}}
			for _, c := range tc.calls {
				o.decisions[c.ID] = loop.Decision{Step: 1, CallID: c.ID, Approved: true, By: "ann"}
			}
			answers := []answer{asksFor("", tc.calls...)}
			if tc.later != nil {
				answers = append(answers, asksFor("", tc.later...))
			}
			answers = append(answers, says("Done."))
			c, s := candidate("one", 1, answers...)
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
			send.RequiresApproval = tc.approval
			run := func(epoch int64) loop.Input {
				in := withApprover(withTools(inputOf(t, j, epoch, c), find, send), o)
				in.Policy.Sequential = tc.sequential
				return in
			}
			first := run(1)
			killAt(&first, journal.ToolFinished, 1)
			if _, err := loop.Run(t.Context(), &first); !errors.Is(err, errCutOff) {
				t.Fatalf("Run = %v, want it killed during the first call", err)
			}
			in := run(2)
			if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			if diff := cmp.Diff(tc.made, sent.keys()); diff != "" {
				t.Errorf("%s: calls that were made: -want +got:\n%s", tc.reason, diff)
			}
			got := map[string]loop.Outcome{}
			for c := range in.State.Calls {
				id := c.Call.ID
				if c.Step > 1 {
					id = "2/" + id
				}
				got[id] = c.Result.Outcome
				if c.Result.Outcome == loop.Refused && c.Result.Content != "error (outcome_unknown): "+same {
					t.Errorf("the result of call %s is %q, want %q", id, c.Result.Content, same)
				}
			}
			if diff := cmp.Diff(tc.outcomes, got); diff != "" {
				t.Errorf("%s: outcomes: -want +got:\n%s", tc.reason, diff)
			}
			if n := in.State.UnknownOutcomes(); n != 1 {
				t.Errorf("%d outcomes are unknown, want 1", n)
			}
			if last := s.requests[len(s.requests)-1]; !answersEachCall(last.Messages) {
				t.Errorf("the last request is %v, want one answer to each call", transcript(last))
			}
		})
	}
}

// answersEachCall reports whether exactly one message answers each call.
func answersEachCall(messages []model.Message) bool {
	open := map[string]int{}
	for _, m := range messages {
		for _, c := range m.ToolCalls {
			open[c.ID]++
		}
		if m.Role == model.RoleTool {
			open[m.ToolCallID]--
		}
	}
	for _, n := range open {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestRepeatedCallOfUnknownOutcome repeats a call whose outcome is unknown although no run died.
func TestRepeatedCallOfUnknownOutcome(t *testing.T) {
	for name, err := range map[string]error{
		"timeout":      &tool.Error{Class: tool.Timeout, Message: "no answer in time"},
		"unknown":      &tool.Error{Class: tool.OutcomeUnknown, Message: "the connection broke"},
		"unclassified": errors.New("EOF"),
		"pending":      &tool.Pending{Turn: "child"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("one", 1, asksFor("", call("a", "send", `{"n":1}`), call("b", "send", `{"n":1}`)), says("Done."))
			send, sent := toolOf("send", tool.Destructive, result{err: err})
			in := withTools(input(t, c), send)
			if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			want := map[loop.Outcome]int{loop.Unknown: 1, loop.Refused: 1}
			if diff := cmp.Diff(want, in.State.Outcomes()); diff != "" || len(sent.calls) != 1 {
				t.Errorf("%d calls were made, want 1; outcomes: -want +got:\n%s", len(sent.calls), diff)
			}
		})
	}
}

// TestRepeatedCallsCountOnce kills a run during its calls, and makes another run. Each of the two runs makes its calls
// one after another or at the same time. A repeated call counts only once against the limits.
func TestRepeatedCallsCountOnce(t *testing.T) {
	asked := []model.ToolCall{
		call("a", "find", `{"n":1}`), call("b", "find", `{"n":2}`), call("c", "find", `{"n":3}`),
		call("d", "find", `{"n":4}`),
	}
	for name, tc := range map[string]struct {
		reason             string
		finished           int // calls that end before the first run dies
		maxCalls, ofTool   int
		before, after      bool // whether the first and the second run make calls one by one
		succeeded, refused int
	}{
		"all":                     {"the limit allows four calls", 0, 4, 0, true, false, 4, 0},
		"all of the tool":         {"the limit of the tool allows four calls", 0, 25, 4, true, false, 4, 0},
		"three":                   {"the fourth call exceeds the limit", 0, 3, 0, true, false, 3, 1},
		"three of the tool":       {"the fourth call exceeds the limit of the tool", 0, 25, 3, true, false, 3, 1},
		"one had ended":           {"a finished call counts", 1, 3, 0, true, false, 3, 1},
		"one after another":       {"sequential in both runs", 0, 3, 0, true, true, 3, 1},
		"at the same time":        {"parallel in both runs", 0, 3, 0, false, false, 3, 1},
		"at the same time before": {"first parallel, then sequential", 0, 3, 0, false, true, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, _ := candidate("one", 1, asksFor("", asked...), says("Done."))
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			find.MaxCalls = tc.ofTool
			run := func(epoch int64, sequential bool) loop.Input {
				in := withTools(inputOf(t, j, epoch, c), find)
				in.Policy.Sequential, in.Limits.MaxToolCalls = sequential, tc.maxCalls
				return in
			}
			first := run(1, tc.before)
			killAt(&first, journal.ToolFinished, 1+tc.finished)
			if _, err := loop.Run(t.Context(), &first); !errors.Is(err, errCutOff) {
				t.Fatalf("Run = %v, want it killed during the calls", err)
			}
			in := run(2, tc.after)
			if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			want := map[loop.Outcome]int{loop.Succeeded: tc.succeeded}
			if tc.refused > 0 {
				want[loop.Refused] = tc.refused
			}
			if diff := cmp.Diff(want, in.State.Outcomes()); diff != "" || in.State.ToolCalls() != tc.succeeded {
				t.Errorf("%s: %d calls are counted, want %d; outcomes: -want +got:\n%s", tc.reason, in.State.ToolCalls(),
					tc.succeeded, diff)
			}
		})
	}
}
