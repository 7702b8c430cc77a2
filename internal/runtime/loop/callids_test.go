package loop_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestCallIDsAreUniqueWithinATurn checks that IDs are unique, within a reply and between replies, whatever the
// endpoint sends. This holds for every record that names a call, and for a run that resumes from the journal.
func TestCallIDsAreUniqueWithinATurn(t *testing.T) {
	shared := strings.Repeat("x", 128)
	j := &journaltest.Store{}
	c, s := candidate("one", 1,
		asksFor("", call("a", "send", `{"n":1}`), call("a", "send", `{"n":2}`), call("", "send", `{"n":3}`)),
		asksFor("", call("a", "send", `{"n":4}`), call(shared+"1", "send", `{"n":5}`), call(shared+"2", "send", `{"n":6}`)),
		asksFor("", call("call_1", "send", `{"n":7}`), call("a\n", "send", `{"n":8}`)),
		says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	lost := errors.New("the store is lost")
	for epoch := int64(1); ; epoch++ {
		in := withTools(inputOf(t, j, epoch, c), send)
		record := in.Record
		in.Record = func(records ...journal.Record) error {
			err := record(records...)
			if records[0].Kind == journal.ModelReplied && epoch < 4 {
				return lost // after each of the first replies, another run continues
			}
			return err
		}
		end, err := loop.Run(t.Context(), &in)
		if errors.Is(err, lost) {
			continue
		}
		if err != nil || end.Reason != loop.Answered {
			t.Fatalf("Run = %+v, %v; want the answer", end, err)
		}
		break
	}
	want := []string{
		keyOf("uid/1/a"), keyOf("uid/1/a_2"), keyOf("uid/1/call_2"), keyOf("uid/2/a_3"), keyOf("uid/2/call_1"), keyOf("uid/2/call_2_2"),
		keyOf("uid/3/call_1_2"), keyOf("uid/3/call_1_3"),
	}
	if diff := cmp.Diff(want, sent.keys()); diff != "" {
		t.Errorf("calls by idempotency key: -want +got:\n%s", diff)
	}
	asked, answered := map[string]int{}, map[string]int{}
	for _, m := range s.requests[len(s.requests)-1].Messages {
		for _, c := range m.ToolCalls {
			asked[c.ID]++
			if !model.ValidCallID(c.ID) {
				t.Errorf("a request contains the invalid call ID %q", c.ID)
			}
		}
		if m.Role == model.RoleTool {
			answered[m.ToolCallID]++
		}
	}
	if diff := cmp.Diff(asked, answered); diff != "" || len(asked) != 8 {
		t.Errorf("%d calls: -asked +answered:\n%s", len(asked), diff)
	}
}
