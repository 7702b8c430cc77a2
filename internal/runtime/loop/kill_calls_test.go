package loop_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// toolCounter implements the tools of a Turn that uses all kinds of calls. It counts the calls that were made, over all
// runs.
type toolCounter struct {
	mu   sync.Mutex
	done map[string]int // by tool and idempotency key
}

// newTool returns a tool. end returns the error of a call, or nil, if the call is made for the n-th time.
func (s *toolCounter) newTool(name string, effect tool.Effect, end func(n int) error) tool.Tool {
	t, _ := toolOf(name, effect)
	t.Trusted = false
	t.Caller = tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done[name+" "+c.IdempotencyKey]++
		if err := end(s.done[name+" "+c.IdempotencyKey]); err != nil {
			return tool.Result{}, err
		}
		return tool.Result{Content: "of " + c.CallID}, nil
	})
	return t
}

// succeeds returns no error, so that a call succeeds each time.
func succeeds(int) error { return nil }

// TestKilledAmidCalls kills a run at each append of a Turn with waves, repairs, a retry, two approvals, a
// sub-agent, reused results and a tool that ends the Turn. Later runs continue to the end. The test checks that:
//  1. no harmful call is made twice,
//  2. no approval is requested twice,
//  3. each call has one result, which is the same as without the kill unless the outcome is unknown.
func TestKilledAmidCalls(t *testing.T) {
	answers := []answer{
		asksFor("", call("a", "find", `{"n":"1"}`), call("b", "find", `{"n":2}`), call("c", "gone", `{}`),
			call("d", "slow", `{}`), call("e", "send", `{"n":1}`), call("f", "agent", `{}`), call("g", "send", `{"n":"2"}`)),
		asksFor("", call("h", "find", `{"n":2}`), call("j", "find", `{"n":2}`), call("i", "wipe", `{}`), call("k", "save", `{}`)),
	}
	o := &approver{now: noon, decisions: map[string]loop.Decision{"g": {Step: 1, CallID: "g", By: "ann"}}}
	// turn continues a Turn after each park and each kill until it ends. It approves call e when a run after the first
	// one is parked.
	turn := func(j journal.Journal, s *toolCounter,
		kill func(in loop.Input, epoch int64) func(...journal.Record) error,
	) (loop.Input, *loop.End) {
		t.Helper()
		delete(o.decisions, "e")
		for epoch := int64(1); epoch < 20; epoch++ {
			c, script := candidate("one", 9)
			find, slow := s.newTool("find", tool.ReadOnly, succeeds), s.newTool("slow", tool.ReadOnly, func(n int) error {
				if n == 1 {
					return &tool.Error{Class: tool.Timeout, Message: "slow"}
				}
				return nil
			})
			slow.RetryOnTimeout = true
			send, wipe, save := s.newTool("send", tool.Destructive, succeeds), s.newTool("wipe", tool.Destructive, succeeds),
				s.newTool("save", tool.Idempotent, succeeds)
			send.RequiresApproval, save.EndsTurn = true, true
			agent := s.newTool("agent", tool.Idempotent, func(n int) error {
				if n == 1 {
					return &tool.Pending{Turn: "child"}
				}
				return nil
			})
			in := withApprover(withTools(inputOf(t, j, epoch, c), find, slow, send, wipe, save, agent), o)
			script.answers = answers[min(len(in.State.Steps), len(answers)-1):]
			in.Record = kill(in, epoch)
			end, err := loop.Run(t.Context(), &in)
			if parked, _ := errors.AsType[*loop.Parked](err); parked != nil {
				if epoch > 1 {
					o.decisions["e"] = loop.Decision{Step: 1, CallID: "e", Approved: true, By: "bob"}
				}
				continue
			}
			if !errors.Is(err, errCutOff) {
				if err != nil {
					t.Fatalf("run %d: %v", epoch, err)
				}
				return in, end
			}
		}
		t.Fatal("the Turn does not end")
		return loop.Input{}, nil
	}
	appends := 0
	s := &toolCounter{done: map[string]int{}}
	want, end := turn(&journaltest.Store{}, s, func(in loop.Input, _ int64) func(...journal.Record) error {
		return func(records ...journal.Record) error { appends++; return in.Record(records...) }
	})
	outcomes := map[loop.Outcome]int{loop.Succeeded: 8, loop.Refused: 2, loop.Reused: 1}
	if diff := cmp.Diff(outcomes, want.State.Outcomes()); diff != "" || end.Reason != loop.ToolEnded ||
		want.State.ToolRepairs() != 2 || want.State.ToolRetries() != 1 || len(want.State.Approvals) != 2 {
		t.Fatalf("the Turn without a kill ends %+v with %d repairs, %d retries and %d approvals, want each kind of call: "+
			"-want +got:\n%s", end, want.State.ToolRepairs(), want.State.ToolRetries(), len(want.State.Approvals), diff)
	}
	unknowns := 0
	for at := range appends {
		for _, written := range []bool{false, true} {
			n := 0
			s := &toolCounter{done: map[string]int{}}
			got, end := turn(&journaltest.Store{}, s, func(in loop.Input, _ int64) func(...journal.Record) error {
				return func(records ...journal.Record) error {
					if n++; n != at+1 {
						return in.Record(records...)
					}
					if written {
						return errors.Join(in.Record(records...), errCutOff)
					}
					return errCutOff
				}
			})
			where := fmt.Sprintf("killed at append %d (written %t)", at, written)
			if end.Reason != loop.ToolEnded || got.State.TerminalResult().Text != "of k" {
				t.Errorf("%s: the end is %+v", where, end)
			}
			unknown := checkHarm(t, where, s, got.State)
			unknowns += unknown
			if unknown == 0 {
				if diff := cmp.Diff(callResults(t.Context(), want.State), callResults(t.Context(), got.State)); diff != "" {
					t.Errorf("%s: the model received: -want +got:\n%s", where, diff)
				}
			}
			if len(got.State.Approvals) != 2 || got.State.ToolCalls() != want.State.ToolCalls() {
				t.Errorf("%s: people were asked %d times, and %d calls are counted; want 2 and %d", where,
					len(got.State.Approvals), got.State.ToolCalls(), want.State.ToolCalls())
			}
		}
	}
	if unknowns == 0 {
		t.Error("no kill leaves an outcome unknown, want some")
	}
}

// checkHarm fails the test if a harmful call was made twice, or if the result of a call contradicts what happened. It
// returns the number of unknown outcomes.
func checkHarm(t *testing.T, where string, s *toolCounter, state *loop.State) int {
	t.Helper()
	for c := range state.Calls {
		if c.Result == nil {
			t.Errorf("%s: call %s of step %d has no result", where, c.Call.ID, c.Step)
			continue
		}
		done := s.done[c.Call.Name+" "+keyOf(fmt.Sprintf("uid/%d/%s", c.Step, c.Call.ID))]
		harmful := c.Call.Name == "send" || c.Call.Name == "wipe"
		switch {
		case harmful && done > 1:
			t.Errorf("%s: %s was done %d times", where, c.Call.ID, done)
		case c.Result.Outcome == loop.Refused && done > 0, c.Result.Outcome == loop.Reused && done > 0,
			c.Result.Outcome == loop.Succeeded && done == 0:
			t.Errorf("%s: %s was done %d times and has %s", where, c.Call.ID, done, c.Result.Outcome)
		case !harmful && c.Result.Outcome == loop.Unknown:
			t.Errorf("%s: the outcome of %s is unknown, although the call may be repeated", where, c.Call.ID)
		}
	}
	return state.UnknownOutcomes()
}

// callResults returns the results of all calls as the model received them.
func callResults(ctx context.Context, s *loop.State) []string {
	var lines []string
	for _, m := range s.Messages(ctx) {
		lines = append(lines, m.ToolCallID+" "+m.Content)
	}
	return lines
}
