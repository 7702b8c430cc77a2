package openai_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestRefusalIsAReply checks that a refusal is a complete reply with its text: repeating the request would bring
// the same refusal.
func TestRefusalIsAReply(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"in pieces": {"a refusal may come in pieces", []string{
			delta(`"refusal":"I can"`), delta(`"refusal":"not."`),
			finishEvent("stop"),
		}, model.Reply{Text: "I cannot.", FinishReason: model.FinishRefusal}},
		"in a message": {
			"some servers send a message instead of a delta",
			[]string{`{"choices":[{"index":0,"message":{"refusal":"I cannot."},"finish_reason":"stop"}]}`},
			model.Reply{Text: "I cannot.", FinishReason: model.FinishRefusal},
		},
		"after a text": {"text and refusal are kept", []string{
			delta(`"content":"Well."`),
			delta(`"refusal":"I cannot."`), finishEvent("stop"),
		}, model.Reply{Text: "Well.\n\nI cannot.", FinishReason: model.FinishRefusal}},
		"with a call": {"the refusal counts, not the call", []string{
			callPart(0, "a", "count", `{"n":1}`),
			delta(`"refusal":"No."`), finishEvent("stop"),
		}, model.Reply{Text: "No.", FinishReason: model.FinishRefusal, Received: 10}},
		"an empty field": {
			"an empty refusal is none",
			[]string{delta(`"refusal":""`), delta(`"content":"Yes."`), finishEvent("stop")},
			model.Reply{Text: "Yes.", FinishReason: model.FinishStop},
		},
		"cut off": {
			"the received part is kept",
			[]string{delta(`"refusal":"I can"`), finishEvent("length")},
			model.Reply{Text: "I can", FinishReason: model.FinishLength},
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, respond(200, events(append(tc.events, "[DONE]")...), stream))
			got, err := generate(t.Context(), provider(t, url), request("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestReasoningBeforeTheAnswer checks that reasoning is not part of the answer, even if the endpoint does not
// separate them.
func TestReasoningBeforeTheAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"before": {"the reasoning is separated", []string{
			delta(`"content":"<think>\nHm.\n</th"`), delta(`"content":"ink>\n\nOslo."`),
			finishEvent("stop"),
		}, model.Reply{Text: "Oslo.", Reasoning: "Hm.", FinishReason: model.FinishStop}},
		"empty": {
			"empty reasoning is removed",
			[]string{delta(`"content":"<think>\n\n</think>\n\nOslo."`), finishEvent("stop")},
			model.Reply{Text: "Oslo.", FinishReason: model.FinishStop},
		},
		"within": {
			"tags within the answer stay",
			[]string{delta(`"content":"Write <think>x</think>."`), finishEvent("stop")},
			model.Reply{Text: "Write <think>x</think>.", FinishReason: model.FinishStop},
		},
		"not opened": {"the chat template has opened the reasoning", []string{
			delta(`"content":"Hm.\n</th"`), delta(`"content":"ink>\n\nOslo."`),
			finishEvent("stop"),
		}, model.Reply{Text: "Oslo.", Reasoning: "Hm.", FinishReason: model.FinishStop}},
		"not opened, a whole answer": {
			"some servers send a message instead of a delta",
			[]string{`{"choices":[{"index":0,"message":{"content":"Hm.</think>\n\nOslo.\n"},"finish_reason":"stop"}]}`},
			model.Reply{Text: "Oslo.\n", Reasoning: "Hm.", FinishReason: model.FinishStop},
		},
		"not opened, empty": {
			"empty reasoning is removed",
			[]string{delta(`"content":"\n</think>\n\nOslo."`), finishEvent("stop")},
			model.Reply{Text: "Oslo.", FinishReason: model.FinishStop},
		},
		"not opened, a call": {
			"a call follows in place of an answer",
			[]string{
				delta(`"content":"Hm.\n</think>\n\n"`),
				delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]`),
				finishEvent("tool_calls"),
			},
			model.Reply{
				Reasoning: "Hm.", FinishReason: model.FinishToolCalls,
				ToolCalls: []model.ToolCall{{ID: "a", Name: "f", Arguments: "{}"}},
			},
		},
		"not opened, cut off": {
			"the reply was cut off within the answer",
			[]string{delta(`"content":"Hm.</think>\nOs"`), finishEvent("length")},
			model.Reply{Text: "Os", Reasoning: "Hm.", FinishReason: model.FinishLength},
		},
		"closing tag within a line": {
			"tags within the answer stay",
			[]string{delta(`"content":"Write </think>, then\nOslo."`), finishEvent("stop")},
			model.Reply{Text: "Write </think>, then\nOslo.", FinishReason: model.FinishStop},
		},
		"two closing tags": {
			"tags within the answer stay",
			[]string{delta(`"content":"a</think>\nb</think>\nc"`), finishEvent("stop")},
			model.Reply{Text: "a</think>\nb</think>\nc", FinishReason: model.FinishStop},
		},
		"both tags within": {
			"tags within the answer stay",
			[]string{delta(`"content":"Write\n<think>\nx\n</think>\nfirst."`), finishEvent("stop")},
			model.Reply{Text: "Write\n<think>\nx\n</think>\nfirst.", FinishReason: model.FinishStop},
		},
		"nothing after the closing tag": {
			"the text may be the answer",
			[]string{delta(`"content":"The end is </think>\n"`), finishEvent("stop")},
			model.Reply{Text: "The end is </think>\n", FinishReason: model.FinishStop},
		},
		"not closed": {
			"reasoning without an end is part of the answer",
			[]string{delta(`"content":"<think> Oslo."`), finishEvent("stop")},
			model.Reply{Text: "<think> Oslo.", FinishReason: model.FinishStop},
		},
		"cut off": {
			"the reply was cut off within the reasoning",
			[]string{delta(`"content":"<think> Os"`), finishEvent("length")},
			model.Reply{Reasoning: "Os", FinishReason: model.FinishLength},
		},
		"both ways": {
			"reasoning from both places is joined",
			[]string{delta(`"reasoning_content":"First."`), delta(`"content":"<think>Then.</think>Oslo."`), finishEvent("stop")},
			model.Reply{Text: "Oslo.", Reasoning: "First.\n\nThen.", FinishReason: model.FinishStop},
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, respond(200, events(append(tc.events, "[DONE]")...), stream))
			got, err := generate(t.Context(), provider(t, url), request("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
	body := events(delta(`"content":"<think>Hm.</think> "`), finishEvent("stop"), "[DONE]")
	reply, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), request("hello"))
	if e := check(t, reply, err); e.Kind != model.Malformed {
		t.Errorf("reasoning alone is %s, want an empty answer", e.Kind)
	}
}
