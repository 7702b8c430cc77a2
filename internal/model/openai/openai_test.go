package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

func TestAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, rules string
		want          model.Reply
	}{
		"whole": {
			"the chunks of a stream are one text",
			`rules: [{reply: {text: "Grüße, {{ .User }} 🙂", chunkChars: 1, usage: {promptTokens: 9, completionTokens: 4}}}]`,
			model.Reply{Text: "Grüße, hello 🙂", FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 9, OutputTokens: 4}},
		},
		"usage": {
			"details are parts of the whole", `rules: [{reply: {text: a, usage: {promptTokens: 9, ` +
				`completionTokens: 4, cachedTokens: 8, reasoningTokens: 3}}}]`,
			model.Reply{
				Text: "a", FinishReason: model.FinishStop,
				Usage: model.Usage{InputTokens: 9, OutputTokens: 4, ReasoningTokens: 3, CacheReadTokens: 8},
			},
		},
		"cut off": {
			"an answer that reached the limit says so",
			`rules: [{reply: {text: half, finishReason: length, usage: {promptTokens: 9, completionTokens: 4}}}]`,
			model.Reply{Text: "half", FinishReason: model.FinishLength, Usage: model.Usage{InputTokens: 9, OutputTokens: 4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := fakeModel(t, tc.rules)
			got, err := generate(t.Context(), provider(t, url), request("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestStreamsOfOtherServers(t *testing.T) {
	chunk := func(content, finish string) string {
		return `{"choices":[{"index":0,"delta":{"content":"` + content + `"},"finish_reason":` + finish + `}]}`
	}
	for name, tc := range map[string]struct{ reason, body string }{
		"no DONE":   {"a finished reply needs no DONE", events(chunk("yes", "null"), chunk("", `"stop"`))},
		"other end": {"some servers end with the name of a token", events(chunk("yes", `"eos_token"`), "[DONE]")},
		"other choices": {
			"the first choice is the answer",
			events(`{"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}`, chunk("yes", `"stop"`), "[DONE]"),
		},
		"comments": {
			"many comments are allowed",
			strings.Repeat(": thinking\n\n", 2000) + "event: message\nid: 1\nretry: 10\n" + events(chunk("yes", `"stop"`), "[DONE]"),
		},
		"long line": {
			"a line longer than any buffer",
			": " + strings.Repeat("x", 100000) + "\n\n" + events(chunk("yes"+strings.Repeat(" ", 100000), `"stop"`), "[DONE]"),
		},
		"CR LF":        {"lines may end with CR LF", strings.ReplaceAll(events(chunk("yes", `"stop"`), "[DONE]"), "\n", "\r\n")},
		"no last line": {"an end without a line feed", strings.TrimRight(events(chunk("yes", `"stop"`), "[DONE]"), "\n")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generate(t.Context(), provider(t, serve(t, respond(200, tc.body, stream))), request("hello"))
			if strings.TrimSpace(got.Text) != "yes" || got.FinishReason != model.FinishStop || err != nil {
				t.Errorf("Generate = %.50q %s, %v; want yes: %s", got.Text, got.FinishReason, err, tc.reason)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	zero, some, tokens := 0.0, 0.7, 64
	type sent struct {
		Authorization, Extra string
		Temperature          *float64 `json:"temperature"`
		MaxCompletionTokens  *int     `json:"max_completion_tokens"`
		Stream               bool     `json:"stream"`
		StreamOptions        struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Messages []struct{ Role, Name, Content string } `json:"messages"`
	}
	for name, tc := range map[string]struct {
		reason     string
		parameters model.Parameters
		config     func(*openai.Config)
		check      func(sent) bool
	}{
		"streamed": {
			"always a stream, with usage",
			model.Parameters{},
			nil,
			func(s sent) bool { return s.Stream && s.StreamOptions.IncludeUsage },
		},
		"no parameters": {
			"parameters that are not set are not sent",
			model.Parameters{},
			nil,
			func(s sent) bool { return s.Temperature == nil && s.MaxCompletionTokens == nil },
		},
		"zero": {
			"a temperature of zero is sent",
			model.Parameters{Temperature: &zero},
			nil,
			func(s sent) bool { return s.Temperature != nil && *s.Temperature == 0 },
		},
		"temperature": {
			"another temperature is sent",
			model.Parameters{Temperature: &some},
			nil,
			func(s sent) bool { return s.Temperature != nil && *s.Temperature == 0.7 },
		},
		"tokens": {
			"the limit is sent",
			model.Parameters{MaxOutputTokens: &tokens},
			nil,
			func(s sent) bool { return s.MaxCompletionTokens != nil && *s.MaxCompletionTokens == 64 },
		},
		"key": {
			"the key is a bearer token",
			model.Parameters{},
			nil,
			func(s sent) bool { return s.Authorization == "Bearer "+key },
		},
		"no key": {
			"no key, no header",
			model.Parameters{},
			func(c *openai.Config) { c.APIKey = "" },
			func(s sent) bool { return s.Authorization == "" },
		},
		"header": {
			"extra headers are sent",
			model.Parameters{},
			func(c *openai.Config) { c.Headers = []endpoint.Header{{Name: "X-Extra", Value: "a b"}} },
			func(s sent) bool { return s.Extra == "a b" },
		},
		"slash": {
			"slashes at the end of the base URL are ignored",
			model.Parameters{},
			func(c *openai.Config) { c.BaseURL += "//" }, func(s sent) bool { return s.Stream },
		},
		"message name": {
			"only system messages have names: those of a conversation must stay the same in later Turns",
			model.Parameters{},
			nil,
			func(s sent) bool {
				return s.Messages[0].Name == "system_prompt" && s.Messages[1].Name == "" && s.Messages[1].Role == "user"
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := make(chan sent, 1)
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				s := sent{Authorization: r.Header.Get("Authorization"), Extra: r.Header.Get("X-Extra")}
				if err := json.NewDecoder(r.Body).Decode(&s); err != nil || r.URL.Path != "/v1/chat/completions" {
					t.Errorf("request to %s: %v", r.URL.Path, err)
				}
				bodies <- s
				respond(200, events(`{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}`, "[DONE]"), stream)(w, r)
			})
			var mutate []func(*openai.Config)
			if tc.config != nil {
				mutate = append(mutate, tc.config)
			}
			req := request("hello")
			req.Parameters = tc.parameters
			if _, err := generate(t.Context(), provider(t, url, mutate...), req); err != nil {
				t.Fatalf("Generate: %v", err)
			}
			if s := <-bodies; !tc.check(s) {
				t.Errorf("sent %+v: %s", s, tc.reason)
			}
		})
	}
}

func TestCancelEndsTheRequest(t *testing.T) {
	for _, hang := range []string{"BeforeHeaders", "AfterHeaders"} {
		t.Run(hang, func(t *testing.T) {
			s, url := fakeModel(t, `rules: [{fault: {hang: `+hang+`}}]`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			errs := make(chan error, 1)
			p := provider(t, url)
			go func() {
				_, err := generate(ctx, p, request("hello"))
				errs <- err
			}()
			if err := s.Wait(longContext(t), func(s server.Stats) bool { return s.InFlight == 1 }); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			cancel()
			err := <-errs
			if e, ok := errors.AsType[*model.Error](err); !ok || e.Kind != model.Cancelled || time.Since(begin) > 10*time.Second {
				t.Errorf("Generate: %v after %s, want Cancelled immediately", err, time.Since(begin))
			}
			if err := s.Wait(longContext(t), func(s server.Stats) bool { return s.Cancelled == 1 }); err != nil {
				t.Errorf("the endpoint still works: %v", err)
			}
		})
	}
}

func TestSlowAnswerIsNotIdle(t *testing.T) {
	_, url := fakeModel(t, `rules: [{reply: {text: "one answer in many pieces", chunkChars: 2}, fault: {chunkDelayMilliseconds: 200}}]`)
	p := provider(t, url, func(c *openai.Config) { c.IdleTimeout = 2 * time.Second })
	got, err := generate(t.Context(), p, request("hello"))
	if err != nil || got.Text != "one answer in many pieces" {
		t.Errorf("Generate = %q, %v; want the answer: only silence is a timeout", got.Text, err)
	}
}

// TestSlowFirstEventIsNotIdle checks that the idle timeout begins with the first event. Before it, the shorter of the
// bounds of the provider and of the request counts.
func TestSlowFirstEventIsNotIdle(t *testing.T) {
	const idleTimeout = time.Second
	_, url := fakeModel(t, `rules: [{when: {contains: never}, fault: {hang: BeforeHeaders}},
{reply: {text: "one answer"}, fault: {latencyMilliseconds: 1500}}]`)
	for name, tc := range map[string]struct {
		reason        string
		provider, own time.Duration
		want          string
	}{
		"no bound":          {"only the context bounds the time", 0, 0, ""},
		"long enough":       {"the answer is in time", time.Minute, time.Minute, ""},
		"of the provider":   {"the provider's bound is shorter", 500 * time.Millisecond, time.Minute, "500ms"},
		"of the request":    {"the request's bound is shorter", time.Minute, 600 * time.Millisecond, "600ms"},
		"of a request only": {"the provider has no bound", 0, 600 * time.Millisecond, "600ms"},
	} {
		t.Run(name, func(t *testing.T) {
			p := provider(t, url, func(c *openai.Config) { c.IdleTimeout, c.FirstEventTimeout = idleTimeout, tc.provider })
			req := request("hello")
			if tc.want != "" {
				req = request("never")
			}
			req.FirstEventTimeout = tc.own
			got, err := generate(t.Context(), p, req)
			if tc.want == "" && (err != nil || got.Text != "one answer") {
				t.Errorf("Generate = %q, %v; want the answer: %s", got.Text, err, tc.reason)
			}
			if tc.want == "" {
				return
			}
			if e := check(t, got, err); e.Kind != model.Timeout || !e.MayBeBilled || !strings.HasSuffix(e.Message, "for "+tc.want) {
				t.Errorf("error %s %q, billed %t; want a timeout after %s that may be billed: %s",
					e.Kind, e.Message, e.MayBeBilled, tc.want, tc.reason)
			}
		})
	}
}

// TestTimeoutsOfGateways checks which statuses mean that an endpoint may still work on the request.
func TestTimeoutsOfGateways(t *testing.T) {
	for status, want := range map[int]bool{408: true, 504: true, 524: true, 429: false, 500: false, 502: false, 503: false} {
		if e := failure(t, provider(t, serve(t, respond(status, "no answer")))); e.MayBeBilled != want || !e.Kind.Retryable() {
			t.Errorf("status %d: %s, billed %t; want %t", status, e.Kind, e.MayBeBilled, want)
		}
	}
}

// TestBytesOutsideEventsAreIdle checks that an endpoint cannot hold a Turn by sending endless bytes without a part of
// an answer.
func TestBytesOutsideEventsAreIdle(t *testing.T) {
	const begin = `data: {"choices":[{"index":0,"delta":{"content":"One"}}]}` + "\n\n"
	for name, tc := range map[string]struct {
		reason string
		status int
		kind   string
		// begin is sent first, and again is sent repeatedly after it.
		begin, again string
	}{
		"comments":              {"comments do not count as an answer", http.StatusOK, "text/event-stream", "", ": still here\n\n"},
		"comments after a part": {"comments do not count within an answer", http.StatusOK, "text/event-stream", begin, ": still here\n\n"},
		"one endless event":     {"an incomplete event does not count", http.StatusOK, "text/event-stream", begin + "data: ", "x"},
		"no event stream":       {"a response that is not a stream must arrive in time", http.StatusOK, "application/json", "", " "},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.begin)
				for tick := time.NewTicker(10 * time.Millisecond); r.Context().Err() == nil; <-tick.C {
					if _, err := io.WriteString(w, tc.again); err != nil {
						return
					}
					w.(http.Flusher).Flush()
				}
			})
			p := provider(t, url, func(c *openai.Config) {
				c.IdleTimeout, c.FirstEventTimeout = 150*time.Millisecond, 150*time.Millisecond
			})
			_, err := generate(longContext(t), p, request("hello"))
			if e, ok := errors.AsType[*model.Error](err); !ok || e.Kind != model.Timeout {
				t.Errorf("Generate: %v, want a timeout: %s", err, tc.reason)
			}
		})
	}
}

func TestConcurrentRequests(t *testing.T) {
	s, url := fakeModel(t, `rules: [{reply: {text: "You said {{ .User }}"}}]`)
	p := provider(t, url)
	var wg sync.WaitGroup
	for _, word := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		wg.Go(func() {
			for range 5 {
				if got, err := generate(t.Context(), p, request(word)); err != nil || got.Text != "You said "+word {
					t.Errorf("Generate(%s) = %q, %v", word, got.Text, err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.Stats().Requests; n != 40 {
		t.Errorf("%d requests were sent, want 40: an adapter never retries", n)
	}
}

func TestProbe(t *testing.T) {
	const prefix = `provider "demo": `
	for name, tc := range map[string]struct {
		reason string
		handle http.HandlerFunc
		want   errorParts // zero: no error
	}{
		"a list": {"the endpoint answers", respond(200, `{"object":"list","data":[]}`, "Content-Type: application/json"), errorParts{}},
		"a list of OpenRouter and Gemini": {
			"properties of models do not matter: github.com/davidmigloz/langchain_dart/issues/734",
			respond(200, `{"data":[{"id":7,"created":1.5},{"created":"2026-01-01","permission":{}}]}`, jsonType),
			errorParts{},
		},
		"a list of Together": {"github.com/longy2k/obsidian-bmo-chatbot/pull/51", respond(200, `[{"id":"a"}]`, jsonType), errorParts{}},
		"a list after a byte order mark": {
			"the mark is no part of it", respond(200, "\ufeff"+`{"data":[]}`, jsonType), errorParts{},
		},
		"a list of many models": {
			"gateways have thousands of models",
			respond(200, `{"data":[`+strings.Repeat(`{"id":"a"},`, 100000)+`{}]}`, jsonType),
			errorParts{},
		},
		"a list of many models after a byte order mark": {
			"the mark is no part of it",
			respond(200, "\ufeff"+`{"data":[`+strings.Repeat(`{"id":"a"},`, 100000)+`{}]}`, jsonType),
			errorParts{},
		},
		"no list":            {"many servers have no list", respond(404, ""), errorParts{}},
		"no list for GET":    {"some servers refuse the method", respond(405, ""), errorParts{}},
		"no list, by status": {"the body has the status", respond(200, `{"error":{"message":"No.","code":404}}`, jsonType), errorParts{}},
		"list refused":       {"gateways may allow completions only", respond(403, `{"error":{"message":"Forbidden."}}`), errorParts{}},
		"list refused by the body": {
			"the body has the status", respond(200, `{"error":{"message":"Forbidden.","code":403}}`, jsonType),
			errorParts{},
		},
		"list refused to a restricted key": {
			"OpenAI's keys can have permission for completions only",
			respond(401, `{"error":{"message":"You have insufficient permissions for this operation. Missing scopes: api.model.read. `+
				`Check that you have the correct role in your organization."}}`),
			errorParts{},
		},
		"refused key": {"the message names the key", respond(403, `{"error":{"message":"Invalid API key."}}`), errorParts{
			Kind:    model.Auth,
			Message: prefix + `the endpoint refused the credentials (HTTP 403): check key "apiKey" of Secret "demo"`,
			Said:    "Invalid API key.",
		}},
		"no credit": {"xAI: a Turn would fail, too", respond(403, `{"error":"Your team has no credits."}`), errorParts{
			Kind:    model.QuotaExceeded,
			Message: prefix + "the account's quota is used up (HTTP 403): check its plan and billing",
			Said:    "Your team has no credits.",
		}},
		"refused": {"the key is invalid", respond(401, `{"error":{"message":"No."}}`), errorParts{
			Kind:    model.Auth,
			Message: prefix + `the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`,
			Said:    "No.",
		}},
		"down": {"the endpoint is down", respond(500, ""), errorParts{
			Kind: model.Overloaded, Message: prefix + "the endpoint failed (HTTP 500)",
		}},
		"page": {"something else answers", respond(200, "<html>", "Content-Type: text/html"), errorParts{
			Kind: model.Malformed,
			Message: prefix + "the response does not follow the chat-completions protocol " +
				"(the endpoint sent text/html, not application/json: check baseURL)",
		}},
		"error as a text": {
			"LM Studio does so for unknown paths: github.com/lmstudio-ai/lmstudio-bug-tracker/issues/618",
			respond(200, `{"error":"Unexpected endpoint or method. (GET /models)"}`, jsonType),
			errorParts{
				Kind: model.InvalidRequest, Said: "Unexpected endpoint or method. (GET /models)",
				Message: prefix + "the endpoint answers the request for baseURL/models with an error: check the path of baseURL",
			},
		},
		"error as an object": {
			"gateways send errors with the status 200", respond(200, `{"error":{"message":"Key expired.","code":401}}`, jsonType),
			errorParts{
				Kind: model.Auth, Message: prefix + `the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`,
				Said: "Key expired.",
			},
		},
		"error in a list": {
			"Gemini puts errors into a list",
			respond(200, `[{"error":{"code":400,"message":"No.","status":"INVALID_ARGUMENT"}}]`, jsonType),
			errorParts{Kind: model.InvalidRequest, Message: prefix + "the endpoint refused the request (HTTP 400)", Said: "No."},
		},
		"error of MiniMax": {
			"MiniMax has its own form: platform.minimax.io/docs/api-reference/errorcode",
			respond(200, `{"base_resp":{"status_code":1004,"status_msg":"login fail"}}`, jsonType),
			errorParts{
				Kind: model.Auth, Message: prefix + `the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`,
				Said: "login fail",
			},
		},
		"error without a status": {
			"the code says enough", respond(200, `{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}`, jsonType),
			errorParts{
				Kind: model.QuotaExceeded, Message: prefix + "the account's quota is used up: check its plan and billing",
				Said: "insufficient balance",
			},
		},
		"a list with the outcome of MiniMax": {
			"the code is that of success",
			respond(200, `{"data":[{"id":"a"}],"base_resp":{"status_code":0,"status_msg":"success"}}`, jsonType),
			errorParts{},
		},
		"a list with an empty error": {
			"some servers always send the member", respond(200, `{"error":null,"data":[{"id":"a"}]}`, jsonType), errorParts{},
		},
		"a list of one name": {"only the form matters", respond(200, `["a"]`, jsonType), errorParts{}},
		"other JSON": {"JSON of another form", respond(200, `{"data":7}`, "Content-Type: application/json"), errorParts{
			Kind: model.Malformed, Message: prefix + "the response does not follow the chat-completions protocol",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			listing, err := provider(t, serve(t, tc.handle)).Probe(t.Context())
			want := endpoint.ListUnknown
			switch {
			case strings.HasPrefix(name, "a list"):
				want = endpoint.Listed
			case strings.HasPrefix(name, "no list"):
				want = endpoint.NoList
			case strings.HasPrefix(name, "list refused"):
				want = endpoint.ListRefused
			}
			if listing != want {
				t.Errorf("Probe: listing %d, want %d: %s", listing, want, tc.reason)
			}
			var got errorParts
			if e, ok := errors.AsType[*model.Error](err); ok {
				got = partsOf(e)
			} else if err != nil {
				t.Fatalf("Probe: %v, want a *model.Error", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
	s, url := fakeModel(t, `{apiKeys: [`+key+`]}`)
	if _, err := provider(t, url).Probe(t.Context()); err != nil || s.Stats().Requests != 0 {
		t.Errorf("Probe: %v and %d completions, want neither: a probe costs nothing", err, s.Stats().Requests)
	}
}

func TestMessagesWithoutContentAreNotSent(t *testing.T) {
	bodies := make(chan []struct{ Role, Content string }, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Messages []struct{ Role, Content string } `json:"messages"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("request: %v", err)
		}
		bodies <- body.Messages
		respond(200, events(`{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}`, "[DONE]"), stream)(w, r)
	})
	req := request("hello")
	req.Messages[0].Content = ""
	if _, err := generate(t.Context(), provider(t, url), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	if got := <-bodies; len(got) != 1 || got[0].Role != "user" || got[0].Content != "hello" {
		t.Errorf("sent %+v, want the user's message alone: the API refuses a message without content", got)
	}
}
