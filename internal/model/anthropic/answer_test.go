package anthropic_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestThoughtsAreSentBack checks a loop with signed thoughts. The server refuses results of calls if the thoughts are
// missing or changed.
func TestThoughtsAreSentBack(t *testing.T) {
	strict, url := start(t, func(r modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
		if len(r.Messages) > 1 {
			return []modeltest.AnthropicBlock{{Type: "text", Text: "Done."}}, "end_turn"
		}
		return []modeltest.AnthropicBlock{
			{Type: "thinking", Thinking: "I need <both> & more."},
			{Type: "text", Text: "I count."},
			{Type: "redacted_thinking", Data: "c2VjcmV0"},
			{Type: "tool_use", ID: "toolu_1", Name: "count", Input: json.RawMessage(`{"n":1}`)},
			{Type: "tool_use", ID: "toolu_2", Name: "count", Input: json.RawMessage(`{}`)},
		}, "tool_use"
	})
	p := provider(t, url)
	req := model.Request{
		Model: "claude-sonnet-4-5", Messages: []model.Message{system("Be.", 3), user("a")}, Tools: count,
		Parameters: model.Parameters{Effort: "low"},
	}
	first, err := p.Generate(t.Context(), &req)
	if err != nil {
		t.Fatal(err)
	}
	req.Messages = append(
		req.Messages,
		model.Message{Role: model.RoleAssistant, Content: first.Text, ToolCalls: first.ToolCalls, ProviderData: first.ProviderData},
		result("toolu_1", "1"), result("toolu_2", "2"),
	)
	if second, err := p.Generate(t.Context(), &req); err != nil || second.Text != "Done." {
		t.Fatalf("the second reply is %+v, %v; refused: %q", second, err, strict.Refused())
	}
	var kinds []string
	for _, b := range strict.Requests()[1].Messages[1].Content {
		kinds = append(kinds, b.Type)
	}
	want := []string{"thinking", "text", "redacted_thinking", "tool_use", "tool_use"}
	if diff := cmp.Diff(want, kinds); diff != "" || strict.Requests()[1].Thinking == nil {
		t.Errorf("want the thoughts in their original places, and thinking still enabled: -want +got:\n%s", diff)
	}
	req.Messages[2].ProviderData.Format = "anthropic/thinking" // the format of earlier versions
	req.Messages[2].ProviderData.Blocks = json.RawMessage(`[{"at":0,"block":{"type":"thinking","thinking":"No.","signature":"x"}}]`)
	if _, err := p.Generate(t.Context(), &req); err == nil {
		t.Error("the strict server accepts a changed thought")
	}
	req.Messages[2].ProviderData = nil
	if _, err := p.Generate(t.Context(), &req); err != nil || strict.Requests()[2].Thinking != nil {
		t.Errorf("calls without thoughts: %v, want a request without thinking", err)
	}
}

// TestBlocksKeepTheirOrder checks that a reply with thoughts is sent back with its blocks in their order: the endpoint
// refuses a thought in another place. If the order is not known any more, no thoughts are sent. A reply is given by its
// blocks: thoughts are t, texts are their text, and calls are c.
func TestBlocksKeepTheirOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, blocks string
		change         func(m *model.Message)
		want           string
	}{
		"texts between": {"each text stays a block of its own", "t A. t B. c", nil, "t A. t B. c"},
		"calls between": {"a text may follow a call", "t c t A. c", nil, "t c t A. c"},
		"texts in a row": {
			"the texts are not joined", "t Grüße, B. c", nil, "t Grüße, B. c",
		},
		"text first": {"a thought may follow", "A. t t c", nil, "A. t t c"},
		"blank text": {"the protocol refuses blank texts", "t _ t c", nil, "t t c"},
		"only text changed": {
			"a credential was removed", "t A. t c", func(m *model.Message) { m.Content = "[removed]" }, "t [removed] t c",
		},
		"texts changed": {
			"the places of the texts are not known", "t A. t B. c", func(m *model.Message) { m.Content = "[removed]B." }, "[removed]B. c",
		},
		"text shorter":       {"the same", "t A. t B. c", func(m *model.Message) { m.Content = "A" }, "A c"},
		"within a character": {"the same", "t A. t B. c", func(m *model.Message) { m.Content = "Aé." }, "Aé. c"},
		"call removed": {
			"the thoughts belong to the calls", "t c t c", func(m *model.Message) { m.ToolCalls = m.ToolCalls[:1] }, "c",
		},
		"call added": {"the same", "t c", func(m *model.Message) {
			m.ToolCalls = append(m.ToolCalls, model.ToolCall{ID: "x", Name: "count", Arguments: "{}"})
		}, "c c"},
		"of an earlier version": {"journals may contain it", "A. c c", func(m *model.Message) {
			block := `"block":{"type":"thinking","thinking":"Hm.","signature":"` + modeltest.AnthropicSignature("Hm.") + `"}}`
			m.ProviderData = &model.ProviderData{
				Format: "anthropic/thinking",
				Blocks: json.RawMessage(`[{"at":0,` + block + `,{"at":1,` + block + `,{"at":9,` + block + `]`),
			}
		}, "t A. t c c t"},
	} {
		t.Run(name, func(t *testing.T) {
			strict, url := start(t, func(r modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
				if len(r.Messages) > 1 {
					return []modeltest.AnthropicBlock{{Type: "text", Text: "Done."}}, "end_turn"
				}
				return blocksOf(tc.blocks), "tool_use"
			})
			p := provider(t, url)
			req := model.Request{
				Model: "claude-sonnet-4-5", Messages: []model.Message{user("a")}, Tools: count, Parameters: model.Parameters{Effort: "low"},
			}
			first, err := p.Generate(t.Context(), &req)
			if err != nil {
				t.Fatal(err)
			}
			reply := model.Message{
				Role: model.RoleAssistant, Content: first.Text, ToolCalls: first.ToolCalls, ProviderData: first.ProviderData,
			}
			if tc.change != nil {
				tc.change(&reply)
			}
			req.Messages = append(req.Messages, reply)
			for _, c := range reply.ToolCalls {
				req.Messages = append(req.Messages, result(c.ID, "1"))
			}
			if _, err := p.Generate(t.Context(), &req); err != nil {
				t.Fatalf("the second request: %v; refused: %q", err, strict.Refused())
			}
			second := strict.Requests()[1]
			var sent []string
			for _, b := range second.Messages[1].Content {
				sent = append(sent, map[string]string{"text": b.Text, "thinking": "t", "tool_use": "c"}[b.Type])
			}
			if diff := cmp.Diff(strings.Fields(tc.want), sent); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if mayThink := strings.HasPrefix(tc.want, "t "); (second.Thinking != nil) != mayThink {
				t.Errorf("thinking is %+v; want it enabled: %t", second.Thinking, mayThink)
			}
		})
	}
}

// blocksOf returns the blocks of a reply in the form of TestBlocksKeepTheirOrder. The text _ is blank.
func blocksOf(reply string) []modeltest.AnthropicBlock {
	var blocks []modeltest.AnthropicBlock
	for i, b := range strings.Fields(reply) {
		switch b {
		case "t":
			blocks = append(blocks, modeltest.AnthropicBlock{Type: "thinking", Thinking: "Hm."})
		case "c":
			blocks = append(blocks, modeltest.AnthropicBlock{
				Type: "tool_use", ID: fmt.Sprint("toolu_", i), Name: "count", Input: json.RawMessage(`{}`),
			})
		default:
			blocks = append(blocks, modeltest.AnthropicBlock{Type: "text", Text: strings.ReplaceAll(b, "_", "\n\n")})
		}
	}
	return blocks
}

// TestThoughtsAfterDroppedBlocks checks that no thoughts are sent back if a thought follows a block that is not sent
// back.
func TestThoughtsAfterDroppedBlocks(t *testing.T) {
	const thought, call = `{"type":"thinking","thinking":"Hm.","signature":"s"}`, `{"type":"tool_use","id":"a","name":"count","input":{}}`
	const answer = `{"type":"tool_use","id":"b","name":"give_final_answer","input":{"a":1}}`
	const text, unknown = `{"type":"text","text":"It is."}`, `{"type":"server_tool_use","id":"c","name":"web_search","input":{}}`
	for name, tc := range map[string]struct {
		content []string
		isKept  bool
	}{
		"thought, then the answer":         {[]string{thought, answer, call}, true},
		"the answer, then a thought":       {[]string{thought, answer, thought, call}, false},
		"a dropped text, then a thought":   {[]string{text, thought, answer, call}, false},
		"thought, then an unknown block":   {[]string{thought, unknown, call}, true},
		"an unknown block, then a thought": {[]string{unknown, thought, call}, false},
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"type":"message","content":[%s],"stop_reason":"tool_use"}`, strings.Join(tc.content, ","))
			}))
			t.Cleanup(web.Close)
			reply, err := provider(t, web.URL).Generate(t.Context(), &model.Request{
				Model: "claude-sonnet-4-5", Messages: []model.Message{user("a")}, Tools: count,
				Output: json.RawMessage(`{"type":"object"}`),
			})
			if err != nil || (reply.ProviderData != nil) != tc.isKept {
				t.Errorf("%+v, %v; want the thoughts kept: %t", reply, err, tc.isKept)
			}
		})
	}
}

// TestStructuredAnswers checks how the schema of an answer is sent, and which part of the reply is the answer.
func TestStructuredAnswers(t *testing.T) {
	const schema = `{"type":"object","properties":{"city":{"type":"string"}}}`
	answer := modeltest.AnthropicBlock{
		Type: "tool_use", ID: "toolu_9", Name: "give_final_answer", Input: json.RawMessage(`{"city":"Bonn"}`),
	}
	text := modeltest.AnthropicBlock{Type: "text", Text: "It is Bonn."}
	call := modeltest.AnthropicBlock{Type: "tool_use", ID: "toolu_1", Name: "count", Input: json.RawMessage(`{}`)}
	answered := model.Reply{Text: `{"city":"Bonn"}`, FinishReason: model.FinishStop}
	called := model.Reply{ToolCalls: []model.ToolCall{{ID: "toolu_1", Name: "count", Arguments: "{}"}}, FinishReason: model.FinishToolCalls}
	for name, tc := range map[string]struct {
		reason  string
		schema  string
		tools   []model.Tool
		effort  string
		options anthropic.Options
		blocks  []modeltest.AnthropicBlock
		stop    string
		want    model.Reply
		choice  string
		format  bool
	}{
		"alone": {
			"the model must call the tool", schema, nil, "",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{answer},
			"tool_use", answered, "tool", false,
		},
		"with tools": {
			"the model must call some tool", schema, count, "",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{text, answer},
			"tool_use", answered, "any", false,
		},
		"with thoughts": {
			"the protocol refuses to force a call", schema, nil, "low",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{answer, text},
			"end_turn", answered, "auto", false,
		},
		"as text": {
			"a model that is not forced may write the answer", schema, nil, "low",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{{Type: "text", Text: `{"city":"Bonn"}`}},
			"end_turn", answered, "auto", false,
		},
		"with another call": {
			"the answer was given before the result was known", schema, count, "",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{answer, call},
			"tool_use", called, "any", false,
		},
		"cut off": {
			"a part of an answer is kept", schema, nil, "",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{answer},
			"max_tokens",
			model.Reply{Text: answered.Text, FinishReason: model.FinishLength},
			"tool", false,
		},
		"strict": {
			"the endpoint restricts the text", `{"type":"object","additionalProperties":false}`, nil, "",
			anthropic.Options{StrictSchemas: true},
			[]modeltest.AnthropicBlock{{Type: "text", Text: `{}`}},
			"end_turn",
			model.Reply{Text: "{}", FinishReason: model.FinishStop},
			"", true,
		},
		"list": {
			"the arguments of a tool are an object", `{"type":"array","items":{"type":"object","additionalProperties":false}}`, nil, "",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{{Type: "text", Text: `[]`}},
			"end_turn",
			model.Reply{Text: "[]", FinishReason: model.FinishStop},
			"", true,
		},
		"name in use": {
			"a tool of the Agent has the name", `{"type":"object","additionalProperties":false}`,
			[]model.Tool{{Name: "give_final_answer"}},
			"",
			anthropic.Options{},
			[]modeltest.AnthropicBlock{answer},
			"tool_use",
			model.Reply{
				ToolCalls:    []model.ToolCall{{ID: "toolu_9", Name: "give_final_answer", Arguments: `{"city":"Bonn"}`}},
				FinishReason: model.FinishToolCalls,
			},
			"", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			strict, url := start(t, func(modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) { return tc.blocks, tc.stop })
			got, err := provider(t, url, func(c *anthropic.Config) { c.Options = tc.options }).Generate(t.Context(), &model.Request{
				Model: "claude-sonnet-4-5", Messages: []model.Message{user("Which?")}, Tools: tc.tools, Output: json.RawMessage(tc.schema),
				Parameters: model.Parameters{Effort: tc.effort},
			})
			if err != nil {
				t.Fatalf("Generate: %v, refused: %q", err, strict.Refused())
			}
			got.Usage = model.Usage{}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			sent := strict.Requests()[0]
			choice := ""
			if sent.ToolChoice != nil {
				choice = sent.ToolChoice.Type
			}
			if hasFormat := sent.OutputConfig != nil && sent.OutputConfig.Format != nil; choice != tc.choice || hasFormat != tc.format {
				t.Errorf("tool choice %q and format %t, want %q and %t: %s", choice, hasFormat, tc.choice, tc.format, tc.reason)
			}
		})
	}
}

// TestBytesOfDroppedTexts checks that a text that is not a part of the reply counts if the endpoint reports no usage.
func TestBytesOfDroppedTexts(t *testing.T) {
	const text, call = `{"type":"text","text":"It is."}`, `{"type":"tool_use","id":"a","name":"count","input":{}}`
	const answer = `{"type":"tool_use","id":"b","name":"give_final_answer","input":{"a":1}}`
	for name, tc := range map[string]struct {
		content, stop string
		want          model.Reply
	}{
		"only an answer": {answer, "tool_use", model.Reply{Text: `{"a":1}`, FinishReason: model.FinishStop}},
		"text":           {text + "," + answer, "tool_use", model.Reply{Text: `{"a":1}`, FinishReason: model.FinishStop, Received: 13}},
		"another call": {answer + "," + call, "tool_use", model.Reply{
			ToolCalls: []model.ToolCall{{ID: "a", Name: "count", Arguments: "{}"}}, FinishReason: model.FinishToolCalls, Received: 9,
		}},
		"another call, cut off": {text + "," + call, "max_tokens", model.Reply{
			Text: "It is.", FinishReason: model.FinishLength, Received: 8,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"type":"message","content":[%s],"stop_reason":%q}`, tc.content, tc.stop)
			}))
			t.Cleanup(web.Close)
			got, err := provider(t, web.URL).Generate(t.Context(), &model.Request{
				Model: "claude-sonnet-4-5", Messages: []model.Message{user("a")}, Tools: count,
				Output: json.RawMessage(`{"type":"object"}`),
			})
			if diff := cmp.Diff(&tc.want, got); diff != "" || err != nil {
				t.Errorf("Generate (error %v): -want +got:\n%s", err, diff)
			}
		})
	}
}

// TestProbe checks the list of models and an invalid key.
func TestProbe(t *testing.T) {
	_, url := start(t, nil)
	if listing, err := provider(t, url).Probe(t.Context()); err != nil || listing != endpoint.Listed {
		t.Errorf("Probe = %d, %v; want a list", listing, err)
	}
	_, err := provider(t, url, func(c *anthropic.Config) { c.APIKey = "sk-ant-other-0123456789" }).Probe(t.Context())
	if e := model.AsError(err); e.Kind != model.Auth {
		t.Errorf("Probe with an invalid key: %v, want Auth", err)
	}
}

// TestTooManyThoughts checks that either all thoughts of a reply are sent back, or none.
func TestTooManyThoughts(t *testing.T) {
	for n, isKept := range map[int]bool{256: true, 257: false} {
		_, url := start(t, func(modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
			blocks := slices.Repeat([]modeltest.AnthropicBlock{{Type: "thinking", Thinking: "Hm."}}, n)
			call := modeltest.AnthropicBlock{Type: "tool_use", ID: "a", Name: "count", Input: json.RawMessage(`{}`)}
			return append(blocks, call), "tool_use"
		})
		reply, err := provider(t, url).Generate(t.Context(), &model.Request{
			Model: "claude-sonnet-4-5", Messages: []model.Message{user("a")}, Tools: count, Parameters: model.Parameters{Effort: "low"},
		})
		if err != nil || (reply.ProviderData != nil) != isKept {
			t.Errorf("%d thoughts: %+v, %v; want them kept: %t", n, reply, err, isKept)
		}
	}
}

// TestTooManyBlocks checks that the thoughts of a reply with too many blocks are not sent back.
func TestTooManyBlocks(t *testing.T) {
	for n, isKept := range map[int]bool{1022: true, 1023: false} {
		_, url := start(t, func(modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
			return blocksOf("t " + strings.Repeat("A. ", n) + "c"), "tool_use"
		})
		reply, err := provider(t, url).Generate(t.Context(), &model.Request{
			Model: "claude-sonnet-4-5", Messages: []model.Message{user("a")}, Tools: count, Parameters: model.Parameters{Effort: "low"},
		})
		if err != nil || (reply.ProviderData != nil) != isKept || len(reply.Text) != 2*n {
			t.Errorf("%d texts: %+v, %v; want the thoughts kept: %t", n, reply, err, isKept)
		}
	}
}
