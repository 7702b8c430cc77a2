package server

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sashabaranov/go-openai"
)

// steps are rules with two conversations: one of three steps for a message with steps=3, and one for any other
// message. Each step calls a tool with a word of the message and the number of the step.
const steps = `
rules:
- when: {matches: '\bsteps=3\b', toolMessages: 3}
  reply: {text: 'Done after {{ .ToolMessages }}.'}
- when: {hasTools: true, matches: '\bsteps=3\b'}
  reply:
    toolCalls:
    - name: count
      arguments: '{"turn": {{ first "turn=(\\S+)" .User | json }}, "step": {{ add .ToolMessages 1 }}}'
- when: {hasTools: true, toolMessages: 0}
  reply: {toolCalls: [{name: count}]}
- when: {hasTools: false}
  reply: {text: 'No tools, {{ .ToolMessages }} results.'}
`

func TestConversationOfSeveralSteps(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, message string
		// withTools is the number of requests that offer the tool; later requests do not.
		withTools int
		want      []string
		text      string
		// forbids is true if these later requests have the tool, and forbid calls of it.
		forbids bool
	}{
		"three steps": {
			"each step has its number", `turn=a"1 steps=3`, 9,
			[]string{`{"turn": "a\"1", "step": 1}`, `{"turn": "a\"1", "step": 2}`, `{"turn": "a\"1", "step": 3}`},
			"Done after 3.", false,
		},
		"tools withdrawn": {
			"a request without tools gets an answer", "turn=b steps=3", 2,
			[]string{`{"turn": "b", "step": 1}`, `{"turn": "b", "step": 2}`},
			"No tools, 2 results.", false,
		},
		"calls forbidden": {
			"a request that forbids calls gets an answer", "turn=b steps=3", 2,
			[]string{`{"turn": "b", "step": 1}`, `{"turn": "b", "step": 2}`},
			"No tools, 2 results.", true,
		},
		"one step": {"there are no more calls than the rules define", "hello", 9, []string{"{}"}, "This is m. You said: hello", false},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, steps)
			req := askForUsage("turn=old steps=3")
			req.Messages = append(req.Messages, // an earlier exchange, whose results must not count
				openai.ChatCompletionMessage{Role: "assistant", ToolCalls: []openai.ToolCall{
					{ID: "x", Type: "function", Function: openai.FunctionCall{Name: "count", Arguments: "{}"}},
				}},
				openai.ChatCompletionMessage{Role: "tool", ToolCallID: "x", Content: "1"},
				openai.ChatCompletionMessage{Role: "user", Content: tc.message})
			var arguments []string
			var tokens int64
			for i := range 9 {
				req.Tools, req.ToolChoice = []openai.Tool{{
					Type:     "function",
					Function: &openai.FunctionDefinition{Name: "count", Parameters: map[string]string{"type": "object"}},
				}}, nil
				switch {
				case i < tc.withTools:
				case tc.forbids:
					req.ToolChoice = "none"
				default:
					req.Tools = nil
				}
				got, err := receive(openStream(t.Context(), t, fake.client, req))
				if err != nil {
					t.Fatal(err)
				}
				tokens += int64(got.Usage.TotalTokens)
				if got.Text != "" {
					if got.Text != tc.text || got.Finish != openai.FinishReasonStop {
						t.Errorf("%s: want %q, have %q", tc.reason, tc.text, got.Text)
					}
					break
				}
				req.Messages = append(req.Messages, openai.ChatCompletionMessage{Role: "assistant", ToolCalls: got.Calls})
				for _, call := range got.Calls {
					arguments = append(arguments, call.Function.Arguments)
					req.Messages = append(req.Messages, openai.ChatCompletionMessage{
						Role: "tool", ToolCallID: call.ID,
						Content: fmt.Sprint(i),
					})
				}
			}
			if diff := cmp.Diff(tc.want, arguments); diff != "" {
				t.Errorf("%s: arguments (-want +got):\n%s", tc.reason, diff)
			}
			if stats := fake.Stats(); stats.Billed != int64(len(tc.want)+1) || stats.BilledInputTokens+stats.BilledOutputTokens != tokens {
				t.Errorf("want %d requests and %d tokens billed, have %+v", len(tc.want)+1, tokens, stats)
			}
		})
	}
}
