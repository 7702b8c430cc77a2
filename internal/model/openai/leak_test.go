package openai_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestCallAsText checks that a call that the server did not recognise is no answer, if the model has tools.
func TestCallAsText(t *testing.T) {
	const qwen = `<tool_call>\n{\"name\": \"count\", \"arguments\": {}}\n</tool_call>`
	for name, tc := range map[string]struct {
		text     string
		tools    bool
		isAnswer bool
	}{
		"Qwen": {qwen + `\n`, true, false},
		"DeepSeek": {
			`I count.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"count\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>`, true, false,
		},
		"Gemma":         {`<|tool_call>call:count{}<tool_call|>`, true, false},
		"Kimi":          {`<|tool_calls_section_begin|>…<|tool_call_end|><|tool_calls_section_end|>`, true, false},
		"MiniMax":       {`<minimax:tool_call>\n<invoke name=\"count\">\n</invoke>\n</minimax:tool_call>`, true, false},
		"DeepSeek V3":   {`<｜tool▁calls▁begin｜>…<｜tool▁calls▁end｜>`, true, false},
		"without tools": {qwen, false, true},
		"about calls":   {"A call looks so: " + qwen + ". The server reads it.", true, true},
		"in a block":    {"```xml\\n" + qwen + "\\n```", true, true},
	} {
		for kind, c := range map[string]struct{ body, contentType string }{
			"streamed": {events(
				`{"choices":[{"index":0,"delta":{"content":"`+tc.text+`"},"finish_reason":"stop"}]}`, "[DONE]"), stream},
			"whole": {`{"choices":[{"message":{"role":"assistant","content":"` + tc.text + `"},"finish_reason":"stop"}]}`, jsonType},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				p := provider(t, serve(t, respond(200, c.body, c.contentType)))
				req := request("hello")
				if tc.tools {
					req.Tools = []model.Tool{{Name: "count"}}
				}
				_, err := p.Generate(t.Context(), &req)
				if (err == nil) != tc.isAnswer {
					t.Fatalf("Generate: %v, want an answer: %t", err, tc.isAnswer)
				}
				if err == nil {
					return
				}
				if failure := model.AsError(err); failure.Kind != model.Malformed || !failure.MayBeBilled {
					t.Errorf("Generate: %s %v, want an error of the kind Malformed that may be billed", failure.Kind, err)
				}
			})
		}
	}
}
