package openai_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestReasoningOnTheWire checks that reasoning under either name is never part of the answer.
func TestReasoningOnTheWire(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, body string
		want         model.Reply
	}{
		"reasoning_content": {
			"most servers use this name", events(delta(`"reasoning_content":"Let me "`),
				delta(`"reasoning_content":"think."`), delta(`"content":"yes"`), finishEvent("stop"), "[DONE]"),
			model.Reply{Text: "yes", Reasoning: "Let me think.", FinishReason: model.FinishStop},
		},
		"reasoning": {
			"some servers use this name", events(delta(`"reasoning":"Let me "`), delta(`"content":"","reasoning":"think."`),
				delta(`"content":"yes","reasoning":null`), finishEvent("stop"), "[DONE]"),
			model.Reply{Text: "yes", Reasoning: "Let me think.", FinishReason: model.FinishStop},
		},
		"both": {
			"some servers send the same text twice", events(delta(`"reasoning":"Hm.","reasoning_content":"Hm."`), delta(`"content":"yes"`),
				finishEvent("stop"), "[DONE]"),
			model.Reply{Text: "yes", Reasoning: "Hm.", FinishReason: model.FinishStop},
		},
		"no text": {
			"reasoning of another form is left out", events(delta(`"reasoning":{"effort":"high"}`), delta(`"content":"yes"`),
				finishEvent("stop"), "[DONE]"),
			model.Reply{Text: "yes", FinishReason: model.FinishStop},
		},
		"cut off": {
			"a reply may have only reasoning", events(delta(`"reasoning":"Let me"`), finishEvent("length"), "[DONE]"),
			model.Reply{Reasoning: "Let me", FinishReason: model.FinishLength},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generate(t.Context(), provider(t, serve(t, respond(200, tc.body, stream))), request("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestReasoningWithoutAnswer checks that a reply with only reasoning is an empty answer, and that its error says that
// it may be billed: a repetition is as expensive. The same applies to an empty answer whose usage has output, and to a
// reply with an empty call.
func TestReasoningWithoutAnswer(t *testing.T) {
	const hidden = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":40,"completion_tokens_details":{"reasoning_tokens":40}}}`
	const counted = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":40}}`
	const only = "the model reasoned, but the answer was empty"
	for name, tc := range map[string]struct {
		body   string
		billed bool
		want   string
	}{
		"sent":    {events(delta(`"reasoning_content":"yes"`), finishEvent("stop"), "[DONE]"), true, only},
		"in tags": {events(delta(`"content":"<think>Hm.</think> "`), finishEvent("stop"), "[DONE]"), true, only},
		"hidden":  {events(finishEvent("stop"), hidden, "[DONE]"), true, only},
		"before calls": {
			events(delta(`"reasoning_content":"yes"`), finishEvent("tool_calls"), "[DONE]"), true,
			"the model announced a tool call but made none",
		},
		"empty call": {
			events(delta(`"tool_calls":[{"index":0}]`), finishEvent("tool_calls"), "[DONE]"), true,
			"the model announced a tool call but made none",
		},
		"counted":      {events(finishEvent("stop"), counted, "[DONE]"), true, "the answer was empty"},
		"no reasoning": {events(delta(`"content":""`), finishEvent("stop"), "[DONE]"), false, "the answer was empty"},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, serve(t, respond(200, tc.body, stream))))
			if want := `provider "demo": ` + tc.want; e.Kind != model.Malformed || e.Message != want || e.MayBeBilled != tc.billed {
				t.Errorf("Generate: %s %q, billed %t; want %q, %t", e.Kind, e.Message, e.MayBeBilled, want, tc.billed)
			}
		})
	}
}

func TestReasoningWithCalls(t *testing.T) {
	_, url := fakeModel(t, `rules: [{reply: {reasoning: "I look.", toolCalls: [{name: find}]}}]`)
	req := request("hello")
	req.Tools = []model.Tool{{Name: "find"}}
	got, err := generate(t.Context(), provider(t, url), req)
	if err != nil || got.Reasoning != "I look." || got.Text != "" || len(got.ToolCalls) != 1 || got.Usage.ReasoningTokens != 2 {
		t.Errorf("Generate = %+v, %v; want a call, the reasoning and its tokens", got, err)
	}
}

// TestReasoningIsNotIdle checks that long reasoning does not cause a timeout, because the model is working.
func TestReasoningIsNotIdle(t *testing.T) {
	_, url := fakeModel(t, `rules: [{reply: {reasoning: "one thought in many pieces", text: "yes", chunkChars: `+
		`2}, fault: {chunkDelayMilliseconds: 200}}]`)
	p := provider(t, url, func(c *openai.Config) { c.IdleTimeout = 2 * time.Second })
	got, err := generate(t.Context(), p, request("hello"))
	if err != nil || got.Reasoning != "one thought in many pieces" || got.Text != "yes" {
		t.Errorf("Generate = %+v, %v; want the answer: only silence is a timeout", got, err)
	}
}

// TestEffortAndFormat checks that effort and format are sent only if they are set.
func TestEffortAndFormat(t *testing.T) {
	const schema = `{"type":"object","properties":{"z":{"type":"integer"},"a":{"const":1.0}}}`
	for name, tc := range map[string]struct {
		reason, member string
		change         func(*model.Request)
		want           string
	}{
		"no effort": {"the endpoint decides", "reasoning_effort", func(*model.Request) {}, ""},
		"effort":    {"the effort is sent", "reasoning_effort", func(r *model.Request) { r.Parameters.Effort = "high" }, `"high"`},
		"no format": {"the answer may be any text", "response_format", func(*model.Request) {}, ""},
		"format": {
			"the schema is sent unchanged, and is not strict", "response_format",
			func(r *model.Request) { r.Output = json.RawMessage(schema) },
			`{"type":"json_schema","json_schema":{"name":"answer","schema":` + schema + `,"strict":false}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := request("hello")
			tc.change(&req)
			if got, _ := sentBody(t, req, tc.member); got != tc.want {
				t.Errorf("sent %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestInvalidSchema(t *testing.T) {
	s, url := fakeModel(t, "")
	req := request("hello")
	req.Output = json.RawMessage(`{"type":`)
	_, err := generate(t.Context(), provider(t, url), req)
	e, ok := errors.AsType[*model.Error](err)
	if !ok || e.Kind != model.InvalidRequest || !e.Unsent || s.Stats().Requests != 0 {
		t.Errorf("Generate: %v after %d requests, want InvalidRequest without a request", err, s.Stats().Requests)
	}
}

// TestStrictEndpoint sends all options to a server that validates them.
func TestStrictEndpoint(t *testing.T) {
	s, url := fakeModel(t, `{contextTokens: 100, rules: [{when: {responseFormat: json_schema, hasTools: true}, reply: {text: "{}"}}]}`)
	req := request("hello")
	req.Output, req.Parameters.Effort, req.Tools = json.RawMessage(`{"type":"object"}`), "low", []model.Tool{{Name: "find"}}
	got, err := generate(t.Context(), provider(t, url), req)
	if err != nil || got.Text != "{}" || s.Requests()[0].ResponseFormat != "json_schema" {
		t.Errorf("Generate = %+v, %v; want the answer", got, err)
	}
	req.Messages[1].Content = strings.Repeat("long ", 100)
	_, err = generate(t.Context(), provider(t, url), req)
	if e, ok := errors.AsType[*model.Error](err); !ok || e.Kind != model.ContextLength {
		t.Errorf("Generate: %v, want ContextLength", err)
	}
}
