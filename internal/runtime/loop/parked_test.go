package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// pendingChild is a sub-agent whose Turn ends after this number of pending calls.
type pendingChild struct {
	pending int
	calls   []tool.Call
}

func (c *pendingChild) Call(_ context.Context, call tool.Call) (tool.Result, error) {
	c.calls = append(c.calls, call)
	if len(c.calls) <= c.pending {
		return tool.Result{}, &tool.Pending{Turn: "child-" + call.CallID}
	}
	return tool.Result{Content: "done", Spent: &tool.Spent{Turn: "child-" + call.CallID, Usage: model.Usage{InputTokens: 7}}}, nil
}

func TestPendingResult(t *testing.T) {
	j := &journaltest.Store{}
	c, s := candidate("one", 1, asksFor("", call("a", "find", `{}`), call("b", "agent", `{}`), call("c", "find", `{"n":1}`)), says("Done."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	sub := &pendingChild{pending: 2}
	agent, _ := toolOf("agent", tool.Idempotent)
	agent.Caller = sub
	for epoch := int64(1); epoch <= 3; epoch++ {
		in := withTools(inputOf(t, j, epoch, c), find, agent)
		in.Limits.MaxToolCalls = 3
		end, err := loop.Run(t.Context(), &in)
		parked, _ := errors.AsType[*loop.Parked](err)
		if in.State.UnknownOutcomes() != 0 {
			t.Errorf("run %d: %d outcomes are unknown, want none, because a parked call may be repeated", epoch, in.State.UnknownOutcomes())
		}
		if epoch < 3 {
			if parked == nil || !slices.Equal(parked.Turns, []string{"child-b"}) || len(parked.Approvals) != 0 || len(found.calls) != 1 {
				t.Fatalf("run %d = %+v, %v after %d calls; want it parked for the child, and the later call not made",
					epoch, end, err, len(found.calls))
			}
			continue
		}
		if err != nil || end.Reason != loop.Answered || in.State.ToolCalls() != 3 || len(found.calls) != 2 {
			t.Fatalf("run %d = %+v, %v with %d calls; want the answer, each call counted once", epoch, end, err, in.State.ToolCalls())
		}
		var spent []string
		for sub := range in.State.SubAgentUsage {
			spent = append(spent, sub.Turn)
		}
		if diff := cmp.Diff([]string{"child-b"}, spent); diff != "" {
			t.Errorf("sub-agents: -want +got:\n%s", diff)
		}
	}
	var keys []string
	for _, c := range sub.calls {
		keys = append(keys, c.IdempotencyKey)
	}
	if diff := cmp.Diff([]string{keyOf("uid/1/b"), keyOf("uid/1/b"), keyOf("uid/1/b")}, keys); diff != "" {
		t.Errorf("idempotency keys of the calls of the child: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"tool a: found", "tool b: done", "tool c: found"}, transcript(s.requests[1])[1:]); diff != "" {
		t.Errorf("the model received: -want +got:\n%s", diff)
	}
}

// TestWaveFinishesBeforePark checks that the other calls of a wave finish before the run is parked, and are not
// repeated.
func TestWaveFinishesBeforePark(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("one", 1, asksFor("", call("a", "agent", `{}`), call("b", "find", `{}`), call("c", "agent", `{"n":1}`)),
		says("Done."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	agent, _ := toolOf("agent", tool.ReadOnly, result{err: &tool.Pending{Turn: "child"}},
		result{err: &tool.Pending{Turn: "child"}}, result{content: "done"})
	_, err := loop.Run(t.Context(), new(withTools(inputOf(t, j, 1, c), find, agent)))
	if parked, _ := errors.AsType[*loop.Parked](err); parked == nil || len(parked.Turns) != 2 {
		t.Fatalf("Run: %v, want it parked for two turns", err)
	}
	in := withTools(inputOf(t, j, 2, c), find, agent)
	if _, err := loop.Run(t.Context(), &in); err != nil || len(found.calls) != 1 || in.State.Outcomes()[loop.Succeeded] != 3 {
		t.Errorf("the next run: %v after %d calls, %v; want each result once", err, len(found.calls), in.State.Outcomes())
	}
}

// TestPendingResultOfADestructiveCall checks that the outcome is unknown if the result comes later but the call
// cannot be repeated to get it.
func TestPendingResultOfADestructiveCall(t *testing.T) {
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{err: &tool.Pending{Turn: "child"}})
	in := withTools(input(t, c), send)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.Answered || len(sent.calls) != 1 || in.State.CallResults[0].Outcome != loop.Unknown {
		t.Errorf("Run = %+v, %v with %+v; want the outcome unknown", end, err, in.State.CallResults)
	}
}

func TestToolsThatEndTheTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		results []result
		calls   []string // names of the tools that the reply asks for
		want    loop.Reason
		text    string
	}{
		"alone": {
			"the result is the answer",
			[]result{{content: "Saved </tool-output>."}},
			[]string{"save"},
			loop.ToolEnded, "Saved </tool-output>.",
		},
		"others after": {
			"calls after the end are refused",
			[]result{{content: "Saved."}},
			[]string{"save", "find", "gone"},
			loop.ToolEnded, "Saved.",
		},
		"nothing to say": {"an empty result is an answer", []result{{}}, []string{"find", "save"}, loop.ToolEnded, ""},
		"two": {
			"the first result counts",
			[]result{{content: "1"}, {content: "2"}},
			[]string{"save", "save2"},
			loop.ToolEnded, "1",
		},
		"failed": {
			"a failed call does not end the Turn",
			[]result{{err: errors.New("full")}},
			[]string{"save", "find"},
			loop.Answered, "",
		},
		"failed, then": {
			"the next call may end the Turn",
			[]result{{err: errors.New("full")}, {content: "2"}},
			[]string{"save", "save2"},
			loop.ToolEnded, "2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			var calls []model.ToolCall
			for i, name := range tc.calls {
				calls = append(calls, call(string(rune('a'+i)), name, `{}`))
			}
			c, s := candidate("one", 1, asksFor("Here it is.", calls...), says("Done."))
			save, _ := toolOf("save", tool.Destructive, tc.results...)
			save.EndsTurn, save.Trusted = true, false
			second := save
			second.Name = "save2"
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			for epoch := int64(1); epoch <= 2; epoch++ { // the second run starts from a journal that contains the end
				in := withTools(inputOf(t, j, epoch, c), save, second, find)
				end, err := loop.Run(t.Context(), &in)
				if err != nil || end.Reason != tc.want || len(in.State.CallResults) != len(tc.calls) {
					t.Fatalf("run %d = %+v, %v with %q; want %s and a result of each call: %s", epoch, end, err,
						callEnds(in), tc.want, tc.reason)
				}
				f := in.State.TerminalResult()
				if tc.want != loop.ToolEnded {
					if f != nil {
						t.Errorf("the result is %+v, want none", f)
					}
					continue
				}
				if f == nil || f.Text != tc.text || !f.EndsTurn || len(s.requests) != 1 || !strings.Contains(end.Message, f.Name) {
					t.Errorf("run %d: the result is %+v (%q) after %d requests, want %q: %s", epoch, f, end.Message,
						len(s.requests), tc.text, tc.reason)
				}
			}
		})
	}
}

// TestLongTerminalResult checks that the result is cut off. Control characters take six times their
// length in an entry, so the whole result would not fit.
func TestLongTerminalResult(t *testing.T) {
	c, _ := candidate("one", 1, asksFor("", call("a", "save", `{}`)))
	save, _ := toolOf("save", tool.Destructive, result{content: strings.Repeat("\x01", 32<<20)})
	save.EndsTurn = true
	in := withTools(input(t, c), save)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.ToolEnded || len(in.State.TerminalResult().Text) != 1<<20 {
		t.Errorf("Run = %+v, %v; want the first MiB as the answer", end, err)
	}
}

// TestCalls checks that Calls yields each requested call with its state.
func TestCalls(t *testing.T) {
	o := &approver{now: noon, decisions: map[string]loop.Decision{"c": {Step: 1, CallID: "c", Approved: true, By: "ann"}}}
	c, _ := candidate("one", 1,
		asksFor("", call("a", "find", `{"n":"1"}`), call("b", "gone", `{}`), call("c", "send", `{}`)),
		asksFor("", call("a", "find", `{"n":1}`), call("d", "send", `{"n":4}`)))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	send, _ := toolOf("send", tool.Idempotent, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(input(t, c), find, send), o)
	if _, err := loop.Run(t.Context(), &in); err == nil {
		t.Fatal("Run has ended, want it parked for the last call")
	}
	var got []string
	for c := range in.State.Calls {
		line := c.Call.ID + " " + c.Call.Name + " " + string(rune('0'+c.Step)) + "." + string(rune('0'+c.Place))
		if c.Intent != nil {
			line += " intended"
		}
		if c.Result != nil {
			line += " " + string(c.Result.Outcome)
		}
		if c.Approval != nil {
			line += " asked"
		}
		if c.Decision != nil {
			line += " by " + c.Decision.By
		}
		got = append(got, line)
	}
	want := []string{
		"a find 1.1 intended Succeeded", "b gone 1.2 Refused", "c send 1.3 intended Succeeded asked by ann",
		"a_2 find 2.1 intended Succeeded", "d send 2.2 asked",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls: -want +got:\n%s", diff)
	}
	for range in.State.Calls {
		break // the iterator must not panic
	}
	if diff := cmp.Diff([]string{"find", "send"}, in.State.ToolNames()); diff != "" || in.State.ToolRepairs() != 1 ||
		in.State.ToolCalls() != 3 {
		t.Errorf("%d repairs, %d calls; tools: -want +got:\n%s", in.State.ToolRepairs(), in.State.ToolCalls(), diff)
	}
	if diff := cmp.Diff(map[loop.Outcome]int{loop.Succeeded: 3, loop.Refused: 1}, in.State.Outcomes()); diff != "" {
		t.Errorf("outcomes: -want +got:\n%s", diff)
	}
}

// TestStateOfInvalidCallEntries folds a journal with invalid entries.
func TestStateOfInvalidCallEntries(t *testing.T) {
	for _, kind := range []journal.Kind{journal.ToolRepaired, journal.ApprovalRequested, journal.ApprovalDecided, journal.ToolIntended} {
		for _, payload := range []string{"", "[]", `"x"`, `{"step":"one"}`, "null", "{}", `{"step":1,"callID":"c","arguments":7}`} {
			s := &loop.State{}
			err := s.Apply(journal.Entry{Kind: kind, Payload: []byte(payload)})
			if ok := payload == "null" || strings.HasPrefix(payload, "{") && payload != `{"step":"one"}`; (err == nil) != ok {
				t.Errorf("Apply(%s, %s): %v, want an error: %t", kind, payload, err, !ok)
			}
			_, _, _, _ = s.OpenApprovals(), s.ToolRepairs(), s.Outcomes(), s.TerminalResult()
		}
	}
}

// TestCallThatCreatedNoTurn checks that a repeated call of a sub-agent knows whether the attempts before it have
// certainly created no Turn, and that an attempt that was cut off ends this certainty.
func TestCallThatCreatedNoTurn(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("one", 1, asksFor("", call("a", "agent", `{}`)), says("Done."))
	notCreatedYet := result{err: &tool.Pending{Turn: "child", NotCreated: true}}
	agent, called := toolOf("agent", tool.Idempotent,
		notCreatedYet, notCreatedYet, result{err: errCutOff}, notCreatedYet,
		result{err: &tool.Pending{Turn: "child", UID: "uid-of-child"}}, result{content: "done"})
	for epoch := int64(1); epoch <= 6; epoch++ {
		in := withTools(inputOf(t, j, epoch, c), agent)
		if epoch == 3 {
			killAt(&in, journal.ToolFinished, 1)
		}
		_, err := loop.Run(t.Context(), &in)
		parked, _ := errors.AsType[*loop.Parked](err)
		if want := epoch != 3 && epoch != 6; (parked != nil) != want {
			t.Fatalf("run %d: %v, want it parked: %t", epoch, err, want)
		}
		if parked == nil {
			continue
		}
		payload := map[string]any{"begun": parked.SubAgentCalls}
		if err := in.Record(journal.Record{Kind: journal.RunParked, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	var notCreated []bool
	var uids []string
	for _, c := range called.calls {
		notCreated, uids = append(notCreated, c.NotCreated), append(uids, c.TurnUID)
	}
	if diff := cmp.Diff([]bool{false, true, true, false, true, false}, notCreated); diff != "" {
		t.Errorf("calls that know that there is no Turn: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "", "", "", "", "uid-of-child"}, uids); diff != "" {
		t.Errorf("UIDs of the Turn: -want +got:\n%s", diff)
	}
}

// TestCallThatKillsEachRun checks that a call is given up if each run that makes it is cut off, and that other calls
// are made afterwards.
func TestCallThatKillsEachRun(t *testing.T) {
	for effect, mayHaveActed := range map[tool.Effect]bool{tool.ReadOnly: false, tool.Idempotent: true} {
		t.Run(string(effect), func(t *testing.T) {
			j := &journaltest.Store{}
			deadly, killed := toolOf("deadly", effect, result{content: "huge"})
			good, made := toolOf("good", tool.Idempotent, result{content: "fine"})
			runs := 0
			for ended := false; !ended; {
				if runs++; runs > 50 {
					t.Fatal("the call kills each run")
				}
				c, s := candidate("one", 1, asksFor("", call("a", "deadly", `{}`), call("b", "good", `{}`)), says("Done."))
				in := withTools(inputOf(t, j, int64(runs), c), deadly, good)
				if len(in.State.Steps) > 0 {
					s.answers = s.answers[1:]
				}
				record := in.Record
				in.Record = func(records ...journal.Record) error {
					if r, ok := records[0].Payload.(loop.CallResult); ok && r.CallID == "a" && r.Outcome == loop.Succeeded {
						return errCutOff
					}
					return record(records...)
				}
				_, err := loop.Run(t.Context(), &in)
				if ended = err == nil; !ended && !errors.Is(err, errCutOff) {
					t.Fatal(err)
				}
				if !ended {
					continue
				}
				got := in.State.CallResults[0]
				if got.CallID != "a" || got.Outcome != loop.Failed || got.Class != tool.OutcomeUnknown || got.MayHaveActed != mayHaveActed {
					t.Errorf("result %+v, want a failure that says whether the call may have taken effect", got)
				}
			}
			if len(killed.calls) != 8 || len(made.calls) != 1 {
				t.Errorf("%d deadly calls and %d others, want 8 and one", len(killed.calls), len(made.calls))
			}
		})
	}
}

// TestCallOfASubAgentIsNotGivenUp checks that the call of a sub-agent is repeated, although each run was cut off during
// the call. A result without the usage of the sub-agent's Turn would hide that usage.
func TestCallOfASubAgentIsNotGivenUp(t *testing.T) {
	const cutOffs = 12
	j := &journaltest.Store{}
	spent := &tool.Spent{Turn: "child", Usage: model.Usage{InputTokens: 500}}
	agent, _ := toolOf("agent", tool.Idempotent)
	agent.Source = tool.Source{Agent: "helper"}
	agent.Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{Content: "done", Spent: spent}, nil
	})
	for epoch := int64(1); ; epoch++ {
		c, s := candidate("one", 1, asksFor("", call("a", "agent", `{}`)), says("Done."))
		in := withTools(inputOf(t, j, epoch, c), agent)
		in.Limits.MaxDescendants = 5
		if epoch > 1 {
			s.answers = s.answers[1:]
		}
		if epoch <= cutOffs {
			killAt(&in, journal.ToolFinished, 1)
		}
		_, err := loop.Run(t.Context(), &in)
		if errors.Is(err, errCutOff) && epoch <= cutOffs {
			continue
		}
		if got := in.State.CallResults; err != nil || len(got) != 1 || got[0].Outcome != loop.Succeeded || got[0].Spent == nil {
			t.Errorf("run %d: %v with the results %+v, want one with the usage of the sub-agent", epoch, err, got)
		}
		return
	}
}

// TestCallIsRepeatedAfterEachWait checks that waits for the Turn of a sub-agent do not count as calls that were cut
// off.
func TestCallIsRepeatedAfterEachWait(t *testing.T) {
	j := &journaltest.Store{}
	waits := slices.Repeat([]result{{err: &tool.Pending{Turn: "child", UID: "uid-of-child"}}}, 20)
	agent, _ := toolOf("agent", tool.Idempotent, append(waits, result{content: "done"})...)
	for epoch := int64(1); ; epoch++ {
		c, s := candidate("one", 1, asksFor("", call("a", "agent", `{}`)), says("Done."))
		in := withTools(inputOf(t, j, epoch, c), agent)
		if epoch > 1 {
			s.answers = s.answers[1:]
		}
		_, err := loop.Run(t.Context(), &in)
		if err == nil {
			if got := in.State.CallResults[0]; got.Outcome != loop.Succeeded || epoch != 21 {
				t.Errorf("the call has %s in run %d, want its result in run 21", got.Outcome, epoch)
			}
			return
		}
		parked, ok := errors.AsType[*loop.Parked](err)
		if !ok {
			t.Fatal(err)
		}
		if err := in.Record(journal.Record{Kind: journal.RunParked, Payload: map[string]any{"begun": parked.SubAgentCalls}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParkedWithoutMemory checks that a run without memory for a result still reports the Turn that a call of the same
// wave has started. Otherwise the next run would not know this Turn.
func TestParkedWithoutMemory(t *testing.T) {
	c, _ := candidate("one", 1, asksFor("", call("a", "agent", `{}`), call("b", "look", `{}`)))
	agent, _ := toolOf("agent", tool.ReadOnly, result{err: &tool.Pending{Turn: "child", UID: "uid-of-child"}})
	look, _ := toolOf("look", tool.ReadOnly, result{content: "much"})
	in := withTools(input(t, c), agent, look)
	in.Hold = func(int64) error {
		if len(in.State.CallResults) > 0 {
			return errors.New("no memory")
		}
		return nil
	}
	_, err := loop.Run(t.Context(), &in)
	parked, ok := errors.AsType[*loop.Parked](err)
	if !ok || len(parked.SubAgentCalls) != 1 || parked.SubAgentCalls[0].TurnUID != "uid-of-child" {
		t.Errorf("Run: %v, want the Turn of the sub-agent", err)
	}
}
