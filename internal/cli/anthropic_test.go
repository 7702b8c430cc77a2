package cli_test

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
)

// strictAnthropic starts a server that refuses the same requests as Anthropic. Its model calls two tools at the same
// time and then answers. If the request has a schema for the answer, the model answers at once, and the answer fits the
// schema.
func strictAnthropic(t *testing.T) (server *modeltest.Anthropic, url string) {
	t.Helper()
	server = &modeltest.Anthropic{Key: key, Reply: func(r modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
		thought := modeltest.AnthropicBlock{Type: "thinking", Thinking: "What now?"}
		last := r.Messages[len(r.Messages)-1]
		switch {
		case slices.ContainsFunc(r.Tools, func(t modeltest.AnthropicTool) bool { return t.Name == "give_final_answer" }):
			answer := modeltest.AnthropicBlock{
				Type: "tool_use", ID: "toolu_9", Name: "give_final_answer", Input: json.RawMessage(`{"id":1042}`),
			}
			return []modeltest.AnthropicBlock{thought, answer}, "tool_use"
		case slices.ContainsFunc(last.Content, func(b modeltest.AnthropicBlock) bool { return b.Type == "tool_result" }):
			return []modeltest.AnthropicBlock{{Type: "text", Text: "Done."}}, "end_turn"
		}
		return []modeltest.AnthropicBlock{
			thought,
			{Type: "text", Text: "I look and close."},
			{Type: "tool_use", ID: "toolu_1", Name: "get_ticket", Input: json.RawMessage(`{"id":"1042"}`)},
			{Type: "tool_use", ID: "toolu_2", Name: "close_ticket", Input: json.RawMessage(`{"id":"1042"}`)},
		}, "tool_use"
	}}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	return server, web.URL + "/v1"
}

// onAnthropic returns an Agent with tools on a provider of the type Anthropic, and two Turns of a Session. The second
// Turn has a schema for its answer.
func onAnthropic(t *testing.T, tools string) files {
	t.Helper()
	f := withTools(t, tools, "").with(t, "provider.yaml", "type: OpenAI", "type: Anthropic")
	f = f.with(t, "provider.yaml", "name: small", "name: claude-sonnet-4-5\n    capabilities: [StructuredOutput, Reasoning]")
	f = f.with(t, "provider.yaml", `outputPerMillion: "2"`,
		`outputPerMillion: "2", cacheReadPerMillion: "0.1", cacheWritePerMillion: "1.25"`)
	f = f.with(t, "agent.yaml", "model: small", "model: claude-sonnet-4-5\n  thinking: Low")
	f = f.with(t, "turn.yaml", "  message: What is up?", "  sessionRef: {name: chat}\n  message: Close 1042.")
	f["second.yaml"] = secondYAML + "  output: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}}\n"
	return f
}

// TestAgentOnAnthropic runs an Agent with tools, thinking, a Session of two Turns and a structured answer.
func TestAgentOnAnthropic(t *testing.T) {
	t.Parallel()
	model, url := strictAnthropic(t)
	tools := serveTools(t, "")
	dir, data := onAnthropic(t, tools.url).written(t, url), t.TempDir()
	run := func(name string) v1alpha1.Turn {
		t.Helper()
		got := capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data, "-o", "json")
		if refused := model.Refused(); len(refused) > 0 {
			t.Fatalf("the server refused a request: %s", strings.Join(refused, "; "))
		}
		return *turnOf(t, got.mustEnd(t, exit.OK).out)
	}
	first := run("first")
	if tools.closedTickets() != "1042" || first.Status.Result.Text != "Done." {
		t.Errorf("want ticket 1042 closed once and the answer, have %q and %q", tools.closedTickets(), first.Status.Result.Text)
	}
	// Each request has 9 new, 20 written and 100 cached input tokens, and 4 output tokens.
	want := &v1alpha1.Usage{
		InputTokens: 258, OutputTokens: 8, TotalTokens: 266, CacheReadTokens: 200, CacheCreationTokens: 40,
		Cost: &v1alpha1.Cost{Amount: "0.000104", Currency: "USD"},
	}
	if diff := cmp.Diff(want, first.Status.Usage); diff != "" {
		t.Errorf("usage: -want +got:\n%s", diff)
	}
	second := run("second")
	var answer struct{ ID int }
	if got := second.Status.Result.Data; got == nil || json.Unmarshal(got.Raw, &answer) != nil || answer.ID != 1042 {
		t.Errorf("the structured answer is %v, want the arguments of the call", got)
	}
	requests := model.Requests()
	if len(requests) != 3 {
		t.Fatalf("%d requests, want 3", len(requests))
	}
	for i, r := range requests {
		if r.System[0].CacheControl == nil || r.Thinking == nil {
			t.Errorf("request %d: want thinking, and a cache marker at the stable part of the system prompt", i)
		}
		tools, system := cacheable(t, r)
		if firstTools, firstSystem := cacheable(t, requests[0]); system != firstSystem || i < 2 && tools != firstTools {
			t.Errorf("request %d begins with other tools or another stable part: %s %s", i, tools, system)
		}
	}
	if history := requests[2].Messages; !slices.ContainsFunc(history, func(m modeltest.AnthropicMessage) bool {
		return m.Role == "assistant" && slices.ContainsFunc(m.Content, func(b modeltest.AnthropicBlock) bool { return b.Text == "Done." })
	}) {
		t.Errorf("the second Turn does not see the first: %+v", history)
	}
}

// cacheable returns the bytes of the tools and of the stable part of the system prompt, which begin each request. A
// Turn with a schema for its answer has one more tool.
func cacheable(t *testing.T, r modeltest.AnthropicRequest) (tools, system string) {
	t.Helper()
	var raw struct {
		Tools  json.RawMessage
		System []json.RawMessage
	}
	if err := json.Unmarshal(r.Body, &raw); err != nil {
		t.Fatal(err)
	}
	return string(raw.Tools), string(raw.System[0])
}

// TestLastStepOnAnthropic checks the last request of a Turn that has no steps left. The request has calls but no tools,
// and a note after the results of the calls.
func TestLastStepOnAnthropic(t *testing.T) {
	t.Parallel()
	model, url := strictAnthropic(t)
	f := onAnthropic(t, serveTools(t, "").url).with(t, "agent.yaml", "{timeoutSeconds: 30}", "{timeoutSeconds: 30, maxSteps: 1}")
	got := capstan(t, "run", "-f", f.written(t, url), "--turn", "first", "-o", "json").mustEnd(t, exit.Failed)
	if refused := model.Refused(); len(refused) > 0 {
		t.Fatalf("the server refused a request: %s", strings.Join(refused, "; "))
	}
	if text := turnOf(t, got.out).Status.Result.Text; text != "Done." {
		t.Errorf("the answer is %q, want the answer of the last step", text)
	}
}

// TestSilentAnthropic checks that the work of a Turn is not lost if the model says nothing after the results of calls.
// As platform.claude.com describes (handling stop reasons), the model then considers its work done: it says nothing
// again if it gets the same request, and answers a further message of the user.
func TestSilentAnthropic(t *testing.T) {
	t.Parallel()
	model, url := strictAnthropic(t)
	usual := model.Reply
	model.Reply = func(r modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
		newest := r.Messages[len(r.Messages)-1].Content
		if newest[len(newest)-1].Type == "tool_result" {
			return nil, "end_turn"
		}
		return usual(r)
	}
	tools := serveTools(t, "")
	f := onAnthropic(t, tools.url).with(t, "provider.yaml", "maxAttempts: 1", "maxAttempts: 2")
	got := capstan(t, "run", "-f", f.written(t, url), "--turn", "first", "-o", "json").mustEnd(t, exit.OK)
	if text := turnOf(t, got.out).Status.Result.Text; text != "Done." || tools.closedTickets() != "1042" {
		t.Errorf("the answer is %q and the closed tickets are %q, want the answer and one call", text, tools.closedTickets())
	}
	if n, refused := len(model.Requests()), model.Refused(); n != 3 || len(refused) > 0 {
		t.Errorf("%d requests, want 3: the repeated one asks for the answer; refused: %s", n, strings.Join(refused, "; "))
	}
}

// TestWrongKeyOnAnthropic checks that the error for a refused key names the Secret.
func TestWrongKeyOnAnthropic(t *testing.T) {
	t.Parallel()
	model, url := strictAnthropic(t)
	model.Key = "sk-ant-another"
	got := capstan(t, "run", "-f", onAnthropic(t, serveTools(t, "").url).written(t, url), "--turn", "first").mustEnd(t, exit.Failed)
	mustSay(t, got.err, `the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "model-key"`)
}
