package openai_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// calling returns an event with a call, and further members of the call.
func calling(more string) string {
	return delta(`"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"find","arguments":"{}"}` + more + `}]`)
}

// replayed lets a model call tools, sends its reply back with the results, and returns the message that was sent.
// change changes the message before it is sent.
func replayed(t *testing.T, d openai.Dialect, change func(*model.Message), stream ...string) (model.Reply, string) {
	t.Helper()
	var sent []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request struct{ Messages []json.RawMessage }
		if err != nil || json.Unmarshal(body, &request) != nil {
			t.Errorf("request %s: %v", body, err)
		}
		if sent = nil; len(request.Messages) > 2 {
			sent = append(sent, string(request.Messages[2]))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, events(append(stream, finishEvent("tool_calls"), "[DONE]")...))
	})
	p := provider(t, url, withDialect(d))
	req := withTools("hello")
	reply, err := generate(t.Context(), p, req)
	if err != nil {
		t.Fatal(err)
	}
	m := model.Message{Role: model.RoleAssistant, Content: reply.Text, ToolCalls: reply.ToolCalls, ProviderData: reply.ProviderData}
	change(&m)
	req.Messages = append(req.Messages, m)
	for _, c := range m.ToolCalls {
		req.Messages = append(req.Messages, model.Message{Role: model.RoleTool, ToolCallID: c.ID, Content: "found"})
	}
	if _, err := generate(t.Context(), p, req); err != nil || len(sent) == 0 {
		t.Fatalf("Generate: %v after the messages %q", err, sent)
	}
	return reply, sent[0]
}

func unchanged(*model.Message) {}

// foreign makes the message that of another model.
func foreign(m *model.Message) { *m = m.WithoutProviderData() }

func TestReturnedData(t *testing.T) {
	const (
		call      = `{"id":"c1","type":"function","function":{"name":"find","arguments":"{}"}`
		signature = `{"google":{"thought_signature":"CiQB<&>=="}}`
		escaped   = `{"google":{"thought_signature":"CiQB\u003c\u0026\u003e=="}}`
	)
	other := func(m *model.Message) { m.ProviderData.Format = "anthropic/thinking" }
	message := func(call, more string) string {
		return `{"role":"assistant","content":null,"tool_calls":[` + call + `}]` + more + `}`
	}
	reasoned := []string{delta(`"reasoning_content":"Let me "`), delta(`"reasoning_content":"look."`), calling("")}
	for name, tc := range map[string]struct {
		dialect string
		reason  string
		stream  []string
		change  func(*model.Message)
		want    string
	}{
		"DeepSeek": {
			"DeepSeek", "github.com/earendil-works/pi/issues/3636", reasoned, unchanged,
			message(call, `,"reasoning_content":"Let me look."`),
		},
		"DeepSeek without reasoning": {
			"DeepSeek", "github.com/openclaw/openclaw/pull/74846",
			[]string{calling("")},
			unchanged, message(call, `,"reasoning_content":" "`),
		},
		"Moonshot": {
			"Moonshot", "github.com/n8n-io/n8n/issues/29142", reasoned, unchanged, message(call, `,"reasoning_content":"Let me look."`),
		},
		"Moonshot after another model": {
			"Moonshot", "github.com/earendil-works/pi/issues/4251: an empty text counts as none", reasoned, foreign,
			message(call, `,"reasoning_content":" "`),
		},
		"data of another adapter": {
			"Moonshot", "the data has another form", reasoned, other, message(call, `,"reasoning_content":" "`),
		},
		"Gemini": {
			"Gemini", "github.com/TokenRhythm/opensquilla/issues/225",
			[]string{calling(`,"extra_content":` + signature)},
			unchanged,
			message(call+`,"extra_content":`+escaped, ""),
		},
		"Gemini without a signature": {
			"Gemini", "the model that made the call needs none", []string{calling("")}, unchanged, message(call, ""),
		},
		"Gemini after another model": {
			"Gemini", "github.com/jeremychone/rust-genai/pull/115",
			[]string{calling("")},
			foreign,
			message(call+`,"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}`, ""),
		},
		"OpenRouter": {
			"OpenRouter", "github.com/agno-agi/agno/issues/8794: pieces with the same index are one block",
			[]string{
				delta(`"reasoning":"Let",` +
					`"reasoning_details":[{"type":"reasoning.text","text":"Let","format":"anthropic-claude-v1","index":0}]`),
				delta(`"reasoning_details":[{"type":"reasoning.text","text":" me.","format":"anthropic-claude-v1","index":0}]`),
				delta(`"reasoning_details":[{"type":"reasoning.text","signature":"Et8B+/=","text":null,` +
					`"format":"anthropic-claude-v1","index":0}]`),
				delta(`"reasoning_details":[{"type":"reasoning.encrypted","data":"QUJD","id":"c1","index":0},` +
					`{"type":"reasoning.encrypted","data":"REVG","id":"c2","index":0},7,{"type":"reasoning.summary","summary":"S"}]`),
				calling(""),
			},
			unchanged,
			message(call, `,"reasoning_details":[`+
				`{"format":"anthropic-claude-v1","index":0,"signature":"Et8B+/=","text":"Let me.","type":"reasoning.text"},`+
				`{"data":"QUJD","id":"c1","index":0,"type":"reasoning.encrypted"},`+
				`{"data":"REVG","id":"c2","index":0,"type":"reasoning.encrypted"},`+
				`{"summary":"S","type":"reasoning.summary"}]`),
		},
		"OpenRouter after another model": {
			"OpenRouter", "missing blocks have no replacement", reasoned, foreign, message(call, ""),
		},
		"Generic": {
			"Generic", "servers refuse unknown members",
			[]string{
				delta(`"reasoning_content":"Let me look.","reasoning_details":[{"type":"reasoning.text","text":"a"}]`),
				calling(`,"extra_content":` + signature),
			},
			unchanged, message(call, ""),
		},
	} {
		t.Run(name, func(t *testing.T) {
			reply, sent := replayed(t, openai.DialectOf(tc.dialect, ""), tc.change, tc.stream...)
			if diff := cmp.Diff(tc.want, sent); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if d := reply.ProviderData; d != nil && d.Lasting != (tc.dialect == "DeepSeek") {
				t.Errorf("lasting is %t; only DeepSeek needs the data in later Turns", d.Lasting)
			}
		})
	}
}

// TestReturnedDataOfAnswers checks that an answer without calls has no provider data, because no endpoint needs it.
func TestReturnedDataOfAnswers(t *testing.T) {
	body := events(delta(`"reasoning_content":"Hm.","reasoning_details":[{"text":"Hm."}]`),
		delta(`"content":"yes"`), finishEvent("stop"), "[DONE]")
	for _, dialect := range []string{"DeepSeek", "OpenRouter", "Gemini"} {
		p := provider(t, serve(t, respond(200, body, stream)), withDialect(openai.DialectOf(dialect, "")))
		reply, err := generate(t.Context(), p, request("hello"))
		if err != nil || reply.ProviderData != nil || reply.Reasoning != "Hm." {
			t.Errorf("%s: reply %+v, %v; want the answer and no data", dialect, reply, err)
		}
	}
}

// TestSignaturesAreCheckedSinceTheUsersMessage checks that only calls after the last message of the user get a
// replacement for a missing signature.
func TestSignaturesAreCheckedSinceTheUsersMessage(t *testing.T) {
	req := request("hello")
	call := model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: "c0", Name: "find", Arguments: "{}"}}}
	result := model.Message{Role: model.RoleTool, ToolCallID: "c0", Content: "found"}
	req.Messages = append(req.Messages, call, result, model.Message{Role: model.RoleUser, Content: "Again."}, call, result)
	body, _ := sentBody(t, req, "messages", withDialect(openai.DialectOf("Gemini", "")))
	before, after, _ := strings.Cut(body, "Again.")
	if strings.Contains(before, "thought_signature") || strings.Count(after, "skip_thought_signature_validator") != 1 {
		t.Errorf("messages %s, want a signature only after the last message of the user", body)
	}
}

// TestReturnedDataIsBounded checks that provider data counts towards the size of a reply.
func TestReturnedDataIsBounded(t *testing.T) {
	text := strings.Repeat("x", 1<<19)
	for name, tc := range map[string]struct {
		dialect string
		event   func(i int) string
	}{
		"texts": {"OpenRouter", func(int) string { return delta(`"reasoning_details":[{"index":0,"text":"` + text + `"}]`) }},
		"other members": {"OpenRouter", func(i int) string {
			return delta(fmt.Sprintf(`"reasoning_details":[{"index":0,"f%d":%q}]`, i, text))
		}},
		"signatures": {"Gemini", func(i int) string {
			return delta(fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"name":"find"},"extra_content":%q}]`, i, text))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var stream []string
			for i := range 3 {
				stream = append(stream, tc.event(i))
			}
			body := events(append(stream, calling(""), finishEvent("tool_calls"), "[DONE]")...)
			p := provider(t, serve(t, respond(200, body, "Content-Type: text/event-stream")), withDialect(openai.DialectOf(tc.dialect, "")))
			reply, err := generate(t.Context(), p, withTools("hello"))
			if err != nil || !reply.TooLong || reply.FinishReason != model.FinishLength || reply.ProviderData != nil {
				t.Errorf("Generate = %+v, %v; want a reply that was cut off, without data", reply, err)
			}
		})
	}
	many := strings.Repeat(`{},`, 5000) + `{}`
	body := events(delta(`"reasoning_details":[`+many+`]`), calling(""), finishEvent("tool_calls"), "[DONE]")
	p := provider(t, serve(t, respond(200, body, stream)), withDialect(openai.DialectOf("OpenRouter", "")))
	reply, err := generate(t.Context(), p, withTools("hello"))
	if err != nil || len(reply.ProviderData.Blocks) > 4<<10 {
		t.Errorf("Generate: %d bytes of blocks, %v; want at most 4 KiB, because only 1,024 blocks are kept", reply.ProviderData.Size(), err)
	}
}

// TestReturnedDataHasNoKey checks that the key is removed from reasoning, and that signed blocks with the key are
// dropped.
func TestReturnedDataHasNoKey(t *testing.T) {
	for dialect, want := range map[string]string{"DeepSeek": "it is [redacted]", "OpenRouter": ""} {
		reply, sent := replayed(t, openai.DialectOf(dialect, ""), unchanged,
			delta(`"reasoning_content":"it is `+key+`","reasoning_details":[{"text":"it is `+key+`","signature":"c2ln"}]`), calling(""))
		text := ""
		if reply.ProviderData != nil {
			text = reply.ProviderData.Text + string(reply.ProviderData.Blocks)
		}
		if text != want || strings.Contains(sent, key) {
			t.Errorf("%s: data %q and message %s; want %q", dialect, text, sent, want)
		}
	}
}

// TestThoughtsInCallIDs checks that the ID of a call with a signature of Gemini's thoughts, as LiteLLM sends it,
// reaches the server again unchanged, in the call and in its result. In between, the ID is short and without the
// signature, which no status and no terminal could show.
func TestThoughtsInCallIDs(t *testing.T) {
	long := "__thought__" + strings.Repeat("EjQKMgEb+/", 800) + "=="
	const first, second = "call_0123456789abcdef0123456789ab", "call_1123456789abcdef0123456789ab"
	for name, tc := range map[string]struct {
		reason  string
		dialect string
		change  func(*model.Message)
		end     string
	}{
		"LiteLLM":             {"github.com/BerriAI/litellm/pull/16895", "LiteLLM", unchanged, long},
		"Generic":             {"the dialect of a gateway may not be set", openai.Generic, unchanged, long},
		"Moonshot":            {"the reasoning is sent back, too", "Moonshot", unchanged, long},
		"after another model": {"the endpoint did not send the signature", "LiteLLM", foreign, ""},
		"Mistral":             {"the endpoint accepts only nine characters", "Mistral", unchanged, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []string
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				sent = append(sent, string(body))
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, events( // the test notices if the client is gone
					delta(`"tool_calls":[{"index":0,"id":"`+first+long+`","type":"function","function":{"name":"find","arguments":"{"}},`+
						`{"index":1,"id":"`+second+`","type":"function","function":{"name":"find","arguments":"{}"}}]`),
					delta(`"tool_calls":[{"index":0,"function":{"arguments":"}"}}]`), finishEvent("tool_calls"), "[DONE]"))
			})
			p := provider(t, url, withDialect(openai.DialectOf(tc.dialect, "")))
			req := withTools("hello")
			reply, err := generate(t.Context(), p, req)
			if err != nil || len(reply.ToolCalls) != 2 || reply.ToolCalls[0].ID != first || reply.ToolCalls[1].ID != second {
				t.Fatalf("Generate = %+v, %v; want two calls with short IDs", reply.ToolCalls, err)
			}
			m := model.Message{Role: model.RoleAssistant, ToolCalls: reply.ToolCalls, ProviderData: reply.ProviderData}
			tc.change(&m)
			req.Messages = append(req.Messages, m)
			for _, c := range m.ToolCalls {
				req.Messages = append(req.Messages, model.Message{Role: model.RoleTool, ToolCallID: c.ID, Content: "found"})
			}
			if _, err := generate(t.Context(), p, req); err != nil {
				t.Fatal(err)
			}
			var request struct {
				Messages []struct {
					ToolCallID string `json:"tool_call_id"`
					ToolCalls  []struct {
						ID string `json:"id"`
					} `json:"tool_calls"`
				} `json:"messages"`
			}
			if err := json.Unmarshal([]byte(sent[1]), &request); err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, m := range request.Messages {
				for _, c := range m.ToolCalls {
					ids = append(ids, c.ID)
				}
				if m.ToolCallID != "" {
					ids = append(ids, m.ToolCallID)
				}
			}
			want := []string{first + tc.end, second, first + tc.end, second}
			if tc.dialect == "Mistral" {
				a, b := endpoint.CallID(first, endpoint.CallIDsNine), endpoint.CallID(second, endpoint.CallIDsNine)
				want = []string{a, b, a, b}
			}
			if diff := cmp.Diff(want, ids); diff != "" {
				t.Errorf("%s: IDs of calls (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
