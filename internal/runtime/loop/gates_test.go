package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// ends are what became of the calls of a run, in the order of their ends.
func ends(in loop.Input) []string {
	var all []string
	for _, f := range in.State.Finishes {
		all = append(all, f.CallID+" "+string(f.Outcome)+" "+string(f.Class)+": "+f.Content)
	}
	return all
}

// allTime is how long the Turns of TestEachGateThroughTheLoop have.
const allTime = 10 * time.Second

// deciding has people approve each call of find, who decide when they are asked for the second time, an hour later.
func deciding(decisions ...loop.Decision) func(in *loop.Input, find, send *tool.Tool) {
	return func(in *loop.Input, find, _ *tool.Tool) {
		o := &office{now: noon, decisions: map[string]loop.Decision{}}
		for _, d := range decisions {
			o.decisions[d.CallID] = d
		}
		find.RequiresApproval = true
		*in = attended(*in, o)
		in.Decide = func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
			d, err := o.decide(ctx, a)
			if len(o.asked) == 1 {
				return nil, nil
			}
			o.now = noon.Add(time.Hour)
			return d, err
		}
	}
}

// TestEachGateThroughTheLoop has a model ask for calls of which a gate refuses one, or has it wait.
func TestEachGateThroughTheLoop(t *testing.T) {
	denies := result{err: &tool.Error{Class: tool.Denied, Message: "not you"}}
	for name, tc := range map[string]struct {
		reason  string
		change  func(in *loop.Input, find, send *tool.Tool)
		find    []result
		answers []answer
		want    []string
		calls   []string // of find
	}{
		"known": {
			"a name that is no tool's", func(*loop.Input, *tool.Tool, *tool.Tool) {}, nil,
			[]answer{asksFor("", call("c1", "FIND", `{}`))},
			[]string{`c1 Refused unavailable: error (unavailable): there is no tool "FIND": use one of find, send`},
			nil,
		},
		"permitted, web": {
			"a search of a Turn that must not use the web", func(in *loop.Input, find, _ *tool.Tool) { in.Policy.NoWeb, find.Role = true, tool.WebSearch }, nil,
			[]answer{asksFor("", call("c1", "find", `{}`))},
			[]string{"c1 Refused denied: error (denied): this turn must not use the web (its webMode is Off): use another tool, or answer from what is known"},
			nil,
		},
		"permitted, effects": {
			"a change by a Turn that may only read", func(in *loop.Input, _, _ *tool.Tool) { in.Policy.ReadOnly = true }, nil,
			[]answer{asksFor("", call("c1", "send", `{}`), call("c2", "find", `{}`))},
			[]string{`c1 Refused denied: error (denied): this turn may only read, and "send" may change something: use a tool that only reads, or say what you would do`, "c2 Succeeded : found"},
			[]string{`{}`},
		},
		"not blocked": {
			"a tool that has denied a call", func(*loop.Input, *tool.Tool, *tool.Tool) {},
			[]result{denies},
			[]answer{asksFor("", call("c1", "find", `{"n":1}`)), asksFor("", call("c2", "find", `{"n":2}`), call("c3", "send", `{}`))},
			[]string{
				"c1 Failed denied: error (denied): not you",
				`c2 Refused denied: error (denied): "find" is blocked for the rest of the turn, as it has denied a call: use another tool, or answer without it`,
				"c3 Succeeded : sent",
			},
			[]string{`{"n":1}`},
		},
		"within budget, of the tool": {
			"a tool that may be called once", func(in *loop.Input, find, _ *tool.Tool) { in.Policy.Sequential, find.MaxCalls = true, 1 }, nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "find", `{"n":2}`)), asksFor("", call("c3", "send", `{}`))},
			[]string{
				"c1 Succeeded : found",
				`c2 Refused denied: error (denied): the turn has made all of the 1 calls of "find" that it may make: use another tool, or answer from what is known`,
				"c3 Succeeded : sent",
			},
			[]string{`{"n":1}`},
		},
		"within budget, of a wave": {
			"calls that are about to be made count", func(in *loop.Input, _, _ *tool.Tool) { in.Limits.MaxToolCalls = 1 }, nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "find", `{"n":2}`))},
			[]string{
				"c2 Refused denied: error (denied): the turn has made all of the 1 calls of tools that it may make: answer from what is known",
				"c1 Succeeded : found",
			},
			[]string{`{"n":1}`},
		},
		"within budget, time left": {
			"half a second before the deadline no call is begun",
			func(in *loop.Input, _, send *tool.Tool) {
				in.Policy.Sequential, send.Caller = true, &server{results: []result{{after: allTime - time.Second/2, content: "sent"}}}
			}, nil,
			[]answer{asksFor("", call("c1", "send", `{}`), call("c2", "find", `{}`)), asksFor("", call("c3", "find", `{}`))},
			[]string{
				"c1 Succeeded : sent",
				"c2 Refused denied: error (denied): the time of the turn is nearly over: answer from what is known",
				"c3 Refused denied: error (denied): the time of the turn is nearly over: answer from what is known",
			},
			nil,
		},
		"within budget, time enough": {
			"a second is left, which a call may have",
			func(in *loop.Input, _, send *tool.Tool) {
				in.Policy.Sequential, send.Caller = true, &server{results: []result{{after: allTime - time.Second, content: "sent"}}}
			}, nil,
			[]answer{asksFor("", call("c1", "send", `{}`), call("c2", "find", `{}`))},
			[]string{"c1 Succeeded : sent", "c2 Succeeded : found"},
			[]string{`{}`},
		},
		"valid arguments": {
			"a number that is none", func(*loop.Input, *tool.Tool, *tool.Tool) {}, nil,
			[]answer{asksFor("", call("c1", "find", `{"n":"one"}`), call("c2", "find", `{"n":"2","x":1}`))},
			[]string{
				"c1 Refused invalid_arguments: error (invalid_arguments): the arguments do not fit the tool's schema: /n: must be an integer. Mend them and call the tool again",
				"c2 Succeeded : The arguments were changed before the call: /n: read the text as the number 2; removed \"x\".\nfound",
			},
			[]string{`{"n":2}`},
		},
		"not repeated, failed": {
			"the same call again", func(*loop.Input, *tool.Tool, *tool.Tool) {},
			[]result{{err: &tool.Error{Class: tool.Unavailable, Message: "it is away"}}, {content: "found"}},
			[]answer{asksFor("", call("c1", "find", `{"n":1}`)), asksFor("", call("c1", "find", ` { "n" : "1" } `)), asksFor("", call("c1", "find", `{"n":2}`))},
			[]string{
				"c1 Failed unavailable: error (unavailable): it is away",
				"c1_2 Refused failed: error (failed): the same call with the same arguments has failed before in this turn: change the arguments, use another tool, or answer without it",
				"c1_3 Succeeded : found",
			},
			[]string{`{"n":1}`, `{"n":2}`},
		},
		"not repeated, read": {
			"what was read is given again, also within a reply", func(in *loop.Input, _, _ *tool.Tool) { in.Limits.MaxToolCalls, in.Policy.Sequential = 3, true },
			[]result{{content: "found 1"}, {content: "found 2"}},
			[]answer{
				asksFor("", call("c1", "find", `{"n":1}`), call("c2", "find", `{"n":1.0}`), call("c3", "find", `{"n":1}`)), asksFor("", call("c4", "find", `{ "n":1 }`)),
			},
			[]string{"c1 Succeeded : found 1", "c2 Succeeded : found 2", "c3 Reused : found 1", "c4 Reused : found 1"},
			[]string{`{"n":1}`, `{"n":1.0}`},
		},
		"not repeated, written since": {
			"what was read may be another thing by now", func(*loop.Input, *tool.Tool, *tool.Tool) {},
			[]result{{content: "found 1"}, {content: "found 2"}},
			[]answer{asksFor("", call("c1", "find", `{}`), call("c2", "send", `{}`), call("c3", "find", `{}`), call("c4", "find", `{}`))},
			[]string{"c1 Succeeded : found 1", "c2 Succeeded : sent", "c3 Succeeded : found 2", "c4 Reused : found 2"},
			[]string{`{}`, `{}`},
		},
		"approved": {
			"what somebody has approved is called, with the arguments that they saw",
			deciding(loop.Decision{Step: 1, CallID: "c1", Approved: true, By: "ann"}), nil,
			[]answer{asksFor("", call("c1", "find", `{"n":"1"}`), call("c2", "send", `{}`))},
			[]string{"c1 waits", "c1 Succeeded : The arguments were changed before the call: /n: read the text as the number 1.\nfound", "c2 Succeeded : sent"},
			[]string{`{"n":1}`},
		},
		"approved, denied": {
			"what somebody has denied is not called, nor is the tool called again",
			deciding(loop.Decision{Step: 1, CallID: "c1", By: "ann", Reason: "not today"}), nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "send", `{}`)), asksFor("", call("c3", "find", `{"n":2}`))},
			[]string{
				"c1 waits",
				"c1 Refused denied: error (denied): ann has denied this call (not today): go on without it, and do not ask for it again",
				"c2 Succeeded : sent",
				`c3 Refused denied: error (denied): "find" is blocked for the rest of the turn, as a call of it was not approved: use another tool, or answer without it`,
			},
			nil,
		},
		"approved, out of time": {
			"nobody has decided within the time for it", deciding(), nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "send", `{}`))},
			[]string{
				"c1 waits",
				"c1 Refused denied: error (denied): nobody has approved this call in time: go on without it, and say so",
				"c2 Succeeded : sent",
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), allTime)
				defer cancel()
				c, _ := candidate("one", 1, append(tc.answers, says("Done."))...)
				if tc.find == nil {
					tc.find = []result{{content: "found"}}
				}
				find, found := toolOf("find", tool.ReadOnly, tc.find...)
				send, _ := toolOf("send", tool.Destructive, result{content: "sent"})
				in := input(t, c)
				tc.change(&in, &find, &send)
				in = with(in, find, send)
				end, err := loop.Run(ctx, in)
				var got []string
				if parked, ok := errors.AsType[*loop.Parked](err); ok {
					for _, id := range ids(parked.Approvals) {
						got = append(got, id+" waits")
					}
					end, err = loop.Run(ctx, in)
				}
				if err != nil || end.Reason != loop.Answered {
					t.Fatalf("Run = %+v, %v; want the answer: a refusal is data", end, err)
				}
				if diff := cmp.Diff(tc.want, append(got, ends(in)...)); diff != "" {
					t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
				}
				var calls []string
				for _, c := range found.calls {
					calls = append(calls, string(c.Arguments))
				}
				if diff := cmp.Diff(tc.calls, calls); diff != "" {
					t.Errorf("calls: %s: -want +got:\n%s", tc.reason, diff)
				}
			})
		})
	}
}

// TestRepairsAreJournalledWithTheirConsequence and not made again by a later run.
func TestRepairsAreJournalledWithTheirConsequence(t *testing.T) {
	j := &journaltest.Memory{}
	c, _ := candidate("one", 1, asksFor("", call("c1", "find", `"{\"n\":\"1\"}"`), call("c2", "find", `"{\"n\":\"x\"}"`)), says("Done."))
	find, found := toolOf("find", tool.Idempotent, result{content: "found"})
	in := with(inputOf(t, j, 1, c), find)
	var appends [][]journal.Kind
	record := in.Record
	in.Record = func(records ...journal.Record) error {
		var kinds []journal.Kind
		for _, r := range records {
			kinds = append(kinds, r.Kind)
		}
		appends = append(appends, kinds)
		return record(records...)
	}
	if _, err := loop.Run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	want := [][]journal.Kind{
		{journal.ModelRequested},
		{journal.ModelReplied},
		{journal.ToolRepaired, journal.ToolRepaired, journal.ToolIntended},
		{journal.ToolFinished},
		{journal.ToolRepaired, journal.ToolFinished},
		{journal.ModelRequested},
		{journal.ModelReplied},
	}
	if diff := cmp.Diff(want, appends); diff != "" {
		t.Errorf("the journal was written in these pieces: -want +got:\n%s", diff)
	}
	if got := string(found.calls[0].Arguments); got != `{"n":1}` || in.State.ToolRepairs() != 1 || len(in.State.Repairs) != 3 {
		t.Errorf("the tool got %s after %d repairs of %d calls, want the repaired arguments of one call", got, len(in.State.Repairs), in.State.ToolRepairs())
	}
	repair := loop.Repair{
		Step: 1, CallID: "c1", Name: "find", Attempt: 1, Before: `"{\"n\":\"1\"}"`, After: json.RawMessage(`{"n":"1"}`), Changes: []string{"read the text as the object that it holds"},
	}
	if diff := cmp.Diff(repair, in.State.Repairs[0]); diff != "" {
		t.Errorf("the first repair: -want +got:\n%s", diff)
	}
}
