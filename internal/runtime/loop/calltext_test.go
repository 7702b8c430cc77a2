package loop_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestCallAsTextInTheLastReply has a model that writes a call as text after the last step, as servers return calls if a
// request offers no tools. It is no answer, so the model is asked once more.
func TestCallAsTextInTheLastReply(t *testing.T) {
	const written = "I look again.\n<tool_call>\n{\"name\": \"find\", \"arguments\": {}}\n</tool_call>"
	find := asksFor("", call("c1", "find", `{}`))
	for name, tc := range map[string]struct {
		reason   string
		answers  []answer
		requests int
		want     string
		message  string
	}{
		"then an answer": {"the user gets the answer", []answer{find, says(written), says("Found.")}, 3, "Found.", "its best answer"},
		"again":          {"the model is asked only once more", []answer{find, says(written), says(written)}, 3, written, "no answer"},
		"about a call": {
			"a call within an answer is a part of it",
			[]answer{find, says(written + "\nis a call.")},
			2, written + "\nis a call.",
			"its best answer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, tc.answers...)
			tools, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			in := withTools(input(t, c), tools)
			in.Limits.MaxSteps = 1
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end.Reason != loop.OutOfSteps || len(s.requests) != tc.requests || in.State.AnswerText() != tc.want {
				t.Fatalf("Run = %+v, %v after %d requests with the answer %q; want %q after %d: %s", end, err, len(s.requests),
					in.State.AnswerText(), tc.want, tc.requests, tc.reason)
			}
			if !strings.Contains(end.Message, tc.message) {
				t.Errorf("the message is %q, want it to say %q", end.Message, tc.message)
			}
		})
	}
}
