package endpoint

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// headers returns headers with these names and values, and with a date.
func headers(pairs ...string) http.Header {
	h := http.Header{"Date": {"Thu, 11 Jun 2026 15:04:05 GMT"}}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// limitOf returns the headers of a limit with this remaining number and reset.
func limitOf(remaining, reset string) http.Header {
	return headers("x-ratelimit-remaining", remaining, "x-ratelimit-reset", reset)
}

func TestStatedLimits(t *testing.T) {
	const second, minute = time.Second, time.Minute
	requests := func(remaining int64, reset time.Duration) model.StatedLimits {
		return model.StatedLimits{Requests: model.StatedLimit{Remaining: remaining, Reset: reset}}
	}
	both := requests(59, second)
	both.Tokens = model.StatedLimit{Remaining: 149_984, Reset: 6 * minute}
	for name, tc := range map[string]struct {
		reason string
		h      http.Header
		want   model.StatedLimits
	}{
		"none": {"most servers state nothing", headers(), model.StatedLimits{}},
		"openai": {
			"durations", headers("x-ratelimit-limit-requests", "60",
				"x-ratelimit-remaining-requests", "59", "x-ratelimit-reset-requests", "1s",
				"x-ratelimit-remaining-tokens", "149984", "x-ratelimit-reset-tokens", "6m0s"), both,
		},
		"groq": {
			"fractions", headers("x-ratelimit-remaining-requests", "14370", "x-ratelimit-reset-requests", "2m59.56s"),
			requests(14370, 179560*time.Millisecond),
		},
		"cerebras": {
			"the strictest limit counts", headers(
				"x-ratelimit-remaining-requests-day", "3", "x-ratelimit-reset-requests-day", "33011.5",
				"x-ratelimit-remaining-requests-minute", "10", "x-ratelimit-reset-requests-minute", "11.38"),
			requests(3, 33011500*time.Millisecond),
		},
		"openrouter": {
			"milliseconds since 1970", limitOf("0", "1781190305000"), requests(0, minute),
		},
		"seconds since 1970": {"some gateways send them", limitOf("1", "1781190255"), requests(1, 10*second)},
		"anthropic": {
			"times, and several limits of tokens", headers(
				"anthropic-ratelimit-requests-remaining", "49", "anthropic-ratelimit-requests-reset", "2026-06-11T15:04:15Z",
				"anthropic-ratelimit-input-tokens-remaining", "0", "anthropic-ratelimit-input-tokens-reset", "2026-06-11T15:04:35Z",
				"anthropic-ratelimit-output-tokens-remaining", "8000", "anthropic-ratelimit-output-tokens-reset", "2026-06-11T15:04:06Z"),
			model.StatedLimits{
				Requests: model.StatedLimit{Remaining: 49, Reset: 10 * second}, Tokens: model.StatedLimit{Remaining: 0, Reset: 30 * second},
			},
		},
		"anthropic, output left": {
			"the tokens of replies are not those of prompts", headers(
				"anthropic-ratelimit-input-tokens-remaining", "40000", "anthropic-ratelimit-input-tokens-reset", "2026-06-11T15:04:06Z",
				"anthropic-ratelimit-output-tokens-remaining", "8000", "anthropic-ratelimit-output-tokens-reset", "2026-06-11T15:04:35Z"),
			model.StatedLimits{Tokens: model.StatedLimit{Remaining: 40_000, Reset: second}},
		},
		"anthropic, no output left": {
			"no reply can be written", headers(
				"anthropic-ratelimit-input-tokens-remaining", "40000", "anthropic-ratelimit-input-tokens-reset", "2026-06-11T15:04:06Z",
				"anthropic-ratelimit-output-tokens-remaining", "0", "anthropic-ratelimit-output-tokens-reset", "2026-06-11T15:04:35Z"),
			model.StatedLimits{Tokens: model.StatedLimit{Remaining: 0, Reset: 30 * second}},
		},
		"contradictory": {
			"the strictest counts", headers("x-ratelimit-remaining", "7", "x-ratelimit-reset", "2",
				"x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "5s"), requests(0, 5*second),
		},
		"equal": {
			"the longest wait counts", headers("x-ratelimit-remaining", "0", "x-ratelimit-reset", "20",
				"x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "5s"), requests(0, 20*second),
		},
		"no reset":        {"the wait is not known", headers("x-ratelimit-remaining", "0"), model.StatedLimits{}},
		"no remaining":    {"the number is not known", headers("x-ratelimit-reset", "5"), model.StatedLimits{}},
		"in the past":     {"the wait is over", limitOf("0", "1781190244"), model.StatedLimits{}},
		"negative reset":  {"the wait is over", limitOf("0", "-5"), model.StatedLimits{}},
		"negative number": {"no requests are left", limitOf("-1", "5"), requests(0, 5*second)},
		"huge number":     {"the number is bounded", limitOf("1e300", "5"), requests(model.MaxTokens, 5*second)},
		"huge reset":      {"the wait is bounded", limitOf("0", "1e300"), requests(0, 24*time.Hour)},
		"infinite reset":  {"the wait is bounded", limitOf("0", "Inf"), requests(0, 24*time.Hour)},
		"not a number":    {"an invalid limit is ignored", limitOf("NaN", "5"), model.StatedLimits{}},
		"reset no number": {"an invalid limit is ignored", limitOf("0", "NaN"), model.StatedLimits{}},
		"reset in words":  {"an invalid limit is ignored", limitOf("0", "soon"), model.StatedLimits{}},
		"without a date": {
			"the time by the endpoint's clock is not known",
			http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"1781190305"}},
			model.StatedLimits{},
		},
		"a year from now":  {"the wait is bounded", limitOf("0", "2027-06-11T15:04:05Z"), requests(0, 24*time.Hour)},
		"long duration":    {"the wait is bounded", limitOf("0", "2000000h"), requests(0, 24*time.Hour)},
		"too long to read": {"an invalid limit is ignored", limitOf("0", "99999999999h"), model.StatedLimits{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, statedLimits(tc.h)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "2": 2 * time.Second, "0.5": 500 * time.Millisecond, "-3": 0, "NaN": 0, "1e99": 24 * time.Hour,
		"soon": 0, "1m30s": 90 * time.Second, "Thu, 11 Jun 2026 15:04:35 GMT": 30 * time.Second, "2026-06-11T15:05:05Z": time.Minute,
		"1781190305": time.Minute,
	} {
		if got := retryAfter(headers("Retry-After", value)); got != want {
			t.Errorf("Retry-After: %s is a wait of %s, want %s", value, got, want)
		}
	}
	if got := retryAfter(headers("Retry-After", "9", "Retry-After-Ms", "NaN")); got != 0 {
		t.Errorf("Retry-After-Ms: NaN is a wait of %s, want 0", got)
	}
}
