package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// TestDemoRules tests the demo's model with and without facts.
func TestDemoRules(t *testing.T) {
	client := demoModel(t)
	for name, tc := range map[string]struct {
		facts []string
		want  string
	}{
		"no fact": {
			nil,
			"Thank you for your message, “What are my open loops?”. I was given no facts to go with it, so I can only say " +
				"that it reached me. Add some under the Turn's context and ask me again!",
		},
		"one fact": {
			[]string{"- [a] A &lt;b&gt; c."},
			"I looked through what I was given and found one thing that may answer “What are my open loops?”. " +
				"It is: A <b> c. Shall we go through it now?",
		},
		"two facts": {
			[]string{"- [t-1] Ticket 1 waits. (source: t/1.md)", "- [t-2] Ticket 2 (urgent), too", "  more of it"},
			"I looked through what I was given and found 2 things that may answer “What are my open loops?”. They are: " +
				"(1) Ticket 1 waits [t/1.md]; (2) Ticket 2 (urgent), too. Which of them shall we go through first?",
		},
		"more facts than the answer lists": {
			manyFacts(7),
			"I looked through what I was given and found 7 things that may answer “What are my open loops?”. They are: " +
				"(1) F0; (2) F1; (3) F2; (4) F3; (5) F4; and 2 more. Which of them shall we go through first?",
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := openai.ChatCompletionRequest{Model: "demo-small", Messages: []openai.ChatCompletionMessage{
				{Role: "system", Name: "system_prompt", Content: "Some rules:\n- be kind"},
				{Role: "system", Name: "runtime_metadata", Content: "- provider: demo\n- model: demo-small"},
			}}
			if tc.facts != nil {
				pack := "## Facts\n<untrusted-text>\n" + strings.Join(tc.facts, "\n") + "\n</untrusted-text>"
				req.Messages = append(req.Messages, openai.ChatCompletionMessage{Role: "system", Name: "context_pack", Content: pack})
			}
			req.Messages = append(req.Messages, openai.ChatCompletionMessage{Role: "user", Content: "What are my open loops?"})
			got, err := client.CreateChatCompletion(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if text := got.Choices[0].Message.Content; text != tc.want {
				t.Errorf("want: %s\nhave: %s", tc.want, text)
			}
		})
	}
}

func TestDocumentedRulesLoad(t *testing.T) {
	page, err := os.ReadFile("../../docs/fakemodel.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```text\n(.*?)```").FindAllSubmatch(page, -1)
	rules := []int{3, 3, 3, 1} // the number of rules of each example, in order
	if len(blocks) != len(rules) {
		t.Fatalf("want %d examples in the page, have %d", len(rules), len(blocks))
	}
	for i, block := range blocks {
		if cfg, err := server.ParseConfig(block[1]); err != nil || len(cfg.Rules) != rules[i] {
			t.Errorf("want %d rules, have %d and error %v:\n%s", rules[i], len(cfg.Rules), err, block[1])
		}
	}
}

func manyFacts(n int) []string {
	var facts []string
	for i := range n {
		facts = append(facts, fmt.Sprintf("- [f-%d] F%d.", i, i))
	}
	return facts
}
