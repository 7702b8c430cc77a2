package loop_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestSchemasOfServers are offered as the server gave them, and not as the prompt lists the parameters.
func TestSchemasOfServers(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}`
	c, s := candidate("one", 1, says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	find.Schema = json.RawMessage(schema)
	if _, err := loop.Run(t.Context(), with(input(t, c), find)); err != nil {
		t.Fatal(err)
	}
	if got := string(s.requests[0].Tools[0].Parameters); got != schema {
		t.Errorf("the endpoint gets %s, want %s", got, schema)
	}
}

// long is a conversation whose first exchange is long. The last two stay whole.
func long() []model.Message {
	return []model.Message{{Role: model.RoleUser, Content: words(200)}, {Role: model.RoleUser, Content: "One."}, {Role: model.RoleUser, Content: "Two."}}
}

// TestASummaryHasAttemptsOfItsOwn: those of the step are all left after it has failed.
func TestASummaryHasAttemptsOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := candidate("one", 2, fails(model.Overloaded), fails(model.Overloaded), fails(model.Overloaded), says("Done."))
		c.ContextWindow = 100
		in := withHistory(input(t, c), long()...)
		in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 90}
		end, err := loop.Run(t.Context(), in)
		if err != nil || end.Reason != loop.Answered || len(s.requests) != 4 {
			t.Fatalf("Run = %+v, %v after %d requests; want the answer after 2 for the summary and 2 for the step", end, err, len(s.requests))
		}
		for i, want := range []loop.Request{{Purpose: loop.ForCompaction, Attempt: 1}, {Purpose: loop.ForCompaction, Attempt: 2}, {Attempt: 1}, {Attempt: 2}} {
			if got := in.State.Requests[i]; got.Purpose != want.Purpose || got.Attempt != want.Attempt || got.Step != 1 {
				t.Errorf("request %d is journalled as %+v, want purpose %q and attempt %d", i+1, got, want.Purpose, want.Attempt)
			}
			if i < 3 && in.State.Attempts[i].Purpose != want.Purpose {
				t.Errorf("its failure as %+v, want purpose %q", in.State.Attempts[i], want.Purpose)
			}
		}
	})
}

// TestAFallbackHasItsOwnWindow: a conversation is shortened when the first model needs it, and then it is for all.
func TestAFallbackHasItsOwnWindow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		first, second int64
		want          []string // of the models asked, and for what
	}{
		"the second is small": {"it is shortened for the second", 10_000, 100, []string{"one", "two compaction", "two"}},
		"the first is small":  {"and stays so", 100, 10_000, []string{"one compaction", "one", "two"}},
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
			in := withHistory(input(t, one, two), long()...)
			in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 90}
			if end, err := loop.Run(t.Context(), in); err != nil || end.Reason != loop.Answered {
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
