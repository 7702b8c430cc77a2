package openai_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// said is what a person or the loop reads of an error.
type said struct {
	Kind       model.ErrorKind
	Message    string
	Said       string
	RetryAfter time.Duration
}

// words is what is read of an error for which the endpoint, or the network, may have had words of its own.
func words(kind model.ErrorKind, message string, wait time.Duration, theirs ...string) said {
	return said{Kind: kind, Message: message, Said: strings.Join(theirs, ""), RetryAfter: wait}
}

func saidOf(e *model.Error) said {
	return said{Kind: e.Kind, Message: e.Message, Said: e.Said, RetryAfter: e.RetryAfter}
}

func TestErrorsOfTheFakeModel(t *testing.T) {
	short := func(c *openai.Config) { c.IdleTimeout = 150 * time.Millisecond }
	for name, tc := range map[string]struct {
		reason, rules string
		change        func(*openai.Config)
		want          said
	}{
		"wrong key": {"401 says where the key comes from", `{apiKeys: [other]}`, nil, said{
			Kind:    model.Auth,
			Message: `provider "demo": the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`, Said: `Incorrect API key provided.`,
		}},
		"no key": {"401 without a key says so", `{apiKeys: [other]}`, func(c *openai.Config) { c.APIKey, c.CredentialsFrom = "", "" }, said{
			Kind:    model.Auth,
			Message: `provider "demo": the endpoint refused the credentials (HTTP 401): check whether the endpoint needs a key: the ModelProvider has no credentialsRef`, Said: `Incorrect API key provided.`,
		}},
		"forbidden": {"403 too", `rules: [{fault: {status: 403, message: Not yours.}}]`, nil, said{
			Kind:    model.Auth,
			Message: `provider "demo": the endpoint refused the credentials (HTTP 403): check key "apiKey" of Secret "demo"`, Said: `Not yours.`,
		}},
		"unknown model": {"404", `{models: [large]}`, nil, said{
			Kind:    model.InvalidRequest,
			Message: "provider \"demo\": the endpoint does not know the model, or serves nothing at this baseURL (HTTP 404)", Said: "The model `small` does not exist or you do not have access to it.",
		}},
		"rate limit": {"429 with the wait it asks for", `rules: [{fault: {status: 429, message: Slow down., retryAfterSeconds: 7}}]`, nil, said{
			Kind:    model.RateLimited,
			Message: `provider "demo": the endpoint's rate limit is reached (HTTP 429)`, Said: `Slow down.`, RetryAfter: 7 * time.Second,
		}},
		"context length": {"400 with the code", `rules: [{fault: {status: 400, code: context_length_exceeded, message: Too long.}}]`, nil, said{
			Kind:    model.ContextLength,
			Message: `provider "demo": the prompt is longer than the model's context window`, Said: `Too long.`,
		}},
		"bad request": {"any other 400", `rules: [{fault: {status: 400, message: Bad.}}]`, nil, said{
			Kind:    model.InvalidRequest,
			Message: `provider "demo": the endpoint refused the request (HTTP 400)`, Said: `Bad.`,
		}},
		"filtered request": {"the filter as an error", `rules: [{fault: {status: 400, code: content_filter, message: No.}}]`, nil, said{
			Kind:    model.ContentFiltered,
			Message: `provider "demo": the content filter refused the request`, Said: `No.`,
		}},
		"server error": {"5xx passes", `rules: [{fault: {status: 503, message: Busy.}}]`, nil, said{
			Kind:    model.Overloaded,
			Message: `provider "demo": the endpoint failed (HTTP 503)`, Said: `Busy.`,
		}},
		"filtered answer": {"the filter in the stream", `rules: [{reply: {text: half, finishReason: content_filter}}]`, nil, said{
			Kind:    model.ContentFiltered,
			Message: `provider "demo": the content filter withheld the answer`,
		}},
		"hang before headers": {"no byte at all", `rules: [{fault: {hang: BeforeHeaders}}]`, short, said{
			Kind:    model.Timeout,
			Message: `provider "demo": sent no part of an answer for 150ms`,
		}},
		"hang after headers": {"no byte of an answer", `rules: [{fault: {hang: AfterHeaders}}]`, short, said{
			Kind:    model.Timeout,
			Message: `provider "demo": sent no part of an answer for 150ms`,
		}},
		"cut": {"a connection that breaks", `rules: [{reply: {text: half an answer that is cut}, fault: {cutAfterChunks: 1}}]`, nil, said{
			Kind:    model.Network,
			Message: `provider "demo": the connection broke before the answer was finished`,
		}},
		"no finish": {"a stream that just ends", `rules: [{fault: {endWithoutFinish: true}}]`, nil, said{
			Kind:    model.Malformed,
			Message: `provider "demo": the stream ended before the answer was finished`,
		}},
		"broken JSON": {"rubbish in an event", `rules: [{fault: {rubbish: NotJSON}}]`, nil, said{
			Kind:    model.Malformed,
			Message: `provider "demo": the response is not of the chat-completions protocol`,
		}},
		"prose": {"rubbish as a stream", `rules: [{fault: {rubbish: NotSSE}}]`, nil, said{
			Kind:    model.Malformed,
			Message: `provider "demo": the stream ended before the answer was finished`,
		}},
		"page": {"a page of something else", `rules: [{fault: {rubbish: HTML}}]`, nil, said{
			Kind:    model.Malformed,
			Message: `provider "demo": the stream ended before the answer was finished (the endpoint sent text/html, not text/event-stream: check baseURL)`,
		}},
		"empty answer": {"nothing is no answer", `rules: [{reply: {text: ""}}]`, nil, said{Kind: model.Malformed, Message: `provider "demo": the answer was empty`}},
		"blank answer": {"nor is white space", `rules: [{reply: {text: " \n\t"}}]`, nil, said{Kind: model.Malformed, Message: `provider "demo": the answer was empty`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := fake(t, tc.rules)
			var mutate []func(*openai.Config)
			if tc.change != nil {
				mutate = append(mutate, tc.change)
			}
			if diff := cmp.Diff(tc.want, saidOf(failure(t, provider(t, url, mutate...)))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestErrorsOfOtherServers(t *testing.T) {
	chunk := func(choice string) string { return `{"choices":[{"index":0,` + choice + `}]}` }
	const limited = `provider "demo": the endpoint's rate limit is reached (HTTP 429)`
	for name, tc := range map[string]struct {
		reason string
		handle http.HandlerFunc
		want   said
	}{
		"wait until a date": {
			"the endpoint's own clock counts", respond(429, "", "Retry-After: Thu, 11 Jun 2026 15:04:35 GMT", "Date: Thu, 11 Jun 2026 15:04:05 GMT"),
			words(model.RateLimited, limited, 30*time.Second),
		},
		"wait in milliseconds": {"milliseconds are more exact than seconds", respond(429, "", "Retry-After: 2", "Retry-After-Ms: 1500"), words(model.RateLimited, limited, 1500*time.Millisecond)},
		"wait for ever":        {"a wait is bounded", respond(429, "", "Retry-After: 99999999999999"), words(model.RateLimited, limited, 24*time.Hour)},
		"negative wait":        {"and not negative", respond(429, "", "Retry-After-Ms: -9000000000000000000"), words(model.RateLimited, limited, 0)},
		"used up":              {"no waiting cures this one", respond(429, `{"error":{"message":"You exceeded your quota.","code":"insufficient_quota"}}`, "Retry-After: 2"), words(model.Auth, `provider "demo": the account's quota is used up (HTTP 429): check its plan and billing`, 2*time.Second, "You exceeded your quota.")},
		"past date":            {"nor in the past", respond(429, "", "Retry-After: Thu, 11 Jun 2026 15:04:00 GMT", "Date: Thu, 11 Jun 2026 15:04:05 GMT"), words(model.RateLimited, limited, 0)},
		"wait of a 503":        {"other errors may ask for a wait too", respond(503, "", "Retry-After: 3"), words(model.Overloaded, `provider "demo": the endpoint failed (HTTP 503)`, 3*time.Second)},
		"plain text":           {"an error that is no JSON is shown as it is", respond(502, "<h1>Bad\r\n\x1b[31mGateway</h1>"), words(model.Overloaded, `provider "demo": the endpoint failed (HTTP 502)`, 0, "<h1>Bad [31mGateway</h1>")},
		"long text":            {"but not all of it", respond(500, strings.Repeat("ü", 5000)), words(model.Overloaded, `provider "demo": the endpoint failed (HTTP 500)`, 0, strings.Repeat("ü", 300), "...")},
		"vLLM context": {"a server without a code for it", respond(400, `{"object":"error","message":"This model's maximum context length is 10 tokens.","code":400}`), words(
			model.ContextLength,
			`provider "demo": the prompt is longer than the model's context window`, 0, `{"object":"error","message":"This model's maximum context length is 10 tokens.","code":400}`,
		)},
		"time-out": {"408", respond(408, ""), words(model.Timeout, `provider "demo": the endpoint timed out (HTTP 408)`, 0)},
		"error in the stream": {"after comments and named events", respond(200, ": thinking\n\nevent: error\n"+events(`{"error":{"message":"Overloaded.","type":"server_error"}}`), stream), words(
			model.Overloaded,
			`provider "demo": the endpoint reported an error in the stream`, 0, "Overloaded.",
		)},
		"limit in the stream": {"its code counts", respond(200, events(`{"error":{"message":"Slow.","code":"rate_limit_exceeded"}}`), stream), words(model.RateLimited, limited, 0, "Slow.")},
		"unknown end": {"an end that nobody knows", respond(200, events(chunk(`"delta":{"content":"a"},"finish_reason":"gremlins"`), "[DONE]"), stream), words(
			model.Malformed,
			`provider "demo": the answer ended for an unknown reason`, 0, "gremlins",
		)},
		"wrong types": {"JSON of another form", respond(200, events(`{"choices":"none"}`), stream), words(model.Malformed, `provider "demo": the response is not of the chat-completions protocol`, 0)},
		"one JSON": {"an answer that is no stream", respond(200, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`, "Content-Type: application/json"), words(
			model.Malformed,
			`provider "demo": the stream ended before the answer was finished (the endpoint sent application/json, not text/event-stream: check baseURL)`, 0,
		)},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, saidOf(failure(t, provider(t, raw(t, tc.handle))))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ url, want string }{
		"refused":      {"http://" + closed + "/v1", "connection refused"},
		"unknown host": {"http://nobody.invalid/v1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, tc.url))
			prefix := `provider "demo": the connection to the endpoint failed: ` + tc.want
			if e.Kind != model.Network || !strings.HasPrefix(e.Message, prefix) {
				t.Errorf("error %s %q, want Network %q", e.Kind, e.Message, prefix)
			}
		})
	}
}

func TestEndlessAnswer(t *testing.T) {
	const other = "what is no event of the answer exceeds 1048576 bytes and was cut off"
	for name, tc := range map[string]struct{ reason, line, want string }{
		"events":   {"they say nothing, and none is held", "data: {\"choices\":[],\"id\":\"" + strings.Repeat("x", 1000) + "\"}\n\n", "the answer exceeds 16777216 bytes and was cut off"},
		"an event": {"one is held", "data: {" + strings.Repeat("x", 1000), "an event of the answer exceeds 2097152 bytes and was cut off"},
		"one line": {"so is what is none", strings.Repeat("x", 1000), other},
		"lines":    {"all of it", strings.Repeat("x", 1000) + "\n", other},
		"nothings": {"nor is what is empty, but looked at", strings.Repeat("\n", 1000), other},
	} {
		t.Run(name, func(t *testing.T) {
			url := raw(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for r.Context().Err() == nil {
					if _, err := w.Write([]byte(tc.line)); err != nil {
						return
					}
				}
			})
			p := provider(t, url)
			p.SetLongest(16 << 20)
			want := said{Kind: model.ReplyTooLong, Message: `provider "demo": ` + tc.want}
			if diff := cmp.Diff(want, saidOf(failure(t, p))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestEndlessComments: they are not held, and reading them takes time all the same. Those between one event and the next count.
func TestEndlessComments(t *testing.T) {
	comment := ": " + strings.Repeat("x", 1000) + "\n\n"
	ended := make(chan int, 1)
	url := raw(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		sent := 0
		for r.Context().Err() == nil {
			n, err := w.Write([]byte(comment))
			if sent += n; err != nil {
				break
			}
		}
		ended <- sent
	})
	want := said{Kind: model.Malformed, Message: `provider "demo": more than 262144 bytes of comments came between two events of the answer: have the endpoint send fewer`}
	if diff := cmp.Diff(want, saidOf(failure(t, provider(t, url)))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	select {
	case <-ended:
	case <-patient(t).Done():
		t.Error("the connection stays open")
	}
}

func TestCommentsBetweenEventsCountAnew(t *testing.T) {
	comments := strings.Repeat(": "+strings.Repeat("x", 1000)+"\n\n", 200)
	body := strings.Repeat(comments+events(delta(`"content":"yes"`)), 3) + comments + events(finishing("stop"), "[DONE]")
	reply, err := provider(t, raw(t, respond(200, body, stream))).Generate(t.Context(), request("hello"))
	if err != nil || reply.Text != "yesyesyes" {
		t.Errorf("%q, %v; want an answer beside 800 KB of comments, of which 200 KB come at a time", reply.Text, err)
	}
}

func TestEndlessRefusalIsLetGo(t *testing.T) {
	gone := make(chan struct{})
	url := raw(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.WriteHeader(http.StatusInternalServerError)
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat("x", 1000))); err != nil {
				return
			}
		}
	})
	if e := failure(t, provider(t, url)); e.Kind != model.Overloaded {
		t.Errorf("error %s %q, want Overloaded: the status says what is wrong, however long the body is", e.Kind, e.Message)
	}
	select {
	case <-gone:
	case <-patient(t).Done():
		t.Error("the connection of an endless refusal stays open")
	}
}
