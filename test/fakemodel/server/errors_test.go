package server

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sashabaranov/go-openai"
)

// apiError returns the error that a real client reads from a response.
func apiError(t *testing.T, err error) *openai.APIError {
	t.Helper()
	e, ok := errors.AsType[*openai.APIError](err)
	if !ok {
		t.Fatalf("want an error body that the client can read, have: %v", err)
	}
	return e
}

func TestErrorResponses(t *testing.T) {
	const rules = `
apiKeys: [other, right]
models: [m]
rules:
- when: {contains: busy}
  fault: {status: 429, retryAfterSeconds: 2}
- when: {contains: broken}
  fault: {status: 500}
- when: {contains: overloaded}
  fault: {status: 503, message: Come back later., code: at_capacity}
- when: {contains: too long}
  fault: {status: 400, code: context_length_exceeded}
- when: {contains: teapot}
  fault: {status: 499}
- when: {contains: echo}
  fault: {echoAuthorization: true}
- when: {contains: upstream}
  fault: {status: 502, echoAuthorization: true, message: Upstream failed.}
`
	// The client returns the number 0 for a code of null.
	for name, tc := range map[string]struct {
		key, model, message string
		want                openai.APIError
		outcome             Outcome
	}{
		"WrongKey": {
			"wrong", "m", "hi", openai.APIError{
				HTTPStatusCode: 401, Type: "invalid_request_error", Code: "invalid_api_key",
				Message: "Incorrect API key provided.",
			}, OutcomeUnauthorized,
		},
		"NoKey": {
			"", "m", "hi", openai.APIError{
				HTTPStatusCode: 401, Type: "invalid_request_error", Code: "invalid_api_key",
				Message: "Incorrect API key provided.",
			}, OutcomeUnauthorized,
		},
		"NoModel": {
			"right", "n", "hi", openai.APIError{
				HTTPStatusCode: 404, Type: "invalid_request_error", Code: "model_not_found", Param: new("model"),
				Message: "The model `n` does not exist or you do not have access to it.",
			}, OutcomeUnknownModel,
		},
		"RateLimit": {
			"right", "m", "busy", openai.APIError{
				HTTPStatusCode: 429, Type: "requests", Code: "rate_limit_exceeded",
				Message: "Rate limit reached. Please try again later.",
			}, OutcomeError,
		},
		"Server": {
			"right", "m", "broken", openai.APIError{
				HTTPStatusCode: 500, Type: "server_error", Code: 0,
				Message: "The server had an error while processing your request.",
			}, OutcomeError,
		},
		"Overloaded": {
			"other", "m", "overloaded", openai.APIError{
				HTTPStatusCode: 503, Type: "server_error", Code: "at_capacity",
				Message: "Come back later.",
			}, OutcomeError,
		},
		"TooLong": {
			"right", "m", "too long", openai.APIError{
				HTTPStatusCode: 400, Type: "invalid_request_error", Code: "context_length_exceeded",
				Message: "Bad Request",
			}, OutcomeError,
		},
		"Unnamed": {
			"right", "m", "teapot", openai.APIError{
				HTTPStatusCode: 499, Type: "invalid_request_error", Code: 0,
				Message: "HTTP status 499",
			}, OutcomeError,
		},
		"Echo": {
			"right", "m", "echo", openai.APIError{
				HTTPStatusCode: 401, Type: "invalid_request_error", Code: "invalid_api_key",
				Message: "Incorrect API key provided. The request was sent with Authorization: Bearer right",
			}, OutcomeError,
		},
		"EchoOther": {
			"right", "m", "upstream", openai.APIError{
				HTTPStatusCode: 502, Type: "server_error", Code: 0,
				Message: "Upstream failed. The request was sent with Authorization: Bearer right",
			}, OutcomeError,
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, rules)
			req := ask(tc.message)
			req.Model = tc.model
			_, whole := fake.withKey(tc.key).CreateChatCompletion(t.Context(), req)
			_, streamed := fake.withKey(tc.key).CreateChatCompletionStream(t.Context(), req)
			for kind, err := range map[string]error{"whole": whole, "streamed": streamed} {
				got := *apiError(t, err)
				got.HTTPStatus = ""
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", kind, diff)
				}
			}
			if got := fake.Stats().ByOutcome; got[tc.outcome] != 2 || len(got) != 1 {
				t.Errorf("want 2 requests counted as %q, have %v", tc.outcome, got)
			}
		})
	}
}

func TestRetryAfterComesOnceThenTheAnswer(t *testing.T) {
	fake := serveRules(t, "rules: [{times: 1, fault: {status: 429, retryAfterSeconds: 2}}]")
	first := fake.do(t, http.MethodPost, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`)
	if first.status != http.StatusTooManyRequests || first.header.Get("Retry-After") != "2" {
		t.Errorf("want 429 with Retry-After 2, have %d with %q", first.status, first.header.Get("Retry-After"))
	}
	second, err := fake.client.CreateChatCompletion(t.Context(), ask("hi"))
	if err != nil || second.Choices[0].Message.Content != "This is m. You said: hi" {
		t.Errorf("want the default answer after the rule is used up, have %+v and error %v", second.Choices, err)
	}
}

func TestInvalidRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"NotJSON":     {"{", 400, "not a valid request"},
		"BadContent":  {`{"model":"m","messages":[{"role":"user","content":3}]}`, 400, "content must be"},
		"NoModel":     {`{"messages":[{"role":"user"}]}`, 400, `"param":"model"`},
		"NoMessages":  {`{"model":"m"}`, 400, `"param":"messages"`},
		"UnknownRole": {`{"model":"m","messages":[{"role":"boss"}]}`, 400, "messages[0].role"},
		"TwoChoices":  {`{"model":"m","n":2,"messages":[{"role":"user"}]}`, 400, `"param":"n"`},
		"BadLimit":    {`{"model":"m","max_tokens":-1,"messages":[{"role":"user"}]}`, 400, `"param":"max_tokens"`},
		"TooLarge":    {`"` + strings.Repeat("x", maxBodyBytes) + `"`, 413, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, "")
			res := fake.do(t, http.MethodPost, "/v1/chat/completions", tc.body)
			if res.status != tc.status || !strings.Contains(res.body, tc.want) {
				t.Errorf("want %d and %q, have %d and %s", tc.status, tc.want, res.status, res.body)
			}
			if got := fake.Stats().ByOutcome[OutcomeInvalidRequest]; got != 1 {
				t.Errorf("want 1 invalid request counted, have %d", got)
			}
		})
	}
}
