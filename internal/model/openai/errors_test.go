package openai_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// errorParts holds the parts of an error that people or the loop read.
type errorParts struct {
	Kind       model.ErrorKind
	Message    string
	Said       string
	RetryAfter time.Duration
}

// expectedError returns the expected parts of an error. theirs is the text of the endpoint or of the network, if any.
func expectedError(kind model.ErrorKind, message string, wait time.Duration, theirs ...string) errorParts {
	return errorParts{Kind: kind, Message: message, Said: strings.Join(theirs, ""), RetryAfter: wait}
}

func partsOf(e *model.Error) errorParts {
	return errorParts{Kind: e.Kind, Message: e.Message, Said: e.RemoteMessage, RetryAfter: e.RetryAfter}
}

func TestErrorsOfTheFakeModel(t *testing.T) {
	short := func(c *openai.Config) { c.FirstEventTimeout = 150 * time.Millisecond }
	for name, tc := range map[string]struct {
		reason, rules string
		change        func(*openai.Config)
		want          errorParts
	}{
		"invalid key": {"the message says where the key comes from", `{apiKeys: [other]}`, nil, errorParts{
			Kind:    model.Auth,
			Message: `provider "demo": the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`,
			Said:    `Incorrect API key provided.`,
		}},
		"no key": {
			"the message says where to set a key", `{apiKeys: [other]}`,
			func(c *openai.Config) { c.APIKey, c.CredentialsFrom = "", "" },
			errorParts{
				Kind: model.Auth,
				Message: `provider "demo": the endpoint refused a request without credentials (HTTP 401): set spec.credentialsRef of ` +
					`the ModelProvider if the endpoint needs a key`, Said: `Incorrect API key provided.`,
			},
		},
		"key in a header": {
			"the message names the headers", `{apiKeys: [other]}`,
			func(c *openai.Config) {
				c.APIKey, c.CredentialsFrom = "", ""
				c.Headers = []endpoint.Header{{Name: "Authorization", Value: "Bearer " + key, Secret: true}}
			},
			errorParts{
				Kind: model.Auth,
				Message: `provider "demo": the endpoint refused the credentials (HTTP 401): check the values of spec.headers of the ` +
					`ModelProvider`, Said: `Incorrect API key provided.`,
			},
		},
		"forbidden": {"the key has no permission", `rules: [{fault: {status: 403, message: Not yours.}}]`, nil, errorParts{
			Kind:    model.Auth,
			Message: `provider "demo": the endpoint refused the credentials (HTTP 403): check key "apiKey" of Secret "demo"`,
			Said:    `Not yours.`,
		}},
		"unknown model": {"404", `{models: [large]}`, nil, errorParts{
			Kind:    model.InvalidRequest,
			Message: "provider \"demo\": the endpoint does not know the model, or serves nothing at this baseURL (HTTP 404)",
			Said:    "The model `small` does not exist or you do not have access to it.",
		}},
		"rate limit": {
			"429 with the wait it asks for",
			`rules: [{fault: {status: 429, message: Slow down., retryAfterSeconds: 7}}]`, nil,
			errorParts{
				Kind: model.RateLimited,
				Message: `provider "demo": the endpoint's rate limit is reached ` +
					`(HTTP 429)`, Said: `Slow down.`, RetryAfter: 7 * time.Second,
			},
		},
		"context length": {
			"400 with the code",
			`rules: [{fault: {status: 400, code: context_length_exceeded, message: Too long.}}]`, nil,
			errorParts{
				Kind:    model.ContextLength,
				Message: `provider "demo": the prompt is longer than the model's context window`, Said: `Too long.`,
			},
		},
		"bad request": {"another 400", `rules: [{fault: {status: 400, message: Bad.}}]`, nil, errorParts{
			Kind:    model.InvalidRequest,
			Message: `provider "demo": the endpoint refused the request (HTTP 400)`, Said: `Bad.`,
		}},
		"tools with an effort": {
			"gpt-5.4 has no reasoning by default",
			`rules: [{fault: {status: 400, message: "Function tools with reasoning_effort are not supported for gpt-5.4 in ` +
				`/v1/chat/completions. Please use /v1/responses instead."}}]`, nil,
			errorParts{
				Kind: model.InvalidRequest,
				Message: `provider "demo": the model accepts tools only if it does not reason (HTTP 400): set spec.thinking of the ` +
					`Agent to "Off", and add ReasoningOff to the model's capabilities in the ModelProvider`,
				Said: "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions. " +
					"Please use /v1/responses instead.",
			},
		},
		"filtered request": {
			"the filter as an error",
			`rules: [{fault: {status: 400, code: content_filter, message: No.}}]`, nil,
			errorParts{
				Kind:    model.ContentFiltered,
				Message: `provider "demo": the content filter refused the request`, Said: `No.`,
			},
		},
		"server error": {"a failure of the server may be over soon", `rules: [{fault: {status: 503, message: Busy.}}]`, nil, errorParts{
			Kind:    model.Overloaded,
			Message: `provider "demo": the endpoint failed (HTTP 503)`, Said: `Busy.`,
		}},
		"filtered answer": {"the filter in the stream", `rules: [{reply: {text: half, finishReason: content_filter}}]`, nil, errorParts{
			Kind:    model.ContentFiltered,
			Message: `provider "demo": the content filter withheld the answer`,
		}},
		"hang before headers": {"no byte at all", `rules: [{fault: {hang: BeforeHeaders}}]`, short, errorParts{
			Kind:    model.Timeout,
			Message: `provider "demo": the endpoint sent no part of an answer for 150ms`,
		}},
		"hang after headers": {"no byte of an answer", `rules: [{fault: {hang: AfterHeaders}}]`, short, errorParts{
			Kind:    model.Timeout,
			Message: `provider "demo": the endpoint sent no part of an answer for 150ms`,
		}},
		"cut": {
			"a connection that breaks", `rules: [{reply: {text: half an answer that is cut}, fault: {cutAfterChunks: 1}}]`,
			nil,
			errorParts{
				Kind:    model.Network,
				Message: `provider "demo": the connection broke before the answer was finished`,
			},
		},
		"no finish": {"a stream that just ends", `rules: [{fault: {endWithoutFinish: true}}]`, nil, errorParts{
			Kind:    model.Malformed,
			Message: `provider "demo": the stream ended before the answer was finished`,
		}},
		"broken JSON": {"invalid JSON in an event", `rules: [{fault: {rubbish: NotJSON}}]`, nil, errorParts{
			Kind:    model.Malformed,
			Message: `provider "demo": the response does not follow the chat-completions protocol`,
			Said:    `{"id":"chatcmpl-fake","object":"chat.completion","choices":[{"index":0,`,
		}},
		"prose": {"text instead of a stream", `rules: [{fault: {rubbish: NotSSE}}]`, nil, errorParts{
			Kind:    model.Malformed,
			Message: `provider "demo": the stream ended before the answer was finished`,
		}},
		"page": {"a web page instead of a stream", `rules: [{fault: {rubbish: HTML}}]`, nil, errorParts{
			Kind: model.Malformed,
			Message: `provider "demo": the stream ended before the answer was finished (the endpoint sent ` +
				`text/html, not text/event-stream: check baseURL)`,
		}},
		"empty answer": {
			"an empty answer is malformed", `rules: [{reply: {text: ""}}]`, nil,
			errorParts{Kind: model.Malformed, Message: `provider "demo": the answer was empty`},
		},
		"blank answer": {
			"a blank answer is malformed", `rules: [{reply: {text: " \n\t"}}]`, nil,
			errorParts{Kind: model.Malformed, Message: `provider "demo": the answer was empty`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := fakeModel(t, tc.rules)
			var mutate []func(*openai.Config)
			if tc.change != nil {
				mutate = append(mutate, tc.change)
			}
			if diff := cmp.Diff(tc.want, partsOf(failure(t, provider(t, url, mutate...)))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// retryInfo returns an error with a wait, as Gemini sends it: github.com/googleapis/python-genai/issues/1875.
func retryInfo(wait string) string {
	return `{"error":{"code":429,"message":"Later.","status":"RESOURCE_EXHAUSTED","details":[` +
		`{"@type":"type.googleapis.com/google.rpc.Help","links":[]},` +
		`{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"` + wait + `"}]}}`
}

// quotaWords are the words of Gemini for a limit that is reached: github.com/googleapis/python-genai/issues/1875.
const quotaWords = "You exceeded your current quota, please check your plan and billing details. For more information on this error, " +
	"head to: https://ai.google.dev/gemini-api/docs/rate-limits. To monitor your current usage, head to: " +
	"https://ai.dev/usage?tab=rate-limit.\n* Quota exceeded for metric: " +
	"generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 10, model: gemini-2.5-flash\n" +
	"Please retry in 53.016342224s."

// limitedUntil returns an error with the headers of a limit, as OpenRouter sends it:
// github.com/Gitlawb/openclaude/issues/936.
func limitedUntil(reset string) string {
	return `{"error":{"message":"Later.","code":429,"metadata":{"headers":{"X-RateLimit-Limit":"50","X-RateLimit-Remaining":"0",` +
		`"X-RateLimit-Reset":` + reset + `}}},"user_id":"user_1"}`
}

func TestErrorsOfOtherServers(t *testing.T) {
	const limited = `provider "demo": the endpoint's rate limit is reached (HTTP 429)`
	const date = "Date: Thu, 11 Jun 2026 15:04:05 GMT"
	for name, tc := range map[string]struct {
		reason string
		handle http.HandlerFunc
		want   errorParts
	}{
		"wait until a date": {
			"the endpoint's own clock counts", respond(429, "", "Retry-After: Thu, 11 Jun 2026 15:04:35 GMT",
				"Date: Thu, 11 Jun 2026 15:04:05 GMT"),
			expectedError(model.RateLimited, limited, 30*time.Second),
		},
		"wait in milliseconds": {
			"milliseconds are more exact than seconds",
			respond(429, "", "Retry-After: 2", "Retry-After-Ms: 1500"), expectedError(model.RateLimited, limited, 1500*time.Millisecond),
		},
		"endless wait": {
			"the wait is bounded", respond(429, "", "Retry-After: 99999999999999"),
			expectedError(model.RateLimited, limited, 24*time.Hour),
		},
		"negative wait": {
			"the wait is not negative", respond(429, "", "Retry-After-Ms: -9000000000000000000"),
			expectedError(model.RateLimited, limited, 0),
		},
		"used up": {
			"waiting does not help",
			respond(429, `{"error":{"message":"You exceeded your quota.","code":"insufficient_quota"}}`, "Retry-After: 2"),
			expectedError(model.QuotaExceeded, `provider "demo": the account's quota is used up (HTTP 429): check its plan and billing`,
				2*time.Second, "You exceeded your quota."),
		},
		"used up in the stream": {
			"the error has no HTTP status", respond(200, events(`{"error":{"message":"Spent.","code":"insufficient_quota"}}`), stream),
			expectedError(model.QuotaExceeded, `provider "demo": the account's quota is used up: check its plan and billing`, 0, "Spent."),
		},
		"limit with another status": {
			"the message has the status that was sent", respond(400, `{"error":{"message":"Slow.","code":"rate_limit_exceeded"}}`),
			expectedError(model.RateLimited, `provider "demo": the endpoint's rate limit is reached (HTTP 400)`, 0, "Slow."),
		},
		"past date": {"a date in the past means no wait", respond(429, "", "Retry-After: Thu, 11 Jun 2026 15:04:00 GMT",
			"Date: Thu, 11 Jun 2026 15:04:05 GMT"), expectedError(model.RateLimited, limited, 0)},
		"wait of a 503": {
			"other errors may ask for a wait too", respond(503, "", "Retry-After: 3"),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 503)`, 3*time.Second),
		},
		"wait in the body": {
			"the wait has the same bound as in the header", respond(503, retryInfo("99999999999999s")),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 503)`, 24*time.Hour, "Later."),
		},
		"wait with a fraction in the body": {
			"the wait in the body counts more than the reset of a limit",
			respond(429, retryInfo("53.016342224s"), "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60"),
			expectedError(model.RateLimited, limited, 53016342224, "Later."),
		},
		"wait in the header and the body": {
			"the header counts more than the body", respond(429, retryInfo("53s"), "Retry-After: 7"),
			expectedError(model.RateLimited, limited, 7*time.Second, "Later."),
		},
		"wait in the stream": {
			"the error of a stream has no header", respond(200, events(retryInfo("53s")), stream),
			expectedError(model.RateLimited, limited, 53*time.Second, "Later."),
		},
		"wait behind a gateway": {
			"the error of the provider counts", respond(429, `{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":`+
				strconv.Quote(retryInfo("53s"))+`}}}`),
			expectedError(model.RateLimited, limited, 53*time.Second, "Provider returned error: Later."),
		},
		"reset in the body": {
			"the reset is a time by the endpoint's clock", respond(429, limitedUntil(`"1781190305000"`), date),
			expectedError(model.RateLimited, limited, time.Minute, "Later."),
		},
		"reset in the body as a number": {
			"gateways write numbers", respond(429, limitedUntil("1781190305000"), date),
			expectedError(model.RateLimited, limited, time.Minute, "Later."),
		},
		"reset in the body of a stream": {
			"the stream has a date", respond(200, events(limitedUntil(`"1781190305000"`)), stream, date),
			expectedError(model.RateLimited, limited, time.Minute, "Later."),
		},
		"reset in the body, a year later": {
			"the wait has the same bound as in the header", respond(429, limitedUntil(`"1812726305000"`), date),
			expectedError(model.RateLimited, limited, 24*time.Hour, "Later."),
		},
		"reset in the body, which is over": {
			"the wait is not negative", respond(429, limitedUntil(`"1781190000000"`), date),
			expectedError(model.RateLimited, limited, 0, "Later."),
		},
		"reset in the body in another form": {
			"another form counts as absent", respond(429, limitedUntil(`{"at":[7]}`), date),
			expectedError(model.RateLimited, limited, 0, "Later."),
		},
		"headers in the body in another form": {
			"another form counts as absent", respond(429, `{"error":{"message":"Later.","code":429,"metadata":{"headers":"7"}}}`, date),
			expectedError(model.RateLimited, limited, 0, "Later."),
		},
		"wait in the headers of the body": {
			"gateways pass on the headers of their provider",
			respond(429, `{"error":{"message":"Later.","code":429,"metadata":{"headers":{"retry-after":"7"}}}}`, date),
			expectedError(model.RateLimited, limited, 7*time.Second, "Later."),
		},
		"no wait in the body": {
			"another form counts as absent", respond(429, `{"error":{"message":"Later.","details":[7,{"retryDelay":{"seconds":"x"}}]}}`),
			expectedError(model.RateLimited, limited, 0, "Later."),
		},
		"negative wait in the body": {
			"the wait is not negative", respond(429, retryInfo("-5s")), expectedError(model.RateLimited, limited, 0, "Later."),
		},
		"plain text": {
			"an error that is not JSON is shown on one line", respond(502, "<h1>Bad\r\n\x1b[31mGateway</h1>"),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 502)`, 0, "<h1>Bad [31mGateway</h1>"),
		},
		"long text": {
			"a long error is cut off", respond(500, strings.Repeat("ü", 5000)),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 500)`, 0, strings.Repeat("ü", 900), "..."),
		},
		"remedy at the end": {
			"the remedy is not cut off", respond(429, `{"error":{"message":`+strconv.Quote(quotaWords)+`}}`),
			expectedError(model.RateLimited, limited, 0, strings.ReplaceAll(quotaWords, "\n", " ")),
		},
		"407 without a proxy": {
			"the endpoint has sent it", respond(407, `{"error":{"message":"Who are you?"}}`),
			expectedError(model.InvalidRequest, `provider "demo": the endpoint refused the request (HTTP 407)`, 0, "Who are you?"),
		},
		"conflict": {
			"the client libraries of OpenAI and Anthropic repeat the request", respond(409, `{"error":{"message":"Locked."}}`),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 409)`, 0, "Locked."),
		},
		"failed dependency": {
			"the model of Bedrock or TGI failed",
			respond(424, `{"message":"The system encountered an unexpected error during processing. Try your request again."}`),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 424)`, 0,
				"The system encountered an unexpected error during processing. Try your request again."),
		},
		"cancelled by the service": {
			"Gemini does so under load: github.com/google-gemini/gemini-cli/issues/20309",
			respond(499, `{"error":{"code":499,"message":"The operation was cancelled.","status":"CANCELLED"}}`),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 499)`, 0, "The operation was cancelled."),
		},
		"timeout": {"408", respond(408, ""), expectedError(model.Timeout, `provider "demo": the endpoint timed out (HTTP 408)`, 0)},
		"error in the stream": {"after comments and named events", respond(200,
			": thinking\n\nevent: error\n"+events(`{"error":{"message":"Overloaded.","type":"server_error"}}`), stream), expectedError(
			model.Overloaded,
			`provider "demo": the endpoint reported an error in the stream`, 0, "Overloaded.",
		)},
		"limit in the stream": {"its code counts", respond(200, events(`{"error":{"message":"Slow.","code":"rate_limit_exceeded"}}`),
			stream), expectedError(model.RateLimited, limited, 0, "Slow.")},
		"wrong types": {
			"JSON of another form", respond(200, events(`{"choices":"none"}`), stream),
			expectedError(model.Malformed, `provider "demo": the response does not follow the chat-completions protocol`, 0,
				`{"choices":"none"}`),
		},
		"no answer": {
			"an end without an answer", respond(200, events("[DONE]"), stream),
			expectedError(model.Malformed, `provider "demo": the stream ended before the answer was finished`, 0),
		},
		"cut off": {
			"an answer without a finish reason is complete only if its end is marked",
			respond(200, events(callPart(0, "a", "count", `{"n":1}`), delta(`"content":"a"`)), stream),
			expectedError(model.Malformed, `provider "demo": the stream ended before the answer was finished`, 0),
		},
		"other JSON": {"JSON that is no answer", respond(200, `{"status":"ok"}`, jsonType), expectedError(
			model.Malformed,
			`provider "demo": the stream ended before the answer was finished (the endpoint sent `+
				`application/json, not text/event-stream: check baseURL)`, 0,
		)},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, partsOf(failure(t, provider(t, serve(t, tc.handle))))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	for name, tc := range map[string]struct{ url, want string }{
		"refused":      {"http://127.0.0.1:1/v1", "connection refused"},
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
	const other = "the text outside the events of the answer exceeds 1048576 bytes and was cut off"
	for name, tc := range map[string]struct{ reason, line, want string }{
		"events": {
			"events without content are not held, but bounded",
			"data: {\"choices\":[],\"id\":\"" + strings.Repeat("x", 1000) + "\"}\n\n", "the answer exceeds 16777216 bytes and was cut off",
		},
		"an event": {
			"a single event is held", "data: {" + strings.Repeat("x", 1000),
			"an event of the answer exceeds 2097152 bytes and was cut off",
		},
		"one line":    {"a line outside events is held", strings.Repeat("x", 1000), other},
		"lines":       {"all lines outside events count together", strings.Repeat("x", 1000) + "\n", other},
		"empty lines": {"empty lines take time to read", strings.Repeat("\n", 1000), other},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for r.Context().Err() == nil {
					if _, err := w.Write([]byte(tc.line)); err != nil {
						return
					}
				}
			})
			p := provider(t, url, func(c *openai.Config) { c.MaxStreamBytes = 16 << 20 })
			want := errorParts{Kind: model.ReplyTooLong, Message: `provider "demo": ` + tc.want}
			if diff := cmp.Diff(want, partsOf(failure(t, p))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestEndlessComments checks the bound on comments between two events. Comments are not held in memory, but reading
// them takes time.
func TestEndlessComments(t *testing.T) {
	comment := ": " + strings.Repeat("x", 1000) + "\n\n"
	ended := make(chan int, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
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
	want := errorParts{
		Kind: model.Malformed,
		Message: `provider "demo": more than 262144 bytes of comments arrived between two events of the answer: ` +
			`configure the endpoint to send fewer`,
	}
	if diff := cmp.Diff(want, partsOf(failure(t, provider(t, url)))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	select {
	case <-ended:
	case <-longContext(t).Done():
		t.Error("the connection stays open")
	}
}

func TestCommentBoundRestartsAtEachEvent(t *testing.T) {
	comments := strings.Repeat(": "+strings.Repeat("x", 1000)+"\n\n", 200)
	body := strings.Repeat(comments+events(delta(`"content":"yes"`)), 3) + comments + events(finishEvent("stop"), "[DONE]")
	reply, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), request("hello"))
	if err != nil || reply.Text != "yesyesyes" {
		t.Errorf("%q, %v; want an answer despite 800 KB of comments, because at most 200 KB come between two events", reply.Text, err)
	}
}

func TestEndlessErrorBody(t *testing.T) {
	gone := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.WriteHeader(http.StatusInternalServerError)
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat("x", 1000))); err != nil {
				return
			}
		}
	})
	if e := failure(t, provider(t, url)); e.Kind != model.Overloaded {
		t.Errorf("error %s %q, want Overloaded: the status decides, however long the body is", e.Kind, e.Message)
	}
	select {
	case <-gone:
	case <-longContext(t).Done():
		t.Error("the connection of an endless refusal stays open")
	}
}

// TestErrorWithinStream checks the forms in which endpoints report an error in a stream that has begun well. The
// stream stays open, so the error must end the request.
func TestErrorWithinStream(t *testing.T) {
	const reported = `provider "demo": the endpoint reported an error in the stream`
	for name, tc := range map[string]struct {
		line string
		want errorParts
	}{
		"object": {
			`{"error": {"message": "no workers", "type": "server_error"}}`,
			errorParts{Kind: model.Overloaded, Message: reported, Said: "no workers"},
		},
		"status as a code": {
			`{"id": "1", "error": {"message": "slow down", "code": 429}}`,
			errorParts{
				Kind: model.RateLimited, Said: "slow down",
				Message: `provider "demo": the endpoint's rate limit is reached (HTTP 429)`,
			},
		},
		"text": {`{"error": "it crashed"}`, errorParts{Kind: model.Overloaded, Message: reported, Said: "it crashed"}},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = w.Write([]byte(events(delta(`"content":"Hel"`), tc.line))) // the test notices if the client is gone
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			if diff := cmp.Diff(tc.want, partsOf(failure(t, provider(t, url)))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestLastTextBeforeTheEnd checks which texts in place of the last event are errors, if no finish reason has arrived.
func TestLastTextBeforeTheEnd(t *testing.T) {
	begun := delta(`"content":"yes"`)
	for text, want := range map[string]model.ErrorKind{
		"upstream closed": model.Overloaded, "rate limit exceeded": model.Overloaded, "Quota used up": model.Overloaded,
		"client disconnected": model.Overloaded, "connection reset by peer": model.Overloaded, "connection refused": model.Overloaded,
		"access denied": model.Overloaded, "invalid request": model.Overloaded, "Bad Gateway": model.Overloaded,
		"the server is overloaded": model.Overloaded, "out of memory": model.Overloaded, "connection lost": model.Overloaded,
		"HTTP 502": model.Overloaded, "429 Too Many Requests": model.Overloaded, "status=503, later": model.Overloaded,
		"prompt is too long: 9 tokens": model.ContextLength, "Content Exists Risk": model.ContentFiltered,
		"small is not a multimodal model": model.InvalidRequest,
	} {
		t.Run(text, func(t *testing.T) {
			if e := failure(t, provider(t, serve(t, respond(200, events(begun, text, "[DONE]"), stream)))); e.Kind != want {
				t.Errorf("error %s %q, want %s", e.Kind, e.Message, want)
			}
			ended := events(begun, finishEvent("stop"), text, "[DONE]")
			reply, err := generate(t.Context(), provider(t, serve(t, respond(200, ended, stream))), request("hello"))
			if err != nil || reply.Text != "yes" {
				t.Errorf("%q, %v; want the answer, which has ended before the text", reply.Text, err)
			}
		})
	}
	for _, text := range []string{"still waiting", "keep-alive", "working: 1429 tokens", "4040 ms"} {
		reply, err := generate(t.Context(), provider(t, serve(t, respond(200, events(begun, text, "[DONE]"), stream))), request("hello"))
		if err != nil || reply.Text != "yes" {
			t.Errorf("%s: %q, %v; want the answer, because the text is not an error", text, reply.Text, err)
		}
	}
}

// TestLastLineWithoutLineBreak checks that the last event counts even if no line break follows it, unless the event is
// cut off.
func TestLastLineWithoutLineBreak(t *testing.T) {
	begun := events(delta(`"content":"yes"`)) + "data: "
	reply, err := generate(t.Context(), provider(t, serve(t, respond(200, begun+finishEvent("stop"), stream))), request("hello"))
	if err != nil || reply.Text != "yes" {
		t.Errorf("%q, %v; want the answer", reply.Text, err)
	}
	half := finishEvent("stop")[:20]
	if e := failure(t, provider(t, serve(t, respond(200, begun+half, stream)))); e.Kind != model.Malformed {
		t.Errorf("error %s %q, want Malformed for half an event", e.Kind, e.Message)
	}
}
