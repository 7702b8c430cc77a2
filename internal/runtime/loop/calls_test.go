package loop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func TestReplyWithCalls(t *testing.T) {
	const list = "use one of find, send"
	for name, tc := range map[string]struct {
		reason string
		reply  answer
		limit  int // MaxToolCalls; 0 means 25
		want   []string
		calls  []string // arguments of the calls that find got
		made   int
	}{
		"one": {
			"the result follows the call", asksFor("", call("c1", "find", `{"n":1}`)), 0,
			[]string{`assistant:  [c1 find {"n":1}]`, "tool c1: found 1"},
			[]string{`{"n":1}`},
			1,
		},
		"with text": {
			"the text of a reply with calls is kept", asksFor("Let me see.", call("c1", "find", `{}`)), 0,
			[]string{`assistant: Let me see. [c1 find {}]`, "tool c1: found 1"},
			[]string{`{}`},
			1,
		},
		"several": {
			"each call has one result, in order",
			asksFor("", call("b", "find", `{"n":1}`), call("a", "send", `{"n":2}`), call("c", "find", `{"n":3}`)), 0,
			[]string{
				`assistant:  [b find {"n":1}] [a send {"n":2}] [c find {"n":3}]`, "tool b: found 1", "tool a: sent", "tool c: found 2",
			},
			[]string{`{"n":1}`, `{"n":3}`},
			3,
		},
		"unknown": {
			"names are case-sensitive, and the other calls are made", asksFor("", call("c1", "Find", `{}`), call("c2", "find", `{}`)), 0,
			[]string{
				`assistant:  [c1 Find {}] [c2 find {}]`,
				`tool c1: error (unavailable): there is no tool "Find": ` + list, "tool c2: found 1",
			},
			[]string{`{}`},
			1,
		},
		"no arguments": {
			"blank arguments mean an empty object", asksFor("", call("c1", "find", " \n")), 0,
			[]string{"assistant:  [c1 find {}]", "tool c1: found 1"},
			[]string{`{}`},
			1,
		},
		"spaces": {
			"white space around an object is allowed", asksFor("", call("c1", "find", " {\"n\": 1}\n")), 0,
			[]string{"assistant:  [c1 find  {\"n\": 1}\n]", "tool c1: found 1"},
			[]string{`{"n": 1}`},
			1,
		},
		"no object": {
			"arguments that are not an object are refused",
			asksFor("", call("c1", "find", `[1]`), call("c2", "find", `null`), call("c3", "find", `{"n":`),
				call("c4", "find", `"[]"`), call("c5", "find", `{} {}`)), 0,
			[]string{
				`assistant:  [c1 find {}] [c2 find {}] [c3 find {}] [c4 find {}] [c5 find {}]`,
				"tool c1: error (invalid_arguments): the arguments must be a JSON object that " +
					"fits the tool's schema: correct them and call the tool again",
				"tool c2: error (invalid_arguments): the arguments must be a JSON object that " +
					"fits the tool's schema: correct them and call the tool again",
				"tool c3: error (invalid_arguments): the arguments must be a JSON object that " +
					"fits the tool's schema: correct them and call the tool again",
				"tool c4: error (invalid_arguments): the arguments must be a JSON object that " +
					"fits the tool's schema: correct them and call the tool again",
				"tool c5: error (invalid_arguments): the arguments must be a JSON object that " +
					"fits the tool's schema: correct them and call the tool again",
			},
			nil, 0,
		},
		"too many": {
			"calls beyond the limit are refused, and refused calls do not count",
			asksFor("", call("c1", "find", `[]`), call("c2", "find", `{"n":1}`), call("c3", "find", `{"n":2}`),
				call("c4", "find", `{"n":3}`)), 2,
			[]string{
				`assistant:  [c1 find {}] [c2 find {"n":1}] [c3 find {"n":2}] [c4 find {"n":3}]`,
				"tool c1: error (invalid_arguments): the arguments must be a JSON object that " +
					"fits the tool's schema: correct them and call the tool again",
				"tool c2: found 1", "tool c3: found 2",
				"tool c4: error (denied): the turn has used all of its 2 tool calls: answer from the information you have",
			},
			[]string{`{"n":1}`, `{"n":2}`},
			2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, tc.reply, says("Done."))
			find, found := toolOf("find", tool.ReadOnly, result{content: "found 1"}, result{content: "found 2"})
			send, _ := toolOf("send", tool.Destructive, result{content: "sent"})
			in := withTools(input(t, c), find, send)
			in.Policy.Sequential = true // the order of the calls identifies the results
			if tc.limit > 0 {
				in.Limits.MaxToolCalls = tc.limit
			}
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end.Reason != loop.Answered || in.State.LastStep().Reply.Text != "Done." {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			if diff := cmp.Diff(tc.want, transcript(s.requests[1])); diff != "" {
				t.Errorf("the second request says: %s: -want +got:\n%s", tc.reason, diff)
			}
			var got []string
			for _, c := range found.calls {
				got = append(got, string(c.Arguments))
			}
			if diff := cmp.Diff(tc.calls, got); diff != "" {
				t.Errorf("calls: %s: -want +got:\n%s", tc.reason, diff)
			}
			if n := in.State.ToolCalls(); n != tc.made {
				t.Errorf("%d calls are counted, want %d", n, tc.made)
			}
		})
	}
}

func TestNoCallIsPossible(t *testing.T) {
	for name, hasTools := range map[string]bool{"none allowed": true, "no tools": false} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says("Done."))
			want := `tool c1: error (unavailable): there is no tool "find": no tools are available, so answer without tools`
			find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
			in := input(t, c)
			if hasTools {
				in, want = withTools(in, find), "tool c1: error (denied): the turn has used all of its 0 "+
					"tool calls: answer from the information you have"
				in.Limits.MaxToolCalls = 0
			}
			if _, err := loop.Run(t.Context(), &in); err != nil || len(found.calls) != 0 {
				t.Fatalf("Run: %v after %d calls, want the answer and no call", err, len(found.calls))
			}
			if got := transcript(s.requests[1])[1]; got != want {
				t.Errorf("the model received %q, want %q", got, want)
			}
		})
	}
}

// TestToolsAreOffered checks the tools in the requests to the endpoint.
func TestToolsAreOffered(t *testing.T) {
	c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	if _, err := loop.Run(t.Context(), new(withTools(input(t, c), find))); err != nil {
		t.Fatal(err)
	}
	const schema = `{"additionalProperties":false,"properties":{"n":{"type":"integer"}},"type":"object"}`
	for i, r := range s.requests {
		if len(r.Tools) != 1 || r.Tools[0].Name != "find" || r.Tools[0].Description != "Does it." ||
			string(r.Tools[0].Parameters) != schema {
			t.Errorf("request %d offers %+v, want the tool with its schema, the same in each request so that the endpoint can cache it",
				i+1, r.Tools)
		}
	}
}

func TestOutOfSteps(t *testing.T) {
	c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), asksFor("", call("c1", "find", `{"n":1}`)),
		says("As far as I know."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, c), find)
	in.Limits.MaxSteps = 2
	end, err := loop.Run(t.Context(), &in)
	want := &loop.End{
		Reason:  loop.OutOfSteps,
		Message: "the turn ran out of steps after 2 and gave its best answer: raise limits.maxSteps, or ask for less",
	}
	if diff := cmp.Diff(want, end); diff != "" || err != nil {
		t.Fatalf("Run (error %v): -want +got:\n%s", err, diff)
	}
	last := s.requests[len(s.requests)-1]
	lines := transcript(last)
	if len(s.requests) != 3 || len(last.Offered()) != 0 || len(last.Tools) != 1 || len(lines) != 5 ||
		!strings.HasPrefix(lines[4], "system: You have no steps left and cannot call any more tools.") {
		t.Errorf("%d requests, the last of which offers %v and ends %q; want 3, the last without calls and with the note about the steps",
			len(s.requests), last.Offered(), lines)
	}
	// The endpoint gave both calls the same ID, so the second gets another ID.
	if diff := cmp.Diff([]string{keyOf("uid/1/c1"), keyOf("uid/2/c1_2")}, found.keys()); diff != "" {
		t.Errorf("calls by key: -want +got:\n%s", diff)
	}
	if step := in.State.LastStep(); !step.Last || step.Step != 3 {
		t.Errorf("the last step is %+v, want step 3 with Last", step)
	}
}

// TestCallsInTheLastReply has a model that ignores the step limit. Its last calls are not made, and they are left out
// of the messages: in the next Turn of the conversation, endpoints would refuse calls without results.
func TestCallsInTheLastReply(t *testing.T) {
	c, _ := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), asksFor("I would look again.", call("c2", "find", `{}`)))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, c), find)
	in.Limits.MaxSteps = 1
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.OutOfSteps || len(found.calls) != 1 {
		t.Fatalf("Run = %+v, %v after %d calls; want the end and one call", end, err, len(found.calls))
	}
	messages := in.State.Messages(t.Context())
	if last := messages[len(messages)-1]; last.Content != "I would look again." || len(last.ToolCalls) != 0 {
		t.Errorf("the last message is %+v, want its text alone", last)
	}
}

// TestOnlyCallsInTheLastReply has a model that requests only a call after the last step. The Turn would end without an
// answer, so the model is asked once more.
func TestOnlyCallsInTheLastReply(t *testing.T) {
	find, again := asksFor("", call("c1", "find", `{}`)), asksFor("", call("c2", "find", `{"n":1}`))
	for name, tc := range map[string]struct {
		reason   string
		answers  []answer
		requests int
		want     string
	}{
		"then an answer": {"the work of the Turn is not lost", []answer{find, again, says("Found.")}, 3, "Found."},
		"again":          {"the model is asked only once more", []answer{find, again, again, says("Found.")}, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, tc.answers...)
			tools, found := toolOf("find", tool.ReadOnly, result{content: "found"})
			in := withTools(input(t, c), tools)
			in.Limits.MaxSteps = 1
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end.Reason != loop.OutOfSteps || len(found.calls) != 1 || in.State.AnswerText() != tc.want {
				t.Fatalf("Run = %+v, %v after %d calls with the answer %q; want %q after one call: %s", end, err, len(found.calls),
					in.State.AnswerText(), tc.want, tc.reason)
			}
			if (tc.want == "") != strings.Contains(end.Message, "the model gave no answer") {
				t.Errorf("the message is %q, want it to say whether there is an answer", end.Message)
			}
			if len(s.requests) != tc.requests || !in.State.LastStep().Last || len(s.requests[2].Offered()) != 0 {
				t.Errorf("%d requests, want %d, the last without tools", len(s.requests), tc.requests)
			}
			want := []string{
				"assistant:  [c1 find {}]", "tool c1: found", `assistant:  [c2 find {"n":1}]`,
				`tool c2: error (unavailable): there is no tool "find": no tools are available, so answer without tools`,
				"user: Your last reply was not accepted, because it has no answer. You cannot call any more tools. " +
					"Write your answer now, from the information you have.",
			}
			if diff := cmp.Diff(want, transcript(s.requests[2])[:5]); diff != "" {
				t.Errorf("the messages of the last request: -want +got:\n%s", diff)
			}
		})
	}
}

func TestRunEndsDuringACall(t *testing.T) {
	cause := errors.New("so it ended")
	unknown := "error (outcome_unknown): the outcome of this call is unknown: the turn ended during the call"
	for name, tc := range map[string]struct {
		reason    string
		effect    tool.Effect
		abandoned bool
		interrupt bool
		err       error
		want      []string
		open      bool // the call has no result
		failure   error
	}{
		"cancelled, does harm": {"the outcome is unknown", tool.Destructive, false, false, cause, []string{unknown}, false, nil},
		"cancelled, not known": {"an unknown effect counts as destructive", "", false, false, cause, []string{unknown}, false, nil},
		"cancelled, does no harm": {
			"the call has failed", tool.ReadOnly, false, false, cause,
			[]string{"error (failed): the turn ended during the call"},
			false, nil,
		},
		"cancelled, idempotent": {
			"the call has failed", tool.Idempotent, false, false, cause,
			[]string{"error (failed): the turn ended during the call"},
			false, nil,
		},
		"abandoned, does harm":    {"the next run decides", tool.Destructive, true, false, cause, nil, true, nil},
		"abandoned, does no harm": {"the next run repeats the call", tool.ReadOnly, true, false, cause, nil, true, nil},
		"interrupted, does harm": {
			"a running call finishes, and the second call does not begin", tool.Destructive,
			false, true, loop.ErrInterrupted,
			[]string{"found"},
			false, nil,
		},
		"interrupted, does no harm": {
			"the same applies to read-only calls", tool.ReadOnly, false, true,
			loop.ErrInterrupted,
			[]string{"found"},
			false, nil,
		},
		"cancelled, not made, does harm": {
			"the call was certainly not made", tool.Destructive, false, false, cause,
			[]string{"error (unavailable): it was not reached"},
			false, &tool.Error{Class: tool.Unavailable, Message: "it was not reached"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				interrupt := make(chan struct{})
				c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`), call("c2", "find", `{}`)), says("never asked"))
				find, found := toolOf("find", tc.effect, result{after: 10 * time.Second, content: "found", err: tc.failure})
				in := withTools(input(t, c), find)
				in.Interrupt, in.Abandoned = interrupt, func() bool { return tc.abandoned && ctx.Err() != nil }
				time.AfterFunc(3*time.Second, func() {
					if tc.interrupt {
						close(interrupt)
						return
					}
					cancel(cause)
				})
				if end, err := loop.Run(ctx, &in); !errors.Is(err, tc.err) {
					t.Errorf("Run = %+v, %v; want %v", end, err, tc.err)
				}
				var got []string
				for _, f := range in.State.CallResults {
					got = append(got, f.Content)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" || len(found.calls) != 1 || len(s.requests) != 1 {
					t.Errorf("%s (%d calls, %d requests): -want +got:\n%s", tc.reason, len(found.calls), len(s.requests), diff)
				}
				wantUnknown := 0
				if tc.want != nil && tc.want[0] == unknown || tc.open && !tc.effect.Repeatable() {
					wantUnknown = 1
				}
				if n := in.State.UnknownOutcomes(); n != wantUnknown {
					t.Errorf("%d outcomes are unknown, want %d: %s", n, wantUnknown, tc.reason)
				}
			})
		})
	}
}

// TestNoCallAfterTheEnd ends the Turn while the intent of a call is written, because a store may be unreachable for
// long.
func TestNoCallAfterTheEnd(t *testing.T) {
	cause := errors.New("so it ended")
	for name, tc := range map[string]struct {
		reason    string
		abandoned bool
		want      []string
		unknown   int
	}{
		"cancelled": {
			"the call was certainly not made", false,
			[]string{"error (denied): the tool was not called, because the turn had ended"},
			0,
		},
		"abandoned": {"the next run cannot know that the call was not made", true, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			c, _ := candidate("one", 1, asksFor("", call("c1", "send", `{}`)), says("never asked"))
			send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
			in := withTools(input(t, c), send)
			in.Abandoned = func() bool { return tc.abandoned && ctx.Err() != nil }
			record := in.Record
			in.Record = func(records ...journal.Record) error {
				if records[0].Kind == journal.ToolIntended {
					cancel(cause)
				}
				return record(records...)
			}
			if end, err := loop.Run(ctx, &in); !errors.Is(err, cause) || len(sent.calls) != 0 {
				t.Errorf("Run = %+v, %v after %d calls; want %v and no call", end, err, len(sent.calls), cause)
			}
			var got []string
			for _, f := range in.State.CallResults {
				got = append(got, f.Content)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || in.State.UnknownOutcomes() != tc.unknown {
				t.Errorf("%s (%d unknown outcomes): -want +got:\n%s", tc.reason, in.State.UnknownOutcomes(), diff)
			}
		})
	}
}

// TestRepeatedCallOfASubAgentStaysOpen ends the Turn before the call of a sub-agent is repeated. An earlier attempt may
// have created a Turn, whose usage a recorded result would hide.
func TestRepeatedCallOfASubAgentStaysOpen(t *testing.T) {
	cause := errors.New("so it ended")
	for last, open := range map[int64]bool{1: false, 2: true} {
		t.Run(fmt.Sprintf("attempt %d", last), func(t *testing.T) {
			j := &journaltest.Store{}
			agent, called := toolOf("agent", tool.Idempotent, result{err: &tool.Pending{Turn: "child"}})
			agent.Source = tool.Source{Agent: "helper"}
			var state *loop.State
			for epoch := range last {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				c, _ := candidate("one", 1, asksFor("", call("c1", "agent", `{}`)), says("never asked"))
				in := withTools(inputOf(t, j, epoch+1, c), agent)
				in.Limits.MaxDescendants = 5
				record := in.Record
				in.Record = func(records ...journal.Record) error {
					if i, ok := records[0].Payload.(loop.Intent); ok && int64(i.Attempt) == last {
						cancel(cause)
					}
					return record(records...)
				}
				end, err := loop.Run(ctx, &in)
				if _, parked := errors.AsType[*loop.Parked](err); !errors.Is(err, cause) && (!parked || epoch+1 == last) {
					t.Errorf("run %d = %+v, %v; want %v in the last run", epoch+1, end, err, cause)
				}
				state = in.State
			}
			if len(called.calls) != int(last)-1 || (len(state.CallResults) == 0) != open {
				t.Errorf("%d calls with the results %+v, want that the call is open: %t", len(called.calls), state.CallResults, open)
			}
		})
	}
}

// TestFailedCallOfASubAgentStaysOpen ends the Turn during the call of a sub-agent, which fails. The call stays open
// unless the error says how many Turns the call has created, or what they have used.
func TestFailedCallOfASubAgentStaysOpen(t *testing.T) {
	cause := errors.New("so it ended")
	for name, tc := range map[string]struct {
		result tool.Result
		ends   bool
		open   bool
	}{
		"not known":        {tool.Result{}, true, true},
		"no Turn":          {tool.Result{Descendants: new(0)}, true, false},
		"known usage":      {tool.Result{Spent: &tool.Spent{Turn: "child"}}, true, false},
		"the Turn goes on": {tool.Result{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			agent, _ := toolOf("agent", tool.Idempotent)
			agent.Source = tool.Source{Agent: "helper"}
			agent.Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
				if tc.ends {
					cancel(cause)
				}
				return tc.result, &tool.Error{Class: tool.Unavailable, Message: "the store is closed"}
			})
			c, _ := candidate("one", 1, asksFor("", call("c1", "agent", `{}`)), says("Done."))
			in := withTools(input(t, c), agent)
			in.Limits.MaxDescendants = 5
			if end, err := loop.Run(ctx, &in); tc.ends != errors.Is(err, cause) {
				t.Errorf("Run = %+v, %v; want that the Turn ends during the call: %t", end, err, tc.ends)
			}
			if got := in.State.CallResults; (len(got) == 0) != tc.open {
				t.Errorf("results %+v, want that the call is open: %t", got, tc.open)
			}
		})
	}
}

// TestNoRepetitionAfterTheEnd ends the Turn before a call is repeated. The first attempt may have taken effect, unless
// the tool only reads.
func TestNoRepetitionAfterTheEnd(t *testing.T) {
	for effect, want := range map[tool.Effect]bool{tool.Idempotent: true, tool.ReadOnly: false} {
		t.Run(string(effect), func(t *testing.T) {
			cause := errors.New("so it ended")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			c, _ := candidate("one", 1, asksFor("", call("c1", "set", `{}`)), says("never asked"))
			set, made := toolOf("set", effect, result{err: &tool.Error{Class: tool.Timeout, Message: "slow"}})
			set.RetryOnTimeout = true
			in := withTools(input(t, c), set)
			record := in.Record
			in.Record = func(records ...journal.Record) error {
				if i, ok := records[0].Payload.(loop.Intent); ok && i.Attempt == 2 {
					cancel(cause)
				}
				return record(records...)
			}
			if end, err := loop.Run(ctx, &in); !errors.Is(err, cause) || len(made.calls) != 1 {
				t.Errorf("Run = %+v, %v after %d calls; want %v and one call", end, err, len(made.calls), cause)
			}
			if f := in.State.CallResults; len(f) != 1 || f[0].Outcome != loop.Refused || f[0].MayHaveActed != want {
				t.Errorf("results %+v, want one with MayHaveActed %t", f, want)
			}
		})
	}
}

// TestDeadlineDuringACall tests the deadline of the Turn, not the time limit of the tool.
func TestDeadlineDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the time of the turn is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, cause)
		defer cancel()
		c, _ := candidate("one", 1, asksFor("", call("c1", "send", `{}`)), says("never asked"))
		send, _ := toolOf("send", tool.Destructive, result{after: time.Minute})
		in := withTools(input(t, c), send)
		if end, err := loop.Run(ctx, &in); !errors.Is(err, cause) {
			t.Errorf("Run = %+v, %v; want %v", end, err, cause)
		}
		if f := in.State.CallResults; len(f) != 1 || f[0].Outcome != loop.Unknown || f[0].Class != tool.OutcomeUnknown {
			t.Errorf("results %+v, want one with an unknown outcome", f)
		}
	})
}

// TestRunIsAbandonedAfterItsCheck abandons a run just after the run has checked Abandoned. Records that the run writes
// afterwards may still reach the journal, so they must be true.
func TestRunIsAbandonedAfterItsCheck(t *testing.T) {
	broke := &tool.Error{Class: tool.Failed, Message: "it broke"}
	for name, tc := range map[string]struct {
		reason string
		calls  int // the number of calls when the run is abandoned
		err    error
		want   loop.Outcome
	}{
		"before the call": {"the call must not be recorded as refused", 0, nil, loop.Succeeded},
		"after the call":  {"the outcome is not unknown, because the tool has reported it", 1, broke, loop.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			lost := errors.New("the turn goes on elsewhere")
			ctx, giveUp := context.WithCancelCause(t.Context())
			defer giveUp(nil)
			c, _ := candidate("one", 1, asksFor("", call("c1", "send", `{}`)), says("never asked"))
			send, sent := toolOf("send", tool.Destructive, result{content: "sent", err: tc.err})
			in := withTools(input(t, c), send)
			in.Abandoned = func() bool {
				before := ctx.Err() != nil
				if len(sent.calls) == tc.calls {
					giveUp(lost)
				}
				return before
			}
			record := in.Record
			in.Record = func(records ...journal.Record) error {
				err := record(records...)
				if records[0].Kind == journal.ToolFinished {
					giveUp(lost)
				}
				return err
			}
			if end, err := loop.Run(ctx, &in); !errors.Is(err, lost) || len(sent.calls) != 1 {
				t.Errorf("Run = %+v, %v after %d calls; want %v and one call", end, err, len(sent.calls), lost)
			}
			if f := in.State.CallResults; len(f) != 1 || f[0].Outcome != tc.want {
				t.Errorf("results %+v, want one with the outcome %s: %s", f, tc.want, tc.reason)
			}
		})
	}
}
