package openai_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestUnmarkedEnd checks which answers are whole if the stream ends without a finish reason and without [DONE].
func TestUnmarkedEnd(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`
	text, call := delta(`"content":"yes"`), callPart(0, "a", "count", `{"n":1}`)
	counted := model.Usage{InputTokens: 9, OutputTokens: 4}
	calls := []model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}}
	wholeText := func(u model.Usage) *model.Reply {
		return &model.Reply{Text: "yes", FinishReason: model.FinishStop, Usage: u}
	}
	wholeCall := func(u model.Usage) *model.Reply {
		return &model.Reply{ToolCalls: calls, FinishReason: model.FinishToolCalls, Usage: u}
	}
	generic, strict := openai.DialectOf(openai.Generic, ""), openai.DialectOf("OpenAI", "")
	textThen := func(reason string) string {
		return `{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"` + reason + `"}]}`
	}
	for name, tc := range map[string]struct {
		reason  string
		dialect openai.Dialect
		body    string
		headers []string
		// want is nil if the answer is not whole.
		want *model.Reply
	}{
		"text":         {"HTTP marks the end of the response", generic, events(text), nil, wholeText(model.Usage{})},
		"call":         {"the arguments are whole", generic, events(call), nil, wholeCall(model.Usage{})},
		"call, usage":  {"the usage is the end", generic, events(call, usage), nil, wholeCall(counted)},
		"text, usage":  {"the usage is the end", strict, events(text, usage), nil, wholeText(counted)},
		"no arguments": {"the arguments may still be missing", generic, events(callPart(0, "a", "count", "")), nil, nil},
		"no arguments, usage": {
			"a call may have none", generic, events(callPart(0, "a", "count", ""), usage), nil,
			&model.Reply{
				ToolCalls: []model.ToolCall{{ID: "a", Name: "count"}}, FinishReason: model.FinishToolCalls, Usage: counted,
			},
		},
		"half a call": {"the arguments are cut off", generic, events(callPart(0, "a", "count", `{"n":`)), nil, nil},
		"half a call, usage": {
			"the arguments are cut off all the same", generic, events(callPart(0, "a", "count", `{"n":`), usage),
			nil, nil,
		},
		"half a second call":   {"one of the calls is cut off", generic, events(call, callPart(1, "b", "list", `{`)), nil, nil},
		"arguments, no object": {"1 may be the beginning of 12", generic, events(callPart(0, "a", "count", `1`)), nil, nil},
		"text, strict":         {"the service marks each end", strict, events(text), nil, nil},
		"null as a text":       {"it is no finish reason", strict, events(textThen("null")), nil, nil},
		"none as a text":       {"it is no finish reason", strict, events(textThen("None")), nil, nil},
		"null as a text, end": {
			"the end is marked", strict, events(textThen("null"), "[DONE]"), nil, wholeText(model.Usage{}),
		},
		"null as a text, reason": {
			"the reason comes later", strict, events(textThen("null"), finishEvent("stop")), nil, wholeText(model.Usage{}),
		},
		"growing usage": {
			"the usage comes with each part, not only at the end", strict,
			events(`{"choices":[{"index":0,"delta":{"content":"yes"}}],"usage":{"prompt_tokens":9,"completion_tokens":4}}`), nil, nil,
		},
		"growing usage, no text": {
			"more text may follow a part without any", strict,
			events(text, `{"choices":[{"index":0,"delta":{"content":""}}],"usage":{"prompt_tokens":9,"completion_tokens":4}}`), nil, nil,
		},
		"usage, empty part": {"the answer continues", strict, events(text, usage, delta(`"content":""`)), nil, nil},
		"half a thought":    {"no answer has begun", generic, events(delta(`"content":"<think>Hm"`)), nil, nil},
		"half a thought, usage": {
			"the thought is cut off all the same", generic, events(delta(`"content":"<think>Hm"`), usage), nil, nil,
		},
		"thought": {
			"the thought is whole, but the answer is missing", generic, events(delta(`"content":"<think>Hm.</think> "`)), nil, nil,
		},
		"thought, text": {
			"the text is the answer", generic, events(delta(`"content":"<think>Hm.</think>"`), text), nil,
			&model.Reply{Text: "yes", Reasoning: "Hm.", FinishReason: model.FinishStop},
		},
		"usage first": {"text has followed the usage", strict, events(usage, text), nil, nil},
		"no length": {
			"a broken connection looks the same", generic, events(text), []string{"Transfer-Encoding: identity"}, nil,
		},
		"no length, usage": {
			"the usage is the end", generic, events(text, usage), []string{"Transfer-Encoding: identity"}, wholeText(counted),
		},
		"events on lines": {
			"only the first of several events without data: was read", generic, delta(`"content":"ye"`) + "\n" + delta(`"content":"s"`),
			nil, nil,
		},
		"events on lines, cut off": {"likewise", generic, delta(`"content":"ye"`) + "\n" + `{"choices":[{"ind`, nil, nil},
		"half an event":            {"a part is cut off", generic, events(text) + `data: {"choices":[{"ind`, nil, nil},
		"text at the end":          {"the text may be an error", generic, events(text) + "upstream closed\n", nil, nil},
		"only reasoning":           {"no answer has begun", generic, events(delta(`"reasoning_content":"hm"`)), nil, nil},
		"nothing":                  {"there is no answer", generic, events(usage), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, respond(200, tc.body, append(tc.headers, stream)...))
			req := withTools("hello")
			req.Tools = append(req.Tools, model.Tool{Name: "list"})
			got, err := generate(t.Context(), provider(t, url, withDialect(tc.dialect)), req)
			if tc.want != nil {
				if diff := cmp.Diff(*tc.want, got); diff != "" || err != nil {
					t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
				}
				return
			}
			e := check(t, got, err)
			if e.Kind != model.Malformed || e.Message != `provider "demo": the stream ended before the answer was finished` {
				t.Errorf("%s: error %s %q, want an unfinished stream", tc.reason, e.Kind, e.Message)
			}
			if began := name != "nothing" && name != "no arguments"; e.MayBeBilled != began {
				t.Errorf("MayBeBilled is %v, want %v: parts of the answer are billed", e.MayBeBilled, began)
			}
		})
	}
}

// TestBrokenConnectionAfterPartsMayBeBilled checks that an answer that has begun may be billed, however soon its
// connection breaks.
func TestBrokenConnectionAfterPartsMayBeBilled(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want bool
	}{
		"before the first part": {": working\n\n", false},
		"after a part":          {events(delta(`"content":"ye"`)), true},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				respond(200, tc.body, stream)(w, r)
				_ = http.NewResponseController(w).Flush() // so that the client receives the body before the connection breaks
				panic(http.ErrAbortHandler)
			})))
			if e.Kind != model.Network || e.MayBeBilled != tc.want {
				t.Errorf("error %s, MayBeBilled %v, want Network and %v", e.Kind, e.MayBeBilled, tc.want)
			}
		})
	}
}

// TestUnmarkedEndOfKnownServers checks that an answer of a known server counts as cut off if its end is not marked: an
// answer of a server that was killed behind a proxy looks the same.
func TestUnmarkedEndOfKnownServers(t *testing.T) {
	for _, name := range dialectNames {
		if name == openai.Generic {
			continue // TestUnmarkedEnd
		}
		url := serve(t, respond(200, events(delta(`"content":"half a sen"`)), stream))
		e := failure(t, provider(t, url, withDialect(openai.DialectOf(name, ""))))
		if e.Kind != model.Malformed || !e.MayBeBilled {
			t.Errorf("%s: error %s, MayBeBilled %v, want Malformed and true", name, e.Kind, e.MayBeBilled)
		}
	}
}

// TestFailureAfterPartsMayBeBilled checks that an answer that has begun may be billed if the endpoint then reports a
// failure, and that any answer may be billed if the endpoint reports a timeout.
func TestFailureAfterPartsMayBeBilled(t *testing.T) {
	const failed, limited = `{"error":{"message":"It crashed."}}`, `{"error":{"message":"Later.","code":429}}`
	part := delta(`"content":"ye"`)
	for name, tc := range map[string]struct {
		body string
		kind model.ErrorKind
		want bool
	}{
		"error first":            {events(failed), model.Overloaded, false},
		"error":                  {events(part, failed), model.Overloaded, true},
		"rate limit":             {events(part, limited), model.RateLimited, true},
		"unreadable event":       {events(part, `{"choices":"none"}`), model.Malformed, true},
		"text":                   {events(part, "the engine failed", "[DONE]"), model.Overloaded, true},
		"text first":             {events("the engine failed", "[DONE]"), model.Overloaded, false},
		"finish reason":          {events(part, finishEvent("error"), "[DONE]"), model.Overloaded, true},
		"finish reason first":    {events(finishEvent("network_error"), "[DONE]"), model.Overloaded, false},
		"abort":                  {events(callPart(0, "a", "count", `{`), finishEvent("abort"), "[DONE]"), model.Overloaded, true},
		"timeout":                {events(part, finishEvent("TIMEOUT"), "[DONE]"), model.Overloaded, true},
		"timeout first":          {events(finishEvent("TIMEOUT"), "[DONE]"), model.Overloaded, true},
		"timeout as a code only": {events(`{"error":{"message":"Late.","code":504}}`), model.Overloaded, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, serve(t, respond(200, tc.body, stream))))
			if e.Kind != tc.kind || e.MayBeBilled != tc.want {
				t.Errorf("error %s, MayBeBilled %v, want %s and %v", e.Kind, e.MayBeBilled, tc.kind, tc.want)
			}
		})
	}
}
