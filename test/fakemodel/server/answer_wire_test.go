package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sashabaranov/go-openai"
)

// received is a stream as a client has read it.
type received struct {
	Text   string
	Chunks int
	Finish openai.FinishReason
	Calls  []openai.ToolCall
	Usage  *openai.Usage
}

// receive reads a stream to its end. It returns the error that ended the stream, or nil for a proper end.
func receive(stream *openai.ChatCompletionStream) (received, error) {
	var got received
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if chunk.Usage != nil {
			got.Usage = chunk.Usage
		}
		for _, choice := range chunk.Choices {
			if choice.Delta.Content != "" {
				got.Chunks++
			}
			got.Text += choice.Delta.Content
			if choice.FinishReason != "" {
				got.Finish = choice.FinishReason
			}
			for _, part := range choice.Delta.ToolCalls {
				if part.ID != "" {
					part.Index = nil
					got.Calls = append(got.Calls, part)
					continue
				}
				got.Calls[len(got.Calls)-1].Function.Arguments += part.Function.Arguments
			}
		}
	}
}

const usageRules = `
rules:
- reply:
    text: "You said {{ .User }}."
    chunkChars: 5
    usage: {cachedTokens: 2, reasoningTokens: 7}
`

func TestStreamAndWholeResponseHaveTheSameContent(t *testing.T) {
	fake := serveRules(t, usageRules)
	wantUsage := openai.Usage{
		PromptTokens: 2, CompletionTokens: 11, TotalTokens: 13,
		PromptTokensDetails:     &openai.PromptTokensDetails{CachedTokens: 2},
		CompletionTokensDetails: &openai.CompletionTokensDetails{ReasoningTokens: 7},
	}

	whole, err := fake.client.CreateChatCompletion(t.Context(), ask("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if whole.Choices[0].Message.Content != "You said hello." || whole.Choices[0].FinishReason != openai.FinishReasonStop {
		t.Errorf("want the rendered text and stop, have %+v", whole.Choices)
	}
	if diff := cmp.Diff(wantUsage, whole.Usage); diff != "" {
		t.Errorf("usage of a whole response (-want +got):\n%s", diff)
	}

	got, err := receive(openStream(t.Context(), t, fake.client, askForUsage("hello")))
	if err != nil {
		t.Fatal(err)
	}
	want := received{Text: "You said hello.", Chunks: 3, Finish: openai.FinishReasonStop, Usage: &wantUsage}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("streamed (-want +got):\n%s", diff)
	}

	stats := fake.Stats()
	wantStats := Stats{
		Requests: 2, PeakInFlight: 1,
		ByModel: map[string]int64{"m": 2}, ByOutcome: map[Outcome]int64{OutcomeAnswered: 2},
		PromptTokens: 4, CompletionTokens: 22, CachedTokens: 4, ReasoningTokens: 14,
		Billed: 2, BilledInputTokens: 4, BilledOutputTokens: 22,
	}
	if diff := cmp.Diff(wantStats, stats); diff != "" {
		t.Errorf("a client that has its answer must find its request counted (-want +got):\n%s", diff)
	}
}

func TestStreamWithoutUsageHasNone(t *testing.T) {
	fake := serveRules(t, usageRules)
	got, err := receive(openStream(t.Context(), t, fake.client, ask("hello")))
	if err != nil || got.Usage != nil {
		t.Errorf("the request did not ask for usage, have usage %+v and error %v", got.Usage, err)
	}
}

// TestEventsOnTheWire checks the bytes that a client library hides: the order of events, null and absent fields.
func TestEventsOnTheWire(t *testing.T) {
	fake := serveRules(t, usageRules)
	res := fake.do(t, http.MethodPost, "/v1/chat/completions",
		`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`)
	if got := res.header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
		t.Errorf("want an event stream, have %q", got)
	}
	var events []string
	for line := range strings.Lines(res.body) {
		line = strings.TrimSuffix(line, "\n")
		if data, isData := strings.CutPrefix(line, "data: "); isData {
			var chunk struct{ Choices, Usage json.RawMessage }
			if err := json.Unmarshal([]byte(data), &chunk); err == nil {
				data = string(chunk.Choices) + " " + string(chunk.Usage)
			}
			events = append(events, data)
		} else if line != "" {
			t.Errorf("want data lines and blank lines only, have %q", line)
		}
	}
	want := []string{
		`[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}] null`,
		`[{"index":0,"delta":{"content":"You s"},"logprobs":null,"finish_reason":null}] null`,
		`[{"index":0,"delta":{"content":"aid h"},"logprobs":null,"finish_reason":null}] null`,
		`[{"index":0,"delta":{"content":"i."},"logprobs":null,"finish_reason":null}] null`,
		`[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}] null`,
		`[] {"prompt_tokens":1,"completion_tokens":10,"total_tokens":11,` +
			`"prompt_tokens_details":{"cached_tokens":2,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":7,` +
			`"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`,
		`[DONE]`,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestToolCalls(t *testing.T) {
	fake := serveRules(t, `
rules:
- times: 2
  reply:
    toolCalls:
    - {name: forecast, arguments: '{"place":"{{ .User }}"}'}
    - {id: mine, name: clock}
- when: {anyContains: 17 degrees}
  reply: {text: It is mild.}
`)
	want := []openai.ToolCall{
		{ID: "call_1_0", Type: "function", Function: openai.FunctionCall{Name: "forecast", Arguments: `{"place":"Reykjavik"}`}},
		{ID: "mine", Type: "function", Function: openai.FunctionCall{Name: "clock", Arguments: "{}"}},
	}
	whole, err := fake.client.CreateChatCompletion(t.Context(), ask("Reykjavik"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, whole.Choices[0].Message.ToolCalls); diff != "" {
		t.Errorf("whole (-want +got):\n%s", diff)
	}
	if got := whole.Choices[0].FinishReason; got != openai.FinishReasonToolCalls {
		t.Errorf("want the finish reason tool_calls, have %q", got)
	}

	got, err := receive(openStream(t.Context(), t, fake.client, ask("Reykjavik")))
	if err != nil {
		t.Fatal(err)
	}
	want[0].ID = "call_2_0"
	if diff := cmp.Diff(received{Calls: want, Finish: openai.FinishReasonToolCalls}, got); diff != "" {
		t.Errorf("streamed (-want +got):\n%s", diff)
	}

	next := ask("Reykjavik")
	next.Messages = append(next.Messages,
		openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, ToolCalls: want},
		openai.ChatCompletionMessage{Role: openai.ChatMessageRoleTool, ToolCallID: "call_2_0", Content: "17 degrees"},
		openai.ChatCompletionMessage{Role: openai.ChatMessageRoleTool, ToolCallID: "mine", Content: "12:00"},
	)
	final, err := fake.client.CreateChatCompletion(t.Context(), next)
	if err != nil || final.Choices[0].Message.Content != "It is mild." {
		t.Errorf("the tool's result must lead to the next rule, have %+v and error %v", final.Choices, err)
	}
}

func TestLimitsFinishReasonsAndParts(t *testing.T) {
	fake := serveRules(t, `
rules:
- when: {contains: filter me}
  reply: {text: "", finishReason: content_filter}
- when: {contains: too much}
  reply: {text: word, repeat: 5000, ignoreMaxTokens: true}
`)
	limited := ask("a question that is repeated to no end")
	limited.MaxCompletionTokens = 2
	got, err := receive(openStream(t.Context(), t, fake.client, limited))
	if diff := cmp.Diff(received{Text: "This is ", Chunks: 1, Finish: openai.FinishReasonLength}, got); diff != "" || err != nil {
		t.Errorf("the answer must be cut at the token limit, have error %v (-want +got):\n%s", err, diff)
	}

	got, err = receive(openStream(t.Context(), t, fake.client, ask("filter me")))
	if diff := cmp.Diff(received{Finish: openai.FinishReasonContentFilter}, got); diff != "" || err != nil {
		t.Errorf("the answer of the rule must be empty, have error %v (-want +got):\n%s", err, diff)
	}

	parts := ask("")
	parts.MaxCompletionTokens = 1
	parts.Messages[0] = openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, MultiContent: []openai.ChatMessagePart{
		{Type: openai.ChatMessagePartTypeText, Text: "too "},
		{Type: openai.ChatMessagePartTypeText, Text: "much"},
	}}
	whole, err := fake.client.CreateChatCompletion(t.Context(), parts)
	if err != nil || len(whole.Choices[0].Message.Content) != 20_000 {
		t.Errorf("the rule must match the parts as one text, and its answer must exceed the token limit; have error %v", err)
	}
}
