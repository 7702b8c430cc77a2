package endpoint

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestOverflowInLongErrors checks that the whole text of an error counts, also the part that is cut off in the message.
func TestOverflowInLongErrors(t *testing.T) {
	p := New(Config{Name: "demo"}, nil)
	defer p.Close()
	body := `{"error":{"message":"litellm.BadRequestError: ` + strings.Repeat("fallback failed; ", 100) +
		`prompt is too long: 209303 tokens > 200000 maximum","code":"400"}}`
	for _, status := range []int{400, 422, 429, 500, 503, 0} {
		e := p.errorOf([]byte(body), status, "")
		if e.Kind != model.ContextLength || strings.Contains(e.RemoteMessage, "209303") {
			t.Errorf("status %d: %s with %q, want ContextLength, although the message is cut off", status, e.Kind, e.RemoteMessage)
		}
	}
}

// TestOtherErrorsAreNoOverflow checks similar messages of other errors. For these errors a shorter prompt would not
// help, but a wait or a change of the request would.
func TestOtherErrorsAreNoOverflow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		status  int
		message string
		want    model.ErrorKind
	}{
		"Bedrock": {
			"docs.aws.amazon.com, ThrottlingException", 429, "Too many tokens, please wait before trying again.",
			model.RateLimited,
		},
		"Anthropic": {
			"docs.anthropic.com, rate limits", 429,
			"This request would exceed your organization's rate limit of 30,000 input tokens per minute. Please reduce the prompt " +
				"length or the maximum tokens requested, or try again later.",
			model.RateLimited,
		},
		"OpenAI": {
			"platform.openai.com, error codes", 429,
			"Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.",
			model.RateLimited,
		},
		"a maximum of the output": {
			"only the Agent's limit can be changed", 400, "max_tokens exceeds the maximum allowed value of 8192", model.InvalidRequest,
		},
		"no output": {
			"github.com/vllm-project/vllm/issues/4667, for a limit that is not negative", 400, "max_tokens must be at least 1, got 0.",
			model.InvalidRequest,
		},
		"another length": {
			"the name of a tool is not the prompt", 400, "tools[0].function.name exceeds the maximum length 64", model.InvalidRequest,
		},
		"the output": {
			"github.com/openclaw/openclaw/pull/53177", 422, "max_tokens must be less than or equal to 32768", model.InvalidRequest,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Config{Name: "demo"}, nil)
			defer p.Close()
			if e := p.statusError(tc.status, "", tc.message); e.Kind != tc.want {
				t.Errorf("%s: %s, want %s", tc.reason, e.Kind, tc.want)
			}
		})
	}
}
