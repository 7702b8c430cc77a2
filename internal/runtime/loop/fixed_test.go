package loop_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestFixedCallsAfterARefusal checks that a fixed call is made only if the calls before it have succeeded, although
// approval is requested for all of them together. The refusal of a later call does not affect the calls before it.
func TestFixedCallsAfterARefusal(t *testing.T) {
	changed := &tool.Error{Class: tool.Unavailable, Message: "it was replaced", Err: tool.ErrChanged}
	approved := func(id string) loop.Decision { return loop.Decision{Step: 1, CallID: id, Approved: true, By: "ann"} }
	for name, tc := range map[string]struct {
		// decisions are made while the Turn is parked. later is how long it stays parked.
		decisions []loop.Decision
		later     time.Duration
		// checkThird is the result of the check of the tool of the third call.
		checkThird error
		outcomes   []loop.Outcome
	}{
		"all approved": {
			decisions: []loop.Decision{approved("c3"), approved("c2"), approved("c1")},
			outcomes:  []loop.Outcome{loop.Succeeded, loop.Succeeded, loop.Succeeded},
		},
		"the first is denied": {
			decisions: []loop.Decision{{Step: 1, CallID: "c3", By: "ann"}, approved("c2"), approved("c1")},
			outcomes:  []loop.Outcome{loop.Refused, loop.Refused, loop.Refused},
		},
		"the second is denied": {
			decisions: []loop.Decision{approved("c3"), {Step: 1, CallID: "c2", By: "ann"}, approved("c1")},
			outcomes:  []loop.Outcome{loop.Succeeded, loop.Refused, loop.Refused},
		},
		"the first expires": {
			decisions: []loop.Decision{approved("c2"), approved("c1")}, later: 2 * time.Hour,
			outcomes: []loop.Outcome{loop.Refused, loop.Refused, loop.Refused},
		},
		"the tool of the third has changed": {
			decisions: []loop.Decision{approved("c3"), approved("c2")}, checkThird: changed,
			outcomes: []loop.Outcome{loop.Succeeded, loop.Succeeded, loop.Refused},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := &approver{now: noon, decisions: map[string]loop.Decision{}}
			undo, _ := toolOf("undo", tool.Destructive, result{content: "done"})
			third, sent := toolOf("third", tool.Destructive, result{content: "done"})
			third.Caller = &checkedServer{fakeToolServer: sent, check: func(int) error { return tc.checkThird }}
			undo.RequiresApproval, third.RequiresApproval = true, true
			in := withApprover(withTools(inputOf(t, &journaltest.Store{}, 1), undo, third), o)
			err := in.Record(journal.Record{Kind: journal.UndoPlanned, Payload: loop.FixedCalls{Calls: []model.ToolCall{
				call("c3", "undo", `{"n":3}`), call("c2", "undo", `{"n":2}`), call("c1", "third", `{"n":1}`),
			}}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = loop.RunFixed(t.Context(), &in)
			if _, parked := errors.AsType[*loop.Parked](err); !parked {
				t.Fatalf("RunFixed: %v, want *Parked", err)
			}
			for _, d := range tc.decisions {
				o.decisions[d.CallID] = d
			}
			o.now = o.now.Add(tc.later)
			if _, err := loop.RunFixed(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
			outcomes := make([]loop.Outcome, 3)
			for _, f := range in.State.CallResults {
				outcomes[map[string]int{"c3": 0, "c2": 1, "c1": 2}[f.CallID]] = f.Outcome
			}
			if diff := cmp.Diff(tc.outcomes, outcomes); diff != "" {
				t.Errorf("outcomes: -want +got:\n%s", diff)
			}
		})
	}
}
