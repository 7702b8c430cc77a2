package openai_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestLongReplies checks that replies in many small pieces are complete, although the stream has far more bytes
// than the reply.
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
			model.Reply{
				Text: "fine", Reasoning: words, FinishReason: model.FinishStop,
				Usage: model.Usage{InputTokens: 9, OutputTokens: 7},
			},
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
			_, url := fakeModel(t, "rules: [{reply: "+rule+"}]")
			got, err := generate(t.Context(), provider(t, url), withTools("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("error %v, -want +got:\n%.2000s", err, diff)
			}
		})
	}
}

// TestTooLongReplies checks that a reply that is too long is cut off, and that its rest is still read, because the
// usage comes at the end.
func TestTooLongReplies(t *testing.T) {
	const more = 1 << 20
	longest := strings.Repeat("x", endpoint.MaxReplyBytes)
	usage := `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`
	used := model.Usage{InputTokens: 9, OutputTokens: 4}
	text, thought, arguments := delta(`"content":"`+longest+`"`), delta(`"reasoning":"`+longest+`"`), callPart(0, "a", "count", longest)
	rest := delta(`"content":"` + strings.Repeat("y", more) + `"`)
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"the maximum length": {
			"the longest reply is kept",
			[]string{text, finishEvent("stop"), usage, "[DONE]"},
			model.Reply{Text: longest, FinishReason: model.FinishStop, Usage: used},
		},
		"text": {
			"the beginning is kept",
			[]string{text, rest, finishEvent("stop"), usage, "[DONE]"},
			model.Reply{Text: longest, TooLong: true, Usage: used},
		},
		"cut off twice": {
			"the endpoint cut the reply off too",
			[]string{text, rest, finishEvent("length"), usage, "[DONE]"},
			model.Reply{Text: longest, TooLong: true, Usage: used},
		},
		"no usage": {
			"all received bytes count",
			[]string{text, rest, finishEvent("stop"), "[DONE]"},
			model.Reply{Text: longest, TooLong: true, Received: endpoint.MaxReplyBytes + more},
		},
		"no end": {
			"the stream has no end",
			[]string{text, rest, rest},
			model.Reply{Text: longest, TooLong: true, Received: endpoint.MaxReplyBytes + 2*more},
		},
		"rubbish after the bound": {
			"invalid data after the bound does not matter",
			[]string{text, rest, "rubbish"},
			model.Reply{Text: longest, TooLong: true, Received: endpoint.MaxReplyBytes + more},
		},
		"reasoning": {
			"text and reasoning are bounded together",
			[]string{thought, rest, finishEvent("stop"), usage, "[DONE]"},
			model.Reply{Reasoning: longest, TooLong: true, Usage: used},
		},
		"arguments": {"a call that is cut off is left out", []string{
			delta(`"content":"I count."`), arguments,
			finishEvent("tool_calls"), usage, "[DONE]",
		}, model.Reply{Text: "I count.", TooLong: true, Usage: used}},
		"arguments, stop": {"a call that is cut off is left out for any finish reason", []string{
			delta(`"content":"I count."`), arguments,
			finishEvent("stop"), usage, "[DONE]",
		}, model.Reply{Text: "I count.", TooLong: true, Usage: used}},
		"characters": {"no character is cut in two", []string{
			delta(`"content":"` + longest[1:] + `"`),
			delta(`"content":"ü` + `"`), finishEvent("stop"), usage, "[DONE]",
		}, model.Reply{Text: longest[1:], TooLong: true, Usage: used}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.want.TooLong {
				tc.want.FinishReason = model.FinishLength
			}
			got, err := generate(t.Context(), provider(t, serve(t, respond(200, events(tc.events...), stream))), withTools("hello"))
			if tc.want.Text != got.Text || tc.want.Reasoning != got.Reasoning {
				t.Errorf("%d bytes of text and %d of reasoning, want %d and %d: %s", len(got.Text), len(got.Reasoning),
					len(tc.want.Text), len(tc.want.Reasoning), tc.reason)
			}
			got.Text, got.Reasoning, tc.want.Text, tc.want.Reasoning = "", "", "", ""
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestTooLongReplyIsCancelled checks that a request that is cancelled while its reply is already too long returns an
// error, because the endpoint did not end the reply. The cause of the cancellation may be any error.
func TestTooLongReplyIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(events(delta(`"content":"`+strings.Repeat("x", endpoint.MaxReplyBytes)+`"`), delta(`"content":"and more"`))))
		w.(http.Flusher).Flush()
		cancel(errors.New("the turn was cancelled"))
		<-r.Context().Done()
	})
	got, err := generate(ctx, provider(t, url), request("hello"))
	if err == nil {
		t.Errorf("Generate = %d bytes, %s; want the error of a request that was cancelled", len(got.Text), got.FinishReason)
	}
}

// TestEndlessReply checks that the reply ends when the bound of the stream is reached.
func TestEndlessReply(t *testing.T) {
	gone := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(events(delta(`"content":"word "`)))); err != nil {
				return
			}
		}
	})
	p := provider(t, url, func(c *openai.Config) { c.MaxStreamBytes = 1 << 20 })
	got, err := generate(t.Context(), p, request("hello"))
	if err != nil || got.FinishReason != model.FinishLength || !got.TooLong ||
		!strings.HasPrefix(got.Text, "word word ") || got.Received != int64(len(got.Text)) {
		t.Errorf("Generate = %.20q... of %d bytes, %s, too long %t, %d received, %v; want the part that arrived", got.Text,
			len(got.Text), got.FinishReason, got.TooLong, got.Received, err)
	}
	select {
	case <-gone:
	case <-longContext(t).Done():
		t.Error("the endpoint still works")
	}
}

// TestReceivedBytesOfFailedReplies checks that the error contains the number of received bytes if there is no final
// usage.
func TestReceivedBytesOfFailedReplies(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   int64
		used   model.Usage
	}{
		"nothing": {"nothing was received", []string{delta(`"role":"assistant"`)}, 0, model.Usage{}},
		"all kinds": {
			"text, reasoning and arguments",
			[]string{delta(`"content":"text "`), delta(`"reasoning":"thoughts "`), callPart(0, "a", "count", "arguments")},
			23,
			model.Usage{},
		},
		"rubbish": {"bytes before invalid data count", []string{delta(`"content":"text "`), "rubbish"}, 5, model.Usage{}},
		"filtered": {
			"a filtered reply counts",
			[]string{delta(`"content":"text "`), finishEvent("content_filter"), "[DONE]"},
			5,
			model.Usage{},
		},
		"no call": {
			"an inconsistent reply counts",
			[]string{delta(`"reasoning":"text "`), finishEvent("tool_calls"), "[DONE]"},
			5,
			model.Usage{},
		},
		"reported": {
			"the reported usage counts",
			[]string{delta(`"content":"text "`), finishEvent("content_filter"), usage},
			0,
			model.Usage{InputTokens: 9, OutputTokens: 4},
		},
		"only the input reported": {
			"the output is not free",
			[]string{delta(`"content":"text "`), finishEvent("content_filter"), `{"choices":[],"usage":{"prompt_tokens":9}}`},
			5,
			model.Usage{InputTokens: 9},
		},
		"reported before the end": {
			"the usage may have grown since",
			[]string{usage, delta(`"content":"text "`)},
			5,
			model.Usage{InputTokens: 9, OutputTokens: 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := generate(t.Context(), provider(t, serve(t, respond(200, events(tc.events...), stream))), withTools("hello"))
			if e := check(t, reply, err); e.Received != tc.want || e.Usage != tc.used {
				t.Errorf("%d bytes received, usage %+v; want %d and %+v: %s", e.Received, e.Usage, tc.want, tc.used, tc.reason)
			}
		})
	}
	_, url := fakeModel(t, `rules: [{reply: {text: half an answer that is cut}, fault: {cutAfterChunks: 1}}]`)
	if e := failure(t, provider(t, url)); e.Kind != model.Network || e.Received != 16 {
		t.Errorf("error %s after %d bytes, want Network after a chunk of 16", e.Kind, e.Received)
	}
}

// TestLongCallNames checks that the name of a call is cut off if it is longer than any tool's name.
func TestLongCallNames(t *testing.T) {
	var pieces []string
	for range 3000 {
		pieces = append(pieces, callPart(0, "id", "name", ""))
		pieces = append(pieces, callPart(0, "more", "more", ""))
	}
	body := events(append(pieces, callPart(0, "", "", "{}"), finishEvent("tool_calls"), "[DONE]")...)
	got, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), withTools("hello"))
	if err != nil || len(got.ToolCalls) != 1 || got.ToolCalls[0].ID != "call_0" || len(got.ToolCalls[0].Name) != 1024 {
		t.Errorf("Generate = %.100v, %v; want a call with a new ID, because its own is too long, and with a name of 1024 bytes",
			got.ToolCalls, err)
	}
}
