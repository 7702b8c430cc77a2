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

// withDialect returns a function that sets the dialect of a configuration.
func withDialect(d openai.Dialect) func(*openai.Config) {
	return func(c *openai.Config) { c.Dialect = d }
}

// TestSwitchesOfADialect checks each switch on the wire, and what is sent without it.
func TestSwitchesOfADialect(t *testing.T) {
	off, on := false, true
	const find = `"type":"function"`
	for name, tc := range map[string]struct {
		dialect         openai.Dialect
		member          string
		with, otherwise string
	}{
		"max_tokens":            {openai.Dialect{UseMaxTokens: true}, "max_tokens", "64", ""},
		"max_completion_tokens": {openai.Dialect{UseMaxTokens: true}, "max_completion_tokens", "", "64"},
		"stream options":        {openai.Dialect{NoStreamOptions: true}, "stream_options", "", `{"include_usage":true}`},
		"no parallel calls":     {openai.Dialect{ParallelCalls: &off}, "parallel_tool_calls", "false", ""},
		"parallel calls":        {openai.Dialect{ParallelCalls: &on}, "parallel_tool_calls", "true", ""},
		"an extra field":        {openai.Dialect{Extra: []model.ExtraField{{Name: "top_k", Value: "20"}}}, "top_k", "20", ""},
		"one of two extra fields": {
			openai.Dialect{Extra: []model.ExtraField{{Name: "a", Value: "1"}, {Name: "b", Value: `{"c": [null]}`}}},
			"b", `{"c": [null]}`, "",
		},
		"strict tools": {
			openai.Dialect{StrictSchemas: true},
			"tools",
			`[{"function":{"name":"count","description":"Counts.","strict":true,"parameters":{"type":"object"}},` + find + `}]`,
			`[{"function":{"name":"count","description":"Counts.","parameters":{"type":"object"}},` + find + `}]`,
		},
		"strict answer": {
			openai.Dialect{StrictSchemas: true},
			"response_format",
			`{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"},"strict":true}}`,
			`{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"},"strict":false}}`,
		},
		"schema in a JSON object": {
			openai.Dialect{SchemaInJSONObject: true, StrictSchemas: true},
			"response_format",
			`{"type":"json_object","schema":{"type":"object"}}`,
			`{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"},"strict":false}}`,
		},
		"names": {
			openai.Dialect{NoNames: true},
			"messages",
			`[{"role":"system","content":"Be brief."},{"role":"user","content":"hello"}]`,
			`[{"role":"system","name":"system_prompt","content":"Be brief."},{"role":"user","content":"hello"}]`,
		},
		"developer": {
			openai.Dialect{DeveloperRole: true},
			"messages",
			`[{"role":"developer","name":"system_prompt","content":"Be brief."},{"role":"user","content":"hello"}]`,
			`[{"role":"system","name":"system_prompt","content":"Be brief."},{"role":"user","content":"hello"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := withTools("hello")
			tokens := 64
			req.Parameters.MaxOutputTokens, req.Output = &tokens, json.RawMessage(`{"type":"object"}`)
			with, _ := sentBody(t, req, tc.member, withDialect(tc.dialect))
			otherwise, _ := sentBody(t, req, tc.member)
			if with != tc.with || otherwise != tc.otherwise {
				t.Errorf("%s: sent %s with the switch and %s without; want %s and %s", tc.member, with, otherwise, tc.with, tc.otherwise)
			}
		})
	}
	if got, _ := sentBody(t, request("hello"), "parallel_tool_calls", withDialect(openai.Dialect{ParallelCalls: &off})); got != "" {
		t.Errorf("parallel_tool_calls %s is sent without tools, which OpenAI refuses", got)
	}
}

// TestPlacesOfSystemMessages checks where system messages are sent, and which messages become one message. A
// conversation is given by the first letters of its roles, with numbers for the messages that matter.
func TestPlacesOfSystemMessages(t *testing.T) {
	for name, tc := range map[string]struct{ reason, messages, inPlace, beforeReplies, merged string }{
		"first":  {"the usual beginning", "s1 s2 u", "s1 s2 u", "s1 s2 u", "s1+2 u"},
		"single": {"there is nothing to merge", "s1 u", "s1 u", "s1 u", "s1 u"},
		"none":   {"there is no system message", "u a u", "u a u", "u a u", "u a u"},
		"between requests": {
			"history, then facts for the request", "s1 s2 u a s3 s4 u", "s1 s2 u a s3 s4 u", "s1 s2 s3+4 u a u",
			"s1+2+3+4 u a u",
		},
		"after a request": {"only replies matter to Mistral", "s1 u2 s3 u4", "s1 u2 s3 u4", "s1 u2 s3 u4", "s1+3 u2+4"},
		"after a result":  {"servers refuse a user's message there", "s1 u a t s2", "s1 u a t s2", "s1 s2 u a t", "s1+2 u a t"},
		"after a draft":   {"a reply must not be the last message", "s1 u a s2", "s1 u a s2", "s1 u a u2", "s1 u a u2"},
		"two after a draft": {
			"each of them follows the draft", "s1 u a s2 s3", "s1 u a s2 s3", "s1 u a u2+3", "s1 u a u2+3",
		},
		"two users": {"chat templates refuse them", "s1 u2 u3 u4 a u5", "s1 u2 u3 u4 a u5", "s1 u2+3+4 a u5", "s1 u2+3+4 a u5"},
		"a user after a result": {
			"Mistral refuses it without a reply between them", "s1 u a t t u2 u3", "s1 u a t t u2 u3", "s1 u a t t a u2+3",
			"s1 u a t t a u2+3",
		},
		"alone":         {"a request may have no other message", "s1 s2", "s1 s2", "s1 s2", "s1+2"},
		"none in front": {"the merged message comes first", "u a s1 u", "u a s1 u", "s1 u a u", "s1 u a u"},
	} {
		t.Run(name, func(t *testing.T) {
			for place, want := range map[openai.SystemPlace]string{
				openai.SystemInPlace: tc.inPlace, openai.SystemBeforeReplies: tc.beforeReplies, openai.SystemMerged: tc.merged,
			} {
				if got := placed(t, tc.messages, place); got != want {
					t.Errorf("%s with place %d: sent %q, want %q: %s", tc.messages, place, got, want, tc.reason)
				}
			}
		})
	}
}

// placed returns the messages that are sent for a conversation, in the same form.
func placed(t *testing.T, conversation string, where openai.SystemPlace) string {
	t.Helper()
	roles := map[byte]model.Role{'s': model.RoleSystem, 'u': model.RoleUser, 'a': model.RoleAssistant, 't': model.RoleTool}
	req := request("")
	req.Messages = nil
	for m := range strings.FieldsSeq(conversation) {
		req.Messages = append(req.Messages, model.Message{Role: roles[m[0]], Content: m})
	}
	body, _ := sentBody(t, req, "messages", withDialect(openai.Dialect{System: where}))
	var sent []struct{ Role, Content string }
	if err := json.Unmarshal([]byte(body), &sent); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range sent {
		all = append(all, m.Role[:1]+strings.Join(strings.Split(strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r == '\n' {
				return r
			}
			return -1
		}, m.Content), "\n\n"), "+"))
	}
	return strings.Join(all, " ")
}

func TestFormsOfCallIDs(t *testing.T) {
	long := "chatcmpl-tool-0123456789abcdef0123456789abcdef"
	for name, tc := range map[string]struct {
		reason, id, anyForm, plain, nine string
	}{
		"of OpenAI": {"two forms accept it", "call_PTLP8xhu3u", "call_PTLP8xhu3u", "call_PTLP8xhu3u", "XePOX6Bl7"},
		"of Kimi": {
			"Claude refuses points and colons", "functions.find:0", "functions.find:0",
			"call_5501b3cd51f853ba2617a92fdef2eee6", "N1tJJ0L0c",
		},
		"of Mistral": {"all accept it", "9Ae3bDef1", "9Ae3bDef1", "9Ae3bDef1", "9Ae3bDef1"},
		"long": {
			"all shorten it", long, "call_72ba1670850968c42badff902f63fdd0", "call_72ba1670850968c42badff902f63fdd0",
			"q0Mo99gAh",
		},
		"nine": {"nine characters, but not all are letters or digits", "call_abcd", "call_abcd", "call_abcd", "XkPXOJ8DS"},
	} {
		t.Run(name, func(t *testing.T) {
			for form, want := range map[endpoint.CallIDForm]string{
				endpoint.CallIDsAny: tc.anyForm, endpoint.CallIDsPlain: tc.plain, endpoint.CallIDsNine: tc.nine,
			} {
				req := withTools("hello")
				req.Messages = append(req.Messages,
					model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: tc.id, Name: "count", Arguments: "{}"}}},
					model.Message{Role: model.RoleTool, Content: "7", ToolCallID: tc.id})
				body, _ := sentBody(t, req, "messages", withDialect(openai.Dialect{NoNames: true, CallIDs: form}))
				sent := fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function",`+
					`"function":{"name":"count","arguments":"{}"}}]},{"role":"tool","content":"7","tool_call_id":%[1]q}]`, want)
				if !strings.HasSuffix(body, sent) {
					t.Errorf("form %d: sent %s, want the end %s: %s", form, body, sent, tc.reason)
				}
			}
		})
	}
}

func TestInvalidExtraFieldIsNotSent(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	extra := []model.ExtraField{{Name: "top_k", Value: "twenty"}}
	e := failure(t, provider(t, url, withDialect(openai.Dialect{Extra: extra})))
	const want = `provider "demo": the request cannot be sent: the value of the extra field "top_k" is not JSON: ` +
		`correct it in extraFields`
	if e.Kind != model.InvalidRequest || e.Message != want || !e.Unsent {
		t.Errorf("error %s %q, unsent %t; want InvalidRequest %q, unsent", e.Kind, e.Message, e.Unsent, want)
	}
}

// TestDialectOfAHost checks which hosts are known. A host that only looks like a known host must not get its dialect.
func TestDialectOfAHost(t *testing.T) {
	for url, want := range map[string]string{
		"https://api.openai.com/v1":                                  "OpenAI",
		"https://EU.api.openai.com/v1":                               "OpenAI",
		"https://me.openai.azure.com/openai/v1":                      "AzureOpenAI",
		"https://me.openai.azure.us/openai/v1":                       "AzureOpenAI",
		"https://me.services.ai.azure.com/openai/v1":                 "AzureOpenAI",
		"https://me.cognitiveservices.azure.com/openai/v1":           "AzureOpenAI",
		"https://me.services.ai.azure.com/models":                    "Generic",
		"https://me.cognitiveservices.azure.com/":                    "Generic",
		"https://api.mistral.ai/v1":                                  "Mistral",
		"https://api.deepseek.com":                                   "DeepSeek",
		"https://api.moonshot.cn/v1":                                 "Moonshot",
		"https://generativelanguage.googleapis.com/v1beta/openai/":   "Gemini",
		"https://openrouter.ai/api/v1":                               "OpenRouter",
		"https://api.x.ai/v1":                                        "XAI",
		"https://api.groq.com:443/openai/v1":                         "Groq",
		"https://api.cohere.ai/compatibility/v1":                     "Cohere",
		"https://api.voyageai.com/v1":                                "Voyage",
		"https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1":  "Bedrock",
		"https://api.openai.com.example.com/v1":                      openai.Generic,
		"https://notapi.openai.com/v1":                               openai.Generic,
		"https://llm.internal/api.mistral.ai/v1":                     openai.Generic,
		"http://127.0.0.1:11434/v1":                                  openai.Generic,
		"https://proxy.internal?to=https://api.mistral.ai/v1":        openai.Generic,
		"https://bedrock-runtime.example.com.evil/amazonaws.com/v1/": openai.Generic,
	} {
		if diff := cmp.Diff(openai.DialectOf(want, url), openai.DialectOf("", url)); diff != "" {
			t.Errorf("%s: want the dialect %s; -want +got:\n%s", url, want, diff)
		}
	}
	if diff := cmp.Diff(openai.DialectOf("Mistral", ""), openai.DialectOf("Mistral", "https://api.openai.com/v1")); diff != "" {
		t.Errorf("a name must count more than the host; -want +got:\n%s", diff)
	}
}

// TestDeploymentsOfAzure checks the path, the query and the key of requests to Azure's deployment-based API.
func TestDeploymentsOfAzure(t *testing.T) {
	var seen []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.String()+" "+r.Header.Get("Api-Key")+r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(events(delta(`"content":"yes"`), finishEvent("stop"), "[DONE]"))) // the test notices if the client is gone
	})
	p := provider(t, url, withDialect(openai.Dialect{APIVersion: "2024-10-21"}))
	req := request("hello")
	req.Model = "my gpt/5"
	if _, err := p.Generate(t.Context(), &req); err != nil {
		t.Error(err)
	}
	_, _ = p.Probe(t.Context()) // the answer is not a list
	want := []string{
		"POST /v1/deployments/my%20gpt%2F5/chat/completions?api-version=2024-10-21 " + key,
		"GET /v1/models?api-version=2024-10-21 " + key,
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("requests: -want +got:\n%s", diff)
	}
}
