package loop_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// withData returns an answer with data that its provider needs again.
func withData(id, text string) answer {
	a := asksFor("", model.ToolCall{ID: id, Name: "find", Arguments: `{"n":1}`, ProviderData: json.RawMessage(`{"signature":"<&>"}`)})
	a.reply.ProviderData = &model.ProviderData{Format: "test", Text: text, Blocks: json.RawMessage(`[{"signature":"<&>"}]`)}
	return a
}

// dataOf returns one line for each call in a request: its ID, the text in the data of its message, and its own data.
func dataOf(r model.Request) (all []string) {
	for _, m := range r.Messages {
		for _, c := range m.ToolCalls {
			line := c.ID
			if d := m.ProviderData; d != nil {
				line += " " + d.Text
			}
			all = append(all, line+" "+string(c.ProviderData))
		}
	}
	return all
}

func TestProviderDataGoesToItsProviderOnly(t *testing.T) {
	one, first := candidate("one", 1, withData("a", "thought of one"), fails(model.InvalidRequest))
	two, second := candidate("two", 1, withData("b", "thought of two"), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, one, two), find)
	if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
		t.Fatalf("Run = %+v, %v; want the answer", end, err)
	}
	const signature = `{"signature":"\u003c\u0026\u003e"}` // as the journal keeps it, which is the same JSON
	for name, tc := range map[string]struct {
		request model.Request
		want    []string
	}{
		"back to the model that made it": {first.requests[1], []string{"a thought of one " + signature}},
		"not to the next model":          {second.requests[0], []string{"a "}},
		"back to the next model":         {second.requests[1], []string{"a ", "b thought of two " + signature}},
	} {
		if diff := cmp.Diff(tc.want, dataOf(tc.request)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	if kept := in.State.Steps[0].Reply; kept.ProviderData.Text != "thought of one" || kept.ToolCalls[0].ProviderData == nil {
		t.Errorf("the journal has %+v, want the data of the first model, too", kept)
	}
}

// TestProviderDataGoesToItsEndpointOnly checks that data goes only to the endpoint that made it. When the Turn
// continues, a provider with the same name may have another endpoint.
func TestProviderDataGoesToItsEndpointOnly(t *testing.T) {
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	for endpoint, want := range map[string]string{"a.example": "I think.", "b.example": ""} {
		j := &journaltest.Store{}
		c, s := candidate("one", 1, withData("a", "I think."), says("Done."))
		c.Endpoint = "a.example"
		in := withTools(inputOf(t, j, 1, c), find)
		in.Record = runAfterError(in.Record, journal.ModelReplied, errCutOff)
		if _, err := loop.Run(t.Context(), &in); !errors.Is(err, errCutOff) {
			t.Fatalf("Run: %v, want it cut off", err)
		}
		c.Endpoint = endpoint
		in = withTools(inputOf(t, j, 2, c), find)
		if _, err := loop.Run(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, m := range s.requests[1].Messages {
			if d := m.ProviderData; d != nil {
				text += d.Text
			}
		}
		if text != want {
			t.Errorf("the endpoint %s received %q, want %q", endpoint, text, want)
		}
	}
}

// TestProviderDataAfterARestart checks that a run that continues from the journal sends the same messages as a run that
// was not interrupted.
func TestProviderDataAfterARestart(t *testing.T) {
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	sent := func(interrupted bool) string {
		j := &journaltest.Store{}
		c, s := candidate("one", 1, withData("a", "I \u2028 look"), says("Done."))
		in := withTools(inputOf(t, j, 1, c), find)
		if interrupted {
			in.Record = runAfterError(in.Record, journal.ModelReplied, errCutOff)
		}
		_, err := loop.Run(t.Context(), &in)
		if interrupted != errors.Is(err, errCutOff) {
			t.Fatalf("Run = %v, but interrupted is %t", err, interrupted)
		}
		if interrupted {
			in = withTools(inputOf(t, j, 2, c), find)
			if _, err := loop.Run(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
		}
		messages, err := json.Marshal(s.requests[1].Messages)
		if err != nil {
			t.Fatal(err)
		}
		return string(messages)
	}
	if diff := cmp.Diff(sent(false), sent(true)); diff != "" {
		t.Errorf("messages after a restart: -without +with:\n%s", diff)
	}
}
