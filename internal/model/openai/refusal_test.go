package openai_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestARefusalIsAReply: the endpoint has finished it, its text is kept, and to ask again would bring it again.
func TestARefusalIsAReply(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"in pieces":      {"as any text", []string{delta(`"refusal":"I can"`), delta(`"refusal":"not."`), finishing("stop")}, model.Reply{Text: "I cannot.", FinishReason: model.FinishRefusal}},
		"in a message":   {"some servers send no delta", []string{`{"choices":[{"index":0,"message":{"refusal":"I cannot."},"finish_reason":"stop"}]}`}, model.Reply{Text: "I cannot.", FinishReason: model.FinishRefusal}},
		"behind a text":  {"both are kept", []string{delta(`"content":"Well."`), delta(`"refusal":"I cannot."`), finishing("stop")}, model.Reply{Text: "Well.\n\nI cannot.", FinishReason: model.FinishRefusal}},
		"with a call":    {"a refusal counts more", []string{part(0, "a", "count", `{"n":1}`), delta(`"refusal":"No."`), finishing("stop")}, model.Reply{Text: "No.", FinishReason: model.FinishRefusal}},
		"an empty field": {"says nothing", []string{delta(`"refusal":""`), delta(`"content":"Yes."`), finishing("stop")}, model.Reply{Text: "Yes.", FinishReason: model.FinishStop}},
		"cut off":        {"what came of it is kept", []string{delta(`"refusal":"I can"`), finishing("length")}, model.Reply{Text: "I can", FinishReason: model.FinishLength}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := provider(t, raw(t, respond(200, events(append(tc.events, "[DONE]")...), stream))).Generate(t.Context(), request("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestReasoningBeforeTheAnswer is no part of it, also where the endpoint does not part the two.
func TestReasoningBeforeTheAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"before":     {"it is parted", []string{delta(`"content":"<think>\nHm.\n</th"`), delta(`"content":"ink>\n\nOslo."`), finishing("stop")}, model.Reply{Text: "Oslo.", Reasoning: "Hm.", FinishReason: model.FinishStop}},
		"empty":      {"as models write it that do not reason", []string{delta(`"content":"<think>\n\n</think>\n\nOslo."`), finishing("stop")}, model.Reply{Text: "Oslo.", FinishReason: model.FinishStop}},
		"within":     {"what an answer says of it stays", []string{delta(`"content":"Write <think>x</think>."`), finishing("stop")}, model.Reply{Text: "Write <think>x</think>.", FinishReason: model.FinishStop}},
		"not closed": {"nobody knows where it ends", []string{delta(`"content":"<think> Oslo."`), finishing("stop")}, model.Reply{Text: "<think> Oslo.", FinishReason: model.FinishStop}},
		"cut off":    {"there is no answer", []string{delta(`"content":"<think> Os"`), finishing("length")}, model.Reply{Reasoning: "Os", FinishReason: model.FinishLength}},
		"both ways":  {"it is kept together", []string{delta(`"reasoning_content":"First."`), delta(`"content":"<think>Then.</think>Oslo."`), finishing("stop")}, model.Reply{Text: "Oslo.", Reasoning: "First.\n\nThen.", FinishReason: model.FinishStop}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := provider(t, raw(t, respond(200, events(append(tc.events, "[DONE]")...), stream))).Generate(t.Context(), request("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
	body := events(delta(`"content":"<think>Hm.</think> "`), finishing("stop"), "[DONE]")
	reply, err := provider(t, raw(t, respond(200, body, stream))).Generate(t.Context(), request("hello"))
	if e := check(t, reply, err); e.Kind != model.Malformed {
		t.Errorf("reasoning alone is %s, want an empty answer", e.Kind)
	}
}
