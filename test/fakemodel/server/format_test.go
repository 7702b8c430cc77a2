package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sashabaranov/go-openai"
)

func TestReasoningIsSentBeforeTheAnswer(t *testing.T) {
	for field, name := range map[string]string{
		"":                                   "reasoning_content",
		"reasoningField: reasoning_content,": "reasoning_content", "reasoningField: reasoning,": "reasoning",
	} {
		t.Run(field, func(t *testing.T) {
			fake := serveRules(t, `rules: [{reply: {reasoning: "{{ .User }}, hm.", `+field+` text: Yes., chunkChars: 4}}]`)
			body := fake.do(t, http.MethodPost, "/v1/chat/completions",
				`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`).body
			at := 0
			for _, want := range []string{
				`"delta":{"role":"assistant","content":""}`, `"delta":{"` + name + `":"hi, "}`,
				`"delta":{"` + name + `":"hm."}`, `"delta":{"content":"Yes."}`, `"finish_reason":"stop"`,
				`"completion_tokens":3,`, `"reasoning_tokens":2,`,
			} {
				i := strings.Index(body[at:], want)
				if i < 0 {
					t.Fatalf("the stream lacks %s, or has it too early:\n%s", want, body)
				}
				at += i
			}
			whole := fake.do(t, http.MethodPost, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`).body
			if want := `"` + name + `":"hi, hm."`; !strings.Contains(whole, want) || strings.Count(whole, "hm.") != 1 {
				t.Errorf("the whole response is %s, want %s", whole, want)
			}
		})
	}
}

// TestTheUsageOfReasoning checks that a rule can set the usage of reasoning like any other value.
func TestTheUsageOfReasoning(t *testing.T) {
	fake := serveRules(t, `rules: [{reply: {reasoning: "a long thought, that goes on", text: Yes., usage: {reasoningTokens: 0}}}]`)
	whole, err := fake.client.CreateChatCompletion(t.Context(), ask("hello"))
	if err != nil || whole.Usage.CompletionTokens != 1 || whole.Usage.CompletionTokensDetails.ReasoningTokens != 0 {
		t.Errorf("usage %+v, error %v; want the usage of the rule", whole.Usage, err)
	}
}

func TestResponseFormats(t *testing.T) {
	const rules = `
rules:
- {when: {responseFormat: json_schema}, reply: {text: '{{ .ResponseFormat }}'}}
- {when: {responseFormat: json_object}, reply: {text: '{"a":1}'}}
- {when: {responseFormat: text}, reply: {text: 'A {{ .ResponseFormat }}.'}}
`
	for name, tc := range map[string]struct {
		reason string
		format string // a further member of the request's JSON, or empty
		want   string // the answer, or a part of the error
		status int
		kept   ResponseFormat
	}{
		"none":   {"without a format, the answer is text", ``, "A text.", 200, ""},
		"null":   {"null means text", `,"response_format":null`, "A text.", 200, ""},
		"text":   {"the format is text", `,"response_format":{"type":"text"}`, "A text.", 200, "text"},
		"object": {"any object", `,"response_format":{"type":"json_object"}`, `{\"a\":1}`, 200, "json_object"},
		"schema": {
			"the answer has the format of the schema",
			`,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{},"strict":false}}`,
			"json_schema", 200, "json_schema",
		},
		"unknown": {"the API has no such type", `,"response_format":{"type":"xml"}`, "Invalid value: 'xml'.", 400, "xml"},
		"no type": {"the type is required", `,"response_format":{}`, "Missing required parameter: 'response_format.type'.", 400, ""},
		"no schema": {
			"the schema is required", `,"response_format":{"type":"json_schema"}`,
			"Missing required parameter: 'response_format.json_schema'.", 400, "json_schema",
		},
		"no name": {
			"the name is required", `,"response_format":{"type":"json_schema","json_schema":{"schema":{}}}`,
			"Missing required parameter: 'response_format.json_schema.name'.", 400, "json_schema",
		},
		"bad name": {
			"the name has no spaces", `,"response_format":{"type":"json_schema","json_schema":{"name":"an answer","schema":{}}}`,
			"string does not match pattern", 400, "json_schema",
		},
		"schema absent": {
			"the schema is required", `,"response_format":{"type":"json_schema","json_schema":{"name":"answer"}}`,
			"Missing required parameter: 'response_format.json_schema.schema'.", 400, "json_schema",
		},
		"schema null": {
			"the schema must be an object", `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":null}}`,
			"must be a JSON Schema object", 400, "json_schema",
		},
		"schema true": {
			"the schema must be an object", `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":true}}`,
			"must be a JSON Schema object", 400, "json_schema",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, rules)
			got := fake.do(t, http.MethodPost, "/v1/chat/completions",
				`{"model":"m","messages":[{"role":"user","content":"hi"}]`+tc.format+`}`)
			if got.status != tc.status || !strings.Contains(got.body, tc.want) {
				t.Errorf("HTTP %d %s, want %d with %q: %s", got.status, got.body, tc.status, tc.want, tc.reason)
			}
			if kept := fake.Requests()[0].ResponseFormat; kept != tc.kept {
				t.Errorf("the kept request has the format %q, want %q", kept, tc.kept)
			}
		})
	}
}

func TestTheContextWindow(t *testing.T) {
	fake := serveRules(t, "contextTokens: 10\nrules: [{times: 1, reply: {text: first}}, {reply: {text: later}}]")
	for i, tc := range []struct {
		reason, message string
		want            string // the answer; empty for an error
	}{
		{"41 characters are 11 tokens, and no rule is evaluated", strings.Repeat("x", 41), ""},
		{"40 characters are 10 tokens", strings.Repeat("x", 40), "first"},
		{"the window applies to every request", strings.Repeat("x", 400), ""},
	} {
		got, err := fake.client.CreateChatCompletion(t.Context(), ask(tc.message))
		if tc.want != "" {
			if err != nil || got.Choices[0].Message.Content != tc.want {
				t.Errorf("request %d: %+v, %v; want %q: %s", i+1, got.Choices, err, tc.want, tc.reason)
			}
			continue
		}
		refused, ok := errors.AsType[*openai.APIError](err)
		want := fmt.Sprintf("This model's maximum context length is 10 tokens. However, your messages resulted in %d tokens. "+
			"Please reduce the length of the messages.", (len(tc.message)+3)/4)
		if !ok || refused.HTTPStatusCode != 400 || refused.Code != "context_length_exceeded" || refused.Message != want {
			t.Errorf("request %d: %+v, want %q: %s", i+1, err, want, tc.reason)
		}
	}
	want := map[Outcome]int64{OutcomeAnswered: 1, OutcomeInvalidRequest: 2}
	if diff := cmp.Diff(want, fake.Stats().ByOutcome); diff != "" || len(fake.Billing()) != 1 {
		t.Errorf("%d bills; outcomes: -want +got:\n%s", len(fake.Billing()), diff)
	}
}

func TestInvalidFormatFieldsAreErrors(t *testing.T) {
	for rules, want := range map[string]string{
		"contextTokens: 0": "contextTokens: must be 1 or more, not 0",
		"rules: [{when: {responseFormat: xml}}]": `rules[0].when.responseFormat: "xml" is unknown, ` +
			`must be one of ["text" "json_object" "json_schema"]`,
		"rules: [{reply: {reasoningField: thoughts}}]": `rules[0].reply.reasoningField: "thoughts" is unknown, ` +
			`must be one of ["reasoning_content" "reasoning"]`,
		"rules: [{reply: {reasoning: '{{ .Usr }}'}}]": "rules[0].reply.reasoning: must render for a request of one user message: " +
			"template: reply.reasoning:1:3: executing \"reply.reasoning\" at <.Usr>: can't evaluate field Usr in type server.View",
	} {
		if _, err := ParseConfig([]byte(rules)); err == nil || err.Error() != want {
			t.Errorf("ParseConfig(%s): %v, want %q", rules, err, want)
		}
	}
}
