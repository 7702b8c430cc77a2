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

// callEnds returns one line for each result of a call, in the order in which the calls ended.
func callEnds(in loop.Input) []string {
	var all []string
	for _, f := range in.State.CallResults {
		all = append(all, f.CallID+" "+string(f.Outcome)+" "+string(f.Class)+": "+f.Content)
	}
	return all
}

// turnTime is the time limit of the Turns in TestEachGateThroughTheLoop.
const turnTime = 10 * time.Second

// decidedLater requires approval for find. The decision arrives when the loop asks for the second time, one hour later.
func decidedLater(decisions ...loop.Decision) func(in *loop.Input, find, send *tool.Tool) {
	return func(in *loop.Input, find, _ *tool.Tool) {
		o := &approver{now: noon, decisions: map[string]loop.Decision{}}
		for _, d := range decisions {
			o.decisions[d.CallID] = d
		}
		find.RequiresApproval = true
		*in = withApprover(*in, o)
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

// TestEachGateThroughTheLoop runs calls through the whole loop. A gate refuses one of them or lets it wait.
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
			"the name of no tool", func(*loop.Input, *tool.Tool, *tool.Tool) {}, nil,
			[]answer{asksFor("", call("c1", "FIND", `{}`))},
			[]string{`c1 Refused unavailable: error (unavailable): there is no tool "FIND": use one of find, send`},
			nil,
		},
		"permitted, web": {
			"a web search in a Turn without web access", func(in *loop.Input, find,
				_ *tool.Tool,
			) {
				in.Policy.NoWeb, find.Role = true, tool.WebSearch
			}, nil,
			[]answer{asksFor("", call("c1", "find", `{}`))},
			[]string{"c1 Refused denied: error (denied): this turn must not use the web (its webMode is Off): " +
				"use another tool, or answer from the information you have"},
			nil,
		},
		"permitted, effects": {
			"a write in a read-only Turn", func(in *loop.Input, _, _ *tool.Tool) { in.Policy.ReadOnly = true }, nil,
			[]answer{asksFor("", call("c1", "send", `{}`), call("c2", "find", `{}`))},
			[]string{`c1 Refused denied: error (denied): this turn may call only read-only tools, and "send" is not ` +
				`read-only: use a read-only tool, or say what you would do`, "c2 Succeeded : found"},
			[]string{`{}`},
		},
		"not blocked": {
			"a tool that denied an earlier call", func(*loop.Input, *tool.Tool, *tool.Tool) {},
			[]result{denies},
			[]answer{asksFor("", call("c1", "find", `{"n":1}`)), asksFor("", call("c2", "find", `{"n":2}`), call("c3", "send", `{}`))},
			[]string{
				"c1 Failed denied: error (denied): not you",
				`c2 Refused denied: error (denied): "find" is blocked for the rest of the turn, because it has ` +
					`denied a call: use another tool, or answer without it`,
				"c3 Succeeded : sent",
			},
			[]string{`{"n":1}`},
		},
		"within budget, of the tool": {
			"the limit of the tool is one call", func(in *loop.Input, find,
				_ *tool.Tool,
			) {
				in.Policy.Sequential, find.MaxCalls = true, 1
			}, nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "find", `{"n":2}`)), asksFor("", call("c3", "send", `{}`))},
			[]string{
				"c1 Succeeded : found",
				`c2 Refused denied: error (denied): the turn has used all of its 1 calls of "find": ` +
					`use another tool, or answer from the information you have`,
				"c3 Succeeded : sent",
			},
			[]string{`{"n":1}`},
		},
		"within budget, of a wave": {
			"calls of the same wave count", func(in *loop.Input, _, _ *tool.Tool) { in.Limits.MaxToolCalls = 1 }, nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "find", `{"n":2}`))},
			[]string{
				"c2 Refused denied: error (denied): the turn has used all of its 1 tool calls: " +
					"answer from the information you have",
				"c1 Succeeded : found",
			},
			[]string{`{"n":1}`},
		},
		"within budget, time left": {
			"no call begins half a second before the deadline",
			func(in *loop.Input, _, send *tool.Tool) {
				in.Policy.Sequential, send.Caller = true,
					&fakeToolServer{results: []result{{after: turnTime - time.Second/2, content: "sent"}}}
			}, nil,
			[]answer{asksFor("", call("c1", "send", `{}`), call("c2", "find", `{}`)), asksFor("", call("c3", "find", `{}`))},
			[]string{
				"c1 Succeeded : sent",
				"c2 Refused denied: error (denied): the turn has almost no time left: answer from the information you have",
				"c3 Refused denied: error (denied): the turn has almost no time left: answer from the information you have",
			},
			nil,
		},
		"within budget, time enough": {
			"a call may begin one second before the deadline",
			func(in *loop.Input, _, send *tool.Tool) {
				in.Policy.Sequential, send.Caller = true,
					&fakeToolServer{results: []result{{after: turnTime - time.Second, content: "sent"}}}
			}, nil,
			[]answer{asksFor("", call("c1", "send", `{}`), call("c2", "find", `{}`))},
			[]string{"c1 Succeeded : sent", "c2 Succeeded : found"},
			[]string{`{}`},
		},
		"valid arguments": {
			"a string instead of a number", func(*loop.Input, *tool.Tool, *tool.Tool) {}, nil,
			[]answer{asksFor("", call("c1", "find", `{"n":"one"}`), call("c2", "find", `{"n":"2","x":1}`))},
			[]string{
				"c1 Refused invalid_arguments: error (invalid_arguments): the arguments do not fit the tool's " +
					"schema: /n: must be an integer. Correct them and call the tool again",
				"c2 Succeeded : The arguments were changed before the call: /n: converted the text to the number 2; removed \"x\".\nfound",
			},
			[]string{`{"n":2}`},
		},
		"not repeated, failed": {
			"the same call after a failure", func(*loop.Input, *tool.Tool, *tool.Tool) {},
			[]result{{err: &tool.Error{Class: tool.Unavailable, Message: "it is away"}}, {content: "found"}},
			[]answer{
				asksFor("", call("c1", "find", `{"n":1}`)), asksFor("", call("c1", "find", ` { "n" : "1" } `)),
				asksFor("", call("c1", "find", `{"n":2}`)),
			},
			[]string{
				"c1 Failed unavailable: error (unavailable): it is away",
				"c1_2 Refused failed: error (failed): an identical call has failed before " +
					"in this turn: change the arguments, use another tool, or answer without it",
				"c1_3 Succeeded : found",
			},
			[]string{`{"n":1}`, `{"n":2}`},
		},
		"not repeated, read": {
			"an earlier result is reused, even within a reply", func(in *loop.Input, _,
				_ *tool.Tool,
			) {
				in.Limits.MaxToolCalls, in.Policy.Sequential = 3, true
			},
			[]result{{content: "found 1"}, {content: "found 2"}},
			[]answer{
				asksFor("", call("c1", "find", `{"n":1}`), call("c2", "find", `{"n":1.0}`), call("c3", "find", `{"n":1}`)),
				asksFor("", call("c4", "find", `{ "n":1 }`)),
			},
			[]string{"c1 Succeeded : found 1", "c2 Succeeded : found 2", "c3 Reused : found 1", "c4 Reused : found 1"},
			[]string{`{"n":1}`, `{"n":1.0}`},
		},
		"not repeated, written since": {
			"a write in between may have changed the result", func(*loop.Input, *tool.Tool, *tool.Tool) {},
			[]result{{content: "found 1"}, {content: "found 2"}},
			[]answer{asksFor("", call("c1", "find", `{}`), call("c2", "send", `{}`), call("c3", "find", `{}`), call("c4", "find", `{}`))},
			[]string{"c1 Succeeded : found 1", "c2 Succeeded : sent", "c3 Succeeded : found 2", "c4 Reused : found 2"},
			[]string{`{}`, `{}`},
		},
		"approved": {
			"an approved call is made with the approved arguments",
			decidedLater(loop.Decision{Step: 1, CallID: "c1", Approved: true, By: "ann"}), nil,
			[]answer{asksFor("", call("c1", "find", `{"n":"1"}`), call("c2", "send", `{}`))},
			[]string{
				"c1 waits", "c1 Succeeded : The arguments were changed before the call: /n: converted the text to the number 1.\nfound",
				"c2 Succeeded : sent",
			},
			[]string{`{"n":1}`},
		},
		"approved, denied": {
			"a denied call is not made, and the tool is blocked",
			decidedLater(loop.Decision{Step: 1, CallID: "c1", By: "ann", Reason: "not today"}), nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "send", `{}`)), asksFor("", call("c3", "find", `{"n":2}`))},
			[]string{
				"c1 waits",
				"c1 Refused denied: error (denied): ann has denied this call (not today): continue without it, and do not request it again",
				"c2 Succeeded : sent",
				`c3 Refused denied: error (denied): "find" is blocked for the rest of the turn, because a call of it ` +
					`was not approved: use another tool, or answer without it`,
			},
			nil,
		},
		"approved, out of time": {
			"an expired request is denied", decidedLater(), nil,
			[]answer{asksFor("", call("c1", "find", `{"n":1}`), call("c2", "send", `{}`))},
			[]string{
				"c1 waits",
				"c1 Refused denied: error (denied): this call was not approved in time: continue without it, and say so",
				"c2 Succeeded : sent",
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), turnTime)
				defer cancel()
				c, _ := candidate("one", 1, append(tc.answers, says("Done."))...)
				if tc.find == nil {
					tc.find = []result{{content: "found"}}
				}
				find, found := toolOf("find", tool.ReadOnly, tc.find...)
				send, _ := toolOf("send", tool.Destructive, result{content: "sent"})
				in := input(t, c)
				tc.change(&in, &find, &send)
				in = withTools(in, find, send)
				end, err := loop.Run(ctx, &in)
				var got []string
				if parked, ok := errors.AsType[*loop.Parked](err); ok {
					for _, id := range callIDs(parked.Approvals) {
						got = append(got, id+" waits")
					}
					end, err = loop.Run(ctx, &in)
				}
				if err != nil || end.Reason != loop.Answered {
					t.Fatalf("Run = %+v, %v; want the answer: a refusal is data", end, err)
				}
				if diff := cmp.Diff(tc.want, append(got, callEnds(in)...)); diff != "" {
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

// TestRepairsAreRecordedWithTheirResult checks that a repair is written together with the intent or the
// refusal that follows from it, so a later run does not repeat the repair.
func TestRepairsAreRecordedWithTheirResult(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("one", 1, asksFor("", call("c1", "find", `"{\"n\":\"1\"}"`), call("c2", "find", `"{\"n\":\"x\"}"`)), says("Done."))
	find, found := toolOf("find", tool.Idempotent, result{content: "found"})
	in := withTools(inputOf(t, j, 1, c), find)
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
	if _, err := loop.Run(t.Context(), &in); err != nil {
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
		t.Errorf("kinds of records by append: -want +got:\n%s", diff)
	}
	if got := string(found.calls[0].Arguments); got != `{"n":1}` || in.State.ToolRepairs() != 1 || len(in.State.Repairs) != 3 {
		t.Errorf("the tool got %s after %d repairs of %d calls, want the repaired arguments of one call", got,
			len(in.State.Repairs), in.State.ToolRepairs())
	}
	repair := loop.Repair{
		Step: 1, CallID: "c1", Name: "find", Attempt: 1, Before: `"{\"n\":\"1\"}"`, After: json.RawMessage(`{"n":"1"}`),
		Changes: []string{"parsed the text as JSON"},
	}
	if diff := cmp.Diff(repair, in.State.Repairs[0]); diff != "" {
		t.Errorf("the first repair: -want +got:\n%s", diff)
	}
}
