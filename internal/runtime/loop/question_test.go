package loop_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestServerSchemasAreOffered checks that a tool is offered with the schema of its server, not with the parameters
// in the prompt.
func TestServerSchemasAreOffered(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}`
	c, s := candidate("one", 1, says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	find.Schema = json.RawMessage(schema)
	if _, err := loop.Run(t.Context(), new(withTools(input(t, c), find))); err != nil {
		t.Fatal(err)
	}
	if got := string(s.requests[0].Tools[0].Parameters); got != schema {
		t.Errorf("the endpoint gets %s, want %s", got, schema)
	}
}

// longHistory returns a conversation with a long first exchange. The last two exchanges stay whole.
func longHistory() []model.Message {
	return []model.Message{
		{Role: model.RoleUser, Content: words(200)},
		{Role: model.RoleUser, Content: "One."},
		{Role: model.RoleUser, Content: "Two."},
	}
}

// TestSummaryHasItsOwnAttempts checks that a failed summary does not use up attempts of the step.
func TestSummaryHasItsOwnAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := candidate("one", 2, fails(model.Overloaded), fails(model.Overloaded), fails(model.Overloaded), says("Done."))
		c.ContextWindow = 100
		in := withHistory(input(t, c), longHistory()...)
		in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 90}
		end, err := loop.Run(t.Context(), &in)
		if err != nil || end.Reason != loop.Answered || len(s.requests) != 4 {
			t.Fatalf("Run = %+v, %v after %d requests; want the answer after 2 for the summary and 2 for the step", end,
				err, len(s.requests))
		}
		for i, want := range []loop.Request{
			{Purpose: loop.ForCompaction, Attempt: 1},
			{Purpose: loop.ForCompaction, Attempt: 2},
			{Attempt: 1},
			{Attempt: 2},
		} {
			if got := in.State.Requests[i]; got.Purpose != want.Purpose || got.Attempt != want.Attempt || got.Step != 1 {
				t.Errorf("request %d is journalled as %+v, want purpose %q and attempt %d", i+1, got, want.Purpose, want.Attempt)
			}
			if i < 3 && in.State.FailedRequests[i].Purpose != want.Purpose {
				t.Errorf("the failure of request %d is journalled as %+v, want purpose %q", i+1, in.State.FailedRequests[i], want.Purpose)
			}
		}
	})
}

// TestFallbackHasItsOwnWindow checks that a conversation is compacted when the current model needs it, and then
// stays compacted for all models.
func TestFallbackHasItsOwnWindow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		first, second int64
		want          []string // the models and the purposes of the requests
	}{
		"the second is small": {
			"the conversation is compacted for the second model", 10_000, 100,
			[]string{"one", "two compaction", "two"},
		},
		"the first is small": {"the conversation stays compacted", 100, 10_000, []string{"one compaction", "one", "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			answers := func(summary bool, last answer) []answer {
				if summary {
					return []answer{says("It was long."), last}
				}
				return []answer{last}
			}
			one, _ := candidate("one", 1, answers(tc.first == 100, fails(model.Auth))...)
			two, _ := candidate("two", 1, answers(tc.second == 100, says("Done."))...)
			one.ContextWindow, two.ContextWindow = tc.first, tc.second
			in := withHistory(input(t, one, two), longHistory()...)
			in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 90}
			if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			for i, want := range tc.want {
				r := in.State.Requests[i]
				got := r.Provider
				if r.Purpose != "" {
					got += " " + string(r.Purpose)
				}
				if got != want || len(in.State.Requests) != len(tc.want) {
					t.Errorf("request %d of %d is for %q, want %q: %s", i+1, len(in.State.Requests), got, want, tc.reason)
				}
			}
		})
	}
}
