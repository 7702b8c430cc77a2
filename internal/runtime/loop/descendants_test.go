package loop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// turnTree is a tree of Turns that delegate as much work as possible: each model calls four sub-agents in each of
// three replies.
type turnTree struct {
	t *testing.T
	// turns holds all Turns that were created, by name.
	turns map[string]*treeTurn
	// calls is the number of calls so far. cut reports whether a call cuts its run off after the child was created.
	calls int
	cut   func(call int) bool
	// deleted reports whether the child of a call is deleted before its answer is read.
	deleted func(call int) bool
}

// treeTurn is one Turn of a tree.
type treeTurn struct {
	tree  *turnTree
	name  string
	limit int
	j     journaltest.Store
	epoch int64
	// state is the state after the last run.
	state *loop.State
	calls map[string]bool
}

// run runs the Turn to its end, continuing after each park and each cut.
func (r *treeTurn) run() {
	r.tree.t.Helper()
	for {
		r.epoch++
		var answers []answer
		for step := range 3 {
			answers = append(answers, asksFor("", call(fmt.Sprintf("%d-a", step), "agent", `{"n":1}`),
				call(fmt.Sprintf("%d-b", step), "agent", `{"n":2}`),
				call(fmt.Sprintf("%d-c", step), "agent", `{"n":3}`), call(fmt.Sprintf("%d-d", step), "agent", `{"n":4}`)))
		}
		c, s := candidate("one", 20, append(answers, says("Done."))...)
		agent, _ := toolOf("agent", tool.Idempotent)
		agent.Source = tool.Source{Agent: "helper"}
		life, kill := context.WithCancelCause(r.tree.t.Context())
		//nolint:contextcheck // because each run has a life of its own
		agent.Caller = tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) { return r.call(kill, c) })
		in := withTools(inputOf(r.tree.t, &r.j, r.epoch, c), agent)
		in.TurnUID = r.name
		in.Limits.MaxDescendants = r.limit
		for range in.State.Steps {
			s.asked = append(s.asked, time.Time{})
		}
		in.Abandoned = func() bool { return life.Err() != nil }
		end, err := loop.Run(life, &in)
		kill(nil)
		r.state = in.State
		_, parked := errors.AsType[*loop.Parked](err)
		switch {
		case parked, errors.Is(err, errCutOff):
		case err != nil || end.Reason != loop.Answered:
			r.tree.t.Fatalf("%s = %+v, %v", r.name, end, err)
		default:
			return
		}
	}
}

// call creates the child of a call or finds it. A call that was already pending once runs the child to its end.
func (r *treeTurn) call(kill context.CancelCauseFunc, c tool.Call) (tool.Result, error) {
	f := r.tree
	f.calls++
	number := f.calls
	name := c.IdempotencyKey
	child, made := f.turns[name]
	if !made {
		child = &treeTurn{tree: f, name: name, limit: c.Descendants - 1, calls: map[string]bool{}}
		f.turns[name] = child
	}
	switch {
	case f.cut != nil && f.cut(number):
		kill(errCutOff)
		return tool.Result{}, errors.New("no answer came")
	case !r.calls[name]:
		r.calls[name] = true
		return tool.Result{}, &tool.Pending{Turn: name}
	case child.state == nil:
		child.run()
	}
	if f.deleted != nil && f.deleted(number) {
		return tool.Result{}, &tool.Error{Class: tool.OutcomeUnknown, Message: "it is gone"}
	}
	return tool.Result{Content: "done", Spent: &tool.Spent{Turn: name}, Descendants: new(1 + child.state.Descendants())}, nil
}

// TestTreeOfSubAgentsIsBounded checks that a tree never has more Turns than allowed, wherever runs are cut
// off.
func TestTreeOfSubAgentsIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		most   int
		cut    func(int) bool
		lost   func(int) bool
		want   func(int) bool
	}{
		"none": {"no Turn is created", 0, nil, nil, func(n int) bool { return n == 0 }},
		"one":  {"the only Turn may create none", 1, nil, nil, func(n int) bool { return n == 1 }},
		"some": {"exactly the limit is used", 25, nil, nil, func(n int) bool { return n == 25 }},
		"many": {"exactly the limit is used", 300, nil, nil, func(n int) bool { return n == 300 }},
		"killed": {
			"a Turn that exists is found again and counts once", 25, func(n int) bool { return n%3 == 0 }, nil,
			func(n int) bool { return n == 25 },
		},
		"deleted": {
			"the whole reservation of a deleted Turn counts", 25, nil, func(n int) bool { return n%7 == 0 },
			func(n int) bool { return n > 0 && n <= 25 },
		},
		"everything": {
			"kills and deletions together", 40, func(n int) bool { return n%4 == 0 },
			func(n int) bool { return n%17 == 0 }, func(n int) bool { return n > 0 && n <= 40 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &turnTree{t: t, turns: map[string]*treeTurn{}, cut: tc.cut, deleted: tc.lost}
			root := &treeTurn{tree: f, name: "root", limit: tc.most, calls: map[string]bool{}}
			root.run()
			if n := len(f.turns); !tc.want(n) {
				t.Errorf("%d Turns were created within a limit of %d: %s", n, tc.most, tc.reason)
			}
			if n := root.state.Descendants(); n < len(f.turns) || n > tc.most {
				t.Errorf("the root counts %d Turns, want at least the %d that exist and at most %d", n, len(f.turns), tc.most)
			}
		})
	}
}

// TestCallWithoutATurn checks that a call without a Turn releases its reservation.
func TestCallWithoutATurn(t *testing.T) {
	c, s := candidate("one", 1, asksFor("", call("a", "agent", `{"n":1}`), call("b", "agent", `{"n":2}`), call("c", "agent", `{"n":3}`)),
		says("Done."))
	agent, _ := toolOf("agent", tool.Idempotent)
	agent.Source = tool.Source{Agent: "helper"}
	var reserved []int
	agent.Caller = tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
		reserved = append(reserved, c.Descendants)
		if c.CallID == "a" {
			return tool.Result{Descendants: new(0)}, &tool.Error{Class: tool.Unavailable, Message: "a quota is used up"}
		}
		return tool.Result{}, &tool.Error{Class: tool.OutcomeUnknown, Message: "it is gone"}
	})
	in := withTools(input(t, c), agent)
	in.Limits.MaxDescendants = 7
	if _, err := loop.Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{7, 7}, reserved); diff != "" {
		t.Errorf("reservations: -want +got:\n%s", diff)
	}
	last := transcript(s.requests[1])
	want := "tool c: error (denied): no more sub-agents can be called in this turn (limits.maxDescendants is 7): " +
		"do the task without a sub-agent, or answer from the information you have"
	if got := last[len(last)-1]; got != want {
		t.Errorf("the model received %q, want %q", got, want)
	}
}
