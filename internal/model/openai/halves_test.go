package openai_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHalvesOfCharacters checks that a character whose UTF-16 halves come in two events is whole in the reply.
func TestHalvesOfCharacters(t *testing.T) {
	call := func(more, arguments string) string {
		return delta(`"tool_calls":[{"index":0,` + more + `"function":{` + arguments + `}}]`)
	}
	for name, tc := range map[string]struct {
		events                     []string
		finish                     string
		text, reasoning, arguments string
	}{
		"text": {
			events: []string{delta(`"content":"so \ud83d"`), delta(`"content":"\ude00 good\uD83D"`), delta(`"content": "\uDE80"`)},
			finish: "stop", text: "so 😀 good🚀",
		},
		"a half alone in its event": {
			events: []string{delta(`"content":"\ud83d"`), delta(`"content":""`), delta(`"content":"\ude00"`)}, finish: "stop", text: "😀",
		},
		"reasoning, twice": {
			events: []string{
				delta(`"reasoning":"a\ud83d","reasoning_content":"a\ud83d"`), delta(`"reasoning":"\ude00","reasoning_content":"\ude00"`),
				delta(`"content":"yes"`),
			},
			finish: "stop", text: "yes", reasoning: "a😀",
		},
		"arguments": {
			events: []string{
				call(`"id":"c1",`, `"name":"find","arguments":"{\"q\":\"\\\\\ud83d"`), call("", `"arguments":"\ude00\"}"`),
			},
			finish: "tool_calls", arguments: `{"q":"\\😀"}`,
		},
		"escapes within arguments": {
			events: []string{
				call(`"id":"c1",`, `"name":"find","arguments":"{\"q\":\"\\ud83d"`), call("", `"arguments":"\\ude00\"}"`),
			},
			finish: "tool_calls", arguments: `{"q":"\ud83d\ude00"}`,
		},
		"whole": {events: []string{delta(`"content":"\ud83d\ude00"`), delta(`"content":"\u00e4"`)}, finish: "stop", text: "😀ä"},
		"a second half alone": {
			events: []string{delta(`"content":"a"`), delta(`"content":"\ude00b"`)}, finish: "stop", text: "a\uFFFDb",
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, respond(200, events(append(tc.events, finishEvent(tc.finish), "[DONE]")...), stream))
			reply, err := generate(t.Context(), provider(t, url), withTools("hello"))
			if err != nil {
				t.Fatal(err)
			}
			got := []string{reply.Text, reply.Reasoning, ""}
			for _, c := range reply.ToolCalls {
				got[2] += c.Arguments
			}
			if diff := cmp.Diff([]string{tc.text, tc.reasoning, tc.arguments}, got); diff != "" {
				t.Errorf("text, reasoning and arguments (-want +got):\n%s", diff)
			}
		})
	}
}
