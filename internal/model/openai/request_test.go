package openai_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// sentBody sends a request and returns what the endpoint received: one member of the JSON body, and the headers.
func sentBody(t *testing.T, req model.Request, member string, mutate ...func(*openai.Config)) (string, http.Header) {
	t.Helper()
	type arrived struct {
		body   map[string]json.RawMessage
		header http.Header
	}
	requests := make(chan arrived, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		a := arrived{header: r.Header}
		if err := json.NewDecoder(r.Body).Decode(&a.body); err != nil {
			t.Errorf("request: %v", err)
		}
		requests <- a
		respond(200, events(delta(`"content":"yes"`), finishEvent("stop"), "[DONE]"), stream)(w, r)
	})
	if _, err := generate(t.Context(), provider(t, url, mutate...), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	got := <-requests
	return string(got.body[member]), got.header
}

func TestToolsOnTheWire(t *testing.T) {
	const schema = `{"$defs":{"n":{"type":"integer"}},"type":"object",` +
		`"properties":{"z":{"$ref":"#/$defs/n"},"a":{"const":1.0}},"x-mine":[1e2]}`
	for name, tc := range map[string]struct {
		reason string
		tools  []model.Tool
		want   string
	}{
		"none": {"no tools are sent", nil, ""},
		"schema": {
			"the schema is sent unchanged",
			[]model.Tool{{Name: "count", Description: "Counts.", Parameters: json.RawMessage(schema)}},
			`[{"function":{"name":"count","description":"Counts.","parameters":` + schema + `},"type":"function"}]`,
		},
		"no schema": {
			"null is refused",
			[]model.Tool{{Name: "now"}},
			`[{"function":{"name":"now","parameters":{"type":"object","properties":{}}},"type":"function"}]`,
		},
		"in their order": {
			"tools keep their order",
			[]model.Tool{{Name: "b"}, {Name: "a"}},
			`[{"function":{"name":"b","parameters":{"type":"object","properties":{}}},"type":"function"},` +
				`{"function":{"name":"a","parameters":{"type":"object","properties":{}}},"type":"function"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := request("hello")
			req.Tools = tc.tools
			if got, _ := sentBody(t, req, "tools"); got != tc.want {
				t.Errorf("sent %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestToolAfterCalls checks that a request without tools offers a tool that does nothing if the messages have calls and
// the endpoint may refuse them otherwise.
func TestToolAfterCalls(t *testing.T) {
	calls := []model.Message{
		{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: "a", Name: "count", Arguments: "{}"}}},
		{Role: model.RoleTool, Content: "7", ToolCallID: "a"},
	}
	const parameters = `"parameters":{"type":"object","properties":{}}},"type":"function"}]`
	const noTool = `[{"function":{"name":"no_more_tools",` +
		`"description":"Never call this tool. It does nothing. Answer with text.",` + parameters
	for name, tc := range map[string]struct {
		reason, dialect string
		tools           []model.Tool
		messages        []model.Message
		// excludes is true if the dialect has SchemasExcludeTools.
		schema   string
		excludes bool
		want     string
	}{
		"after calls": {
			"LiteLLM refuses the request to Bedrock otherwise", "LiteLLM", nil, calls, "", true, noTool,
		},
		"with a schema": {
			"the endpoint accepts a schema and tools together", "LiteLLM", nil, calls, `{"type":"object"}`, false, noTool,
		},
		"with a schema alone": {
			"the endpoint may refuse a schema and tools together", "LiteLLM", nil, calls, `{"type":"object"}`, true, "",
		},
		"with tools": {
			"the tools of the request are enough", "LiteLLM",
			[]model.Tool{{Name: "now"}},
			calls, "", false,
			`[{"function":{"name":"now",` + parameters,
		},
		"without calls":   {"the model needs no tools", "LiteLLM", nil, nil, "", false, ""},
		"another dialect": {"other servers accept the request", openai.Generic, nil, calls, "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			req := request("hello")
			req.Tools, req.Messages = tc.tools, append(req.Messages, tc.messages...)
			req.Output = json.RawMessage(tc.schema)
			dialect := openai.DialectOf(tc.dialect, "")
			dialect.SchemasExcludeTools = tc.excludes
			if got, _ := sentBody(t, req, "tools", withDialect(dialect)); got != tc.want {
				t.Errorf("sent the tools %s, want %s: %s", got, tc.want, tc.reason)
			}
			choice, _ := sentBody(t, req, "tool_choice", withDialect(dialect))
			if choice != "" {
				t.Errorf("sent the tool_choice %s, which LiteLLM may refuse", choice)
			}
		})
	}
}

func TestToolMessagesOnTheWire(t *testing.T) {
	call := model.ToolCall{ID: "a", Name: "count", Arguments: `{"n":1}`}
	function := func(id, name, arguments string) string {
		return fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}`, id, name, arguments)
	}
	const longID = "chatcmpl-tool-0123456789abcdef0123456789abcdef"
	const shortID = "call_72ba1670850968c42badff902f63fdd0"
	const shortAgain = "call_8e97652390341611b521b24d475ac753"
	for name, tc := range map[string]struct {
		reason  string
		message model.Message
		want    string
	}{
		"call": {
			"a call without text has null as content",
			model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{call}},
			`{"role":"assistant","content":null,"tool_calls":[` + function("a", "count", `{"n":1}`) + `]}`,
		},
		"call and text": {
			"the text is sent with the call",
			model.Message{Role: model.RoleAssistant, Name: "reply", Content: "I count.", ToolCalls: []model.ToolCall{call}},
			`{"role":"assistant","content":"I count.","tool_calls":[` + function("a", "count", `{"n":1}`) + `]}`,
		},
		"calls": {
			"calls are sent in order with unchanged arguments",
			model.Message{
				Role:      model.RoleAssistant,
				ToolCalls: []model.ToolCall{{ID: "b", Name: "x", Arguments: "{"}, {ID: "a", Name: "y"}},
			},
			`{"role":"assistant","content":null,"tool_calls":[` + function("b", "x", "{") + `,` + function("a", "y", "") + `]}`,
		},
		"result": {
			"a result has no name",
			model.Message{Role: model.RoleTool, Name: "tool_result", Content: "7", ToolCallID: "a"},
			`{"role":"tool","content":"7","tool_call_id":"a"}`,
		},
		"empty result": {
			"an empty result is sent, because each call needs one",
			model.Message{Role: model.RoleTool, Name: "tool_result", ToolCallID: "a"},
			`{"role":"tool","content":"","tool_call_id":"a"}`,
		},
		"made-up name": {
			"an invalid name would make the whole request invalid",
			model.Message{
				Role:      model.RoleAssistant,
				ToolCalls: []model.ToolCall{{ID: "a", Name: "ns.Größe 1-" + strings.Repeat("x", 99), Arguments: "{}"}},
			},
			`{"role":"assistant","content":null,"tool_calls":[` + function("a", "ns_Gr__e_1-"+strings.Repeat("x", 53), "{}") + `]}`,
		},
		"long id": {
			"a long ID is replaced",
			model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: longID, Name: "count", Arguments: "{}"}}},
			`{"role":"assistant","content":null,"tool_calls":[` + function(shortID, "count", "{}") + `]}`,
		},
		"long id, again": {
			"the result has the same replaced ID",
			model.Message{Role: model.RoleTool, Content: "7", ToolCallID: longID},
			`{"role":"tool","content":"7","tool_call_id":"` + shortID + `"}`,
		},
		"like a replaced ID": {
			"different IDs stay different",
			model.Message{Role: model.RoleTool, Content: "7", ToolCallID: shortID},
			`{"role":"tool","content":"7","tool_call_id":"` + shortAgain + `"}`,
		},
		"longest id": {"an ID of the maximum length is not changed", model.Message{
			Role: model.RoleTool, Content: "7",
			ToolCallID: longID[:40],
		}, `{"role":"tool","content":"7","tool_call_id":"` + longID[:40] + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			req := withTools("hello")
			req.Messages = append(req.Messages, tc.message)
			got, _ := sentBody(t, req, "messages")
			want := `[{"role":"system","name":"system_prompt","content":"Be ` +
				`brief."},{"role":"user","content":"hello"},` + tc.want + `]`
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	own := func(c *openai.Config) {
		c.Headers = []endpoint.Header{{Name: "x-client-request-id", Value: "mine"}, {Name: "X-Extra", Value: "a"}}
	}
	for name, tc := range map[string]struct {
		reason, id string
		mutate     []func(*openai.Config)
		want       []string
	}{
		"none":       {"without an ID there is no header", "", nil, nil},
		"given":      {"for the endpoint's logs", "turn-1/step-2", nil, []string{"turn-1/step-2"}},
		"configured": {"a configured header is sent", "", []func(*openai.Config){own}, []string{"mine"}},
		"both":       {"the ID of the request counts", "turn-1", []func(*openai.Config){own}, []string{"turn-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			req := request("hello")
			req.ID = tc.id
			_, header := sentBody(t, req, "messages", tc.mutate...)
			if diff := cmp.Diff(tc.want, header.Values("X-Client-Request-Id")); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestInvalidParametersAreNotSent(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	req := request("hello")
	req.Tools = []model.Tool{{Name: "count", Parameters: json.RawMessage(`{"type":`)}}
	reply, err := generate(t.Context(), provider(t, url), req)
	e := check(t, reply, err)
	const want = `provider "demo": the request cannot be sent: the parameters of tool "count" are not JSON`
	if e.Kind != model.InvalidRequest || e.Message != want || !e.Unsent {
		t.Errorf("error %s %q, unsent %t; want InvalidRequest %q, unsent", e.Kind, e.Message, e.Unsent, want)
	}
}

// TestConversationWithTools runs a conversation of several steps with a server that checks every message.
func TestConversationWithTools(t *testing.T) {
	s, url := fakeModel(t, `
rules:
- when: {contains: "turn=", toolMessages: 4}
  reply: {text: "Counted to {{ .ToolMessages }}."}
- when: {contains: "turn=", hasTools: true}
  reply:
    chunkChars: 3
    text: "{{ if .ToolMessages }}Again.{{ end }}"
    toolCalls:
    - name: count
      arguments: '{"turn": {{ first "turn=(\\S+)" .User | json }}, "step": {{ add .ToolMessages 1 }}}'
    - {name: functions.made up, arguments: "{}"}
`)
	p := provider(t, url)
	req := withTools("turn=t-7")
	var asked []string
	for step := range 3 {
		req.ID = fmt.Sprint("r-", step)
		reply, err := generate(t.Context(), p, req)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		req.Messages = append(req.Messages, model.Message{Role: model.RoleAssistant, Content: reply.Text, ToolCalls: reply.ToolCalls})
		for _, c := range reply.ToolCalls {
			asked = append(asked, c.Name+" "+c.Arguments)
			req.Messages = append(req.Messages, model.Message{Role: model.RoleTool, ToolCallID: c.ID})
		}
	}
	want := []string{`count {"turn": "t-7", "step": 1}`, "functions.made up {}", `count {"turn": "t-7", "step": 3}`, "functions.made up {}"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("tools that were asked for: -want +got:\n%s", diff)
	}
	if last := req.Messages[len(req.Messages)-1]; last.Content != "Counted to 4." {
		t.Errorf("the last message is %+v, want the answer", last)
	}
	for i, bill := range s.Billing() {
		if bill.ClientRequestID != fmt.Sprint("r-", i) || !bill.Delivered {
			t.Errorf("bill %d: %+v, want the id of the request, delivered", i, bill)
		}
	}
}

// TestParametersOfAnyModelAreSent checks that the name of a model does not decide which parameters are sent: only the
// endpoint knows what its models accept.
func TestParametersOfAnyModelAreSent(t *testing.T) {
	for _, name := range []string{"o3-mini", "gpt-5", "gpt-5.1-chat", "o1", "o4-mini"} {
		req := request("hello")
		half := 0.5
		req.Model, req.Parameters.Temperature = name, &half
		if got, _ := sentBody(t, req, "temperature"); got != "0.5" {
			t.Errorf("%s: temperature %q is sent, want 0.5", name, got)
		}
	}
}
