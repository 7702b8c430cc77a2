package openai_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestLongReplies in small pieces, which take far more bytes as they are sent than they have, are whole.
func TestLongReplies(t *testing.T) {
	const pieces = 6000 // of some 250 bytes
	words := strings.Repeat("word ", pieces)
	for name, tc := range map[string]struct {
		rule string
		want model.Reply
	}{
		"text": {
			fmt.Sprintf(`{text: "word ", repeat: %d, chunkChars: 5}`, pieces),
			model.Reply{Text: words, FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 9, OutputTokens: 7}},
		},
		"reasoning": {
			fmt.Sprintf(`{text: fine, reasoning: %q, chunkChars: 5}`, words),
			model.Reply{Text: "fine", Reasoning: words, FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 9, OutputTokens: 7}},
		},
		"arguments": {
			fmt.Sprintf(`{toolCalls: [{id: a, name: count, arguments: %q}], chunkChars: 5}`, words),
			model.Reply{
				ToolCalls: []model.ToolCall{{ID: "a", Name: "count", Arguments: words}}, FinishReason: model.FinishToolCalls,
				Usage: model.Usage{InputTokens: 9, OutputTokens: 7},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rule := strings.TrimSuffix(tc.rule, "}") + ", usage: {promptTokens: 9, completionTokens: 7, reasoningTokens: 0}}"
			_, url := fake(t, "rules: [{reply: "+rule+"}]")
			got, err := provider(t, url).Generate(t.Context(), withTools("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("error %v, -want +got:\n%.2000s", err, diff)
			}
		})
	}
}

// TestRepliesThatAreTooLong are cut off, and what is left out is read for the usage at its end.
func TestRepliesThatAreTooLong(t *testing.T) {
	const more = 1 << 20
	most := strings.Repeat("x", openai.MaxReplyBytes)
	usage := `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`
	used := model.Usage{InputTokens: 9, OutputTokens: 4}
	text, thought, arguments := delta(`"content":"`+most+`"`), delta(`"reasoning":"`+most+`"`), part(0, "a", "count", most)
	rest := delta(`"content":"` + strings.Repeat("y", more) + `"`)
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"just so":         {"so much is kept", []string{text, finishing("stop"), usage, "[DONE]"}, model.Reply{Text: most, FinishReason: model.FinishStop, Usage: used}},
		"text":            {"the beginning is kept", []string{text, rest, finishing("stop"), usage, "[DONE]"}, model.Reply{Text: most, TooLong: true, Usage: used}},
		"cut off twice":   {"by the endpoint, too", []string{text, rest, finishing("length"), usage, "[DONE]"}, model.Reply{Text: most, TooLong: true, Usage: used}},
		"no usage":        {"all that came counts", []string{text, rest, finishing("stop"), "[DONE]"}, model.Reply{Text: most, TooLong: true, Received: openai.MaxReplyBytes + more}},
		"no end":          {"it is cut off in any case", []string{text, rest, rest}, model.Reply{Text: most, TooLong: true, Received: openai.MaxReplyBytes + 2*more}},
		"rubbish behind":  {"whatever comes then", []string{text, rest, "rubbish"}, model.Reply{Text: most, TooLong: true, Received: openai.MaxReplyBytes + more}},
		"reasoning":       {"all together is bounded", []string{thought, rest, finishing("stop"), usage, "[DONE]"}, model.Reply{Reasoning: most, TooLong: true, Usage: used}},
		"arguments":       {"no part of a call is made", []string{delta(`"content":"I count."`), arguments, finishing("tool_calls"), usage, "[DONE]"}, model.Reply{Text: "I count.", TooLong: true, Usage: used}},
		"arguments, stop": {"however it ends", []string{delta(`"content":"I count."`), arguments, finishing("stop"), usage, "[DONE]"}, model.Reply{Text: "I count.", TooLong: true, Usage: used}},
		"characters":      {"none is cut in two", []string{delta(`"content":"` + most[1:] + `"`), delta(`"content":"ü` + `"`), finishing("stop"), usage, "[DONE]"}, model.Reply{Text: most[1:], TooLong: true, Usage: used}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.want.TooLong {
				tc.want.FinishReason = model.FinishLength
			}
			got, err := provider(t, raw(t, respond(200, events(tc.events...), stream))).Generate(t.Context(), withTools("hello"))
			if tc.want.Text != got.Text || tc.want.Reasoning != got.Reasoning {
				t.Errorf("%d bytes of text and %d of reasoning, want %d and %d: %s", len(got.Text), len(got.Reasoning), len(tc.want.Text), len(tc.want.Reasoning), tc.reason)
			}
			got.Text, got.Reasoning, tc.want.Text, tc.want.Reasoning = "", "", "", ""
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestAReplyThatIsTooLongAndCancelled is lost: it was not the endpoint that ended it, whatever the cause is called.
func TestAReplyThatIsTooLongAndCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	url := raw(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(events(delta(`"content":"`+strings.Repeat("x", openai.MaxReplyBytes)+`"`), delta(`"content":"and more"`))))
		w.(http.Flusher).Flush()
		cancel(errors.New("the turn was cancelled"))
		<-r.Context().Done()
	})
	got, err := provider(t, url).Generate(ctx, request("hello"))
	if err == nil {
		t.Errorf("Generate = %d bytes, %s; want the error of a request that was cancelled", len(got.Text), got.FinishReason)
	}
}

// TestEndlessReply is cut off where no more is read.
func TestEndlessReply(t *testing.T) {
	gone := make(chan struct{})
	url := raw(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(events(delta(`"content":"word "`)))); err != nil {
				return
			}
		}
	})
	p := provider(t, url)
	p.SetLongest(1 << 20)
	got, err := p.Generate(t.Context(), request("hello"))
	if err != nil || got.FinishReason != model.FinishLength || !got.TooLong || !strings.HasPrefix(got.Text, "word word ") || got.Received != int64(len(got.Text)) {
		t.Errorf("Generate = %.20q... of %d bytes, %s %t %d, %v; want what came, cut off", got.Text, len(got.Text), got.FinishReason, got.TooLong, got.Received, err)
	}
	select {
	case <-gone:
	case <-patient(t).Done():
		t.Error("the endpoint works on")
	}
}

// TestWhatFailedRepliesHadSent is told, for want of a usage.
func TestWhatFailedRepliesHadSent(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   int64
		used   model.Usage
	}{
		"nothing":   {"there was nothing", []string{delta(`"role":"assistant"`)}, 0, model.Usage{}},
		"all kinds": {"text, reasoning and arguments", []string{delta(`"content":"text "`), delta(`"reasoning":"thoughts "`), part(0, "a", "count", "arguments")}, 23, model.Usage{}},
		"rubbish":   {"what came before it", []string{delta(`"content":"text "`), "rubbish"}, 5, model.Usage{}},
		"filtered":  {"it is withheld, not for nothing", []string{delta(`"content":"text "`), finishing("content_filter"), "[DONE]"}, 5, model.Usage{}},
		"no call":   {"nor is what makes no sense", []string{delta(`"content":"text "`), finishing("tool_calls"), "[DONE]"}, 5, model.Usage{}},
		"reported":  {"the endpoint knows best", []string{delta(`"content":"text "`), usage}, 0, model.Usage{InputTokens: 9, OutputTokens: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := provider(t, raw(t, respond(200, events(tc.events...), stream))).Generate(t.Context(), withTools("hello"))
			if e := check(t, reply, err); e.Received != tc.want || e.Usage != tc.used {
				t.Errorf("%d bytes received, usage %+v; want %d and %+v: %s", e.Received, e.Usage, tc.want, tc.used, tc.reason)
			}
		})
	}
	_, url := fake(t, `rules: [{reply: {text: half an answer that is cut}, fault: {cutAfterChunks: 1}}]`)
	if e := failure(t, provider(t, url)); e.Kind != model.Network || e.Received != 16 {
		t.Errorf("error %s after %d bytes, want Network after a chunk of 16", e.Kind, e.Received)
	}
}

// TestLongNamesOfCalls are cut off: no tool has one.
func TestLongNamesOfCalls(t *testing.T) {
	var pieces []string
	for range 3000 {
		pieces = append(pieces, part(0, "id", "name", ""))
		pieces = append(pieces, part(0, "more", "more", ""))
	}
	body := events(append(pieces, part(0, "", "", "{}"), finishing("tool_calls"), "[DONE]")...)
	got, err := provider(t, raw(t, respond(200, body, stream))).Generate(t.Context(), withTools("hello"))
	if err != nil || len(got.ToolCalls) != 1 || got.ToolCalls[0].ID != "call_0" || len(got.ToolCalls[0].Name) != 1024 {
		t.Errorf("Generate = %.100v, %v; want a call with an ID in place of one that is too long and a name of 1024 bytes", got.ToolCalls, err)
	}
}
