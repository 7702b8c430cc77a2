package endpoint

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// maxRetryAfter bounds the wait that an endpoint may ask for. A longer wait never fits into a Turn.
const maxRetryAfter = 24 * time.Hour

// limited says what a limit limits.
type limited int

const (
	limitsRequests limited = iota
	limitsTokens
	// limitsOutput is for the tokens of replies. How many of them a request will need is not known, so such a limit
	// counts only once it is used up. It must not be compared with the tokens of prompts, which are often many more.
	limitsOutput
)

// limitHeaders are the pairs of headers with the remaining requests or tokens and the time of their reset. Servers have
// a limit for each minute, and some also have a limit for each day.
var limitHeaders = []struct {
	limits           limited
	remaining, reset string
}{
	{limitsRequests, "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"}, // OpenAI, Azure, Groq, xAI, vLLM gateways
	{limitsTokens, "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
	{limitsRequests, "X-Ratelimit-Remaining-Requests-Minute", "X-Ratelimit-Reset-Requests-Minute"}, // Cerebras
	{limitsRequests, "X-Ratelimit-Remaining-Requests-Day", "X-Ratelimit-Reset-Requests-Day"},
	{limitsTokens, "X-Ratelimit-Remaining-Tokens-Minute", "X-Ratelimit-Reset-Tokens-Minute"},
	{limitsRequests, "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}, // OpenRouter, Together
	{limitsRequests, "Ratelimit-Remaining", "Ratelimit-Reset"},     // the draft of the IETF, as gateways implement it
	{limitsRequests, "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	{limitsTokens, "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
	{limitsTokens, "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
	{limitsOutput, "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
}

// statedLimits returns the strictest limits that an endpoint states.
func statedLimits(h http.Header) model.StatedLimits {
	var all model.StatedLimits
	for _, names := range limitHeaders {
		remaining, err := strconv.ParseFloat(h.Get(names.remaining), 64)
		if err != nil || math.IsNaN(remaining) {
			continue
		}
		wait, ok := waitUntil(h.Get(names.reset), h)
		if !ok || wait <= 0 {
			continue
		}
		limit := model.StatedLimit{Remaining: int64(min(max(0, remaining), float64(model.MaxTokens))), Reset: wait}
		strictest := &all.Tokens
		switch {
		case names.limits == limitsRequests:
			strictest = &all.Requests
		case names.limits == limitsOutput && limit.Remaining > 0:
			continue
		}
		if strictest.Reset == 0 || limit.Remaining < strictest.Remaining ||
			limit.Remaining == strictest.Remaining && limit.Reset > strictest.Reset {
			*strictest = limit
		}
	}
	return all
}

// limitReset returns the wait until all limits that are used up are reset, or 0 if none is.
func limitReset(stated model.StatedLimits) time.Duration {
	var wait time.Duration
	for _, limit := range []model.StatedLimit{stated.Requests, stated.Tokens} {
		if limit.Remaining == 0 {
			wait = max(wait, limit.Reset)
		}
	}
	return wait
}

// retryAfter returns the wait that an endpoint asks for, or 0.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		return boundedWait(ms / 1000)
	}
	wait, _ := waitUntil(h.Get("Retry-After"), h)
	return wait
}

// Numbers from these values on are not waits, but times since 1970, in seconds or in milliseconds.
const (
	unixSeconds      = 1e9
	unixMilliseconds = 1e11
)

// waitUntil returns the wait that a header states: as a number of seconds, as a duration such as 6m0s, or as a time in
// one of several forms, which is compared with the endpoint's own clock. It is from 0 to maxRetryAfter. ok is false if
// the header cannot be read.
func waitUntil(value string, h http.Header) (wait time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseFloat(value, 64); err == nil {
		switch {
		case n >= unixMilliseconds && n < 1e3*unixMilliseconds:
			return waitFromDate(time.UnixMilli(int64(n)), h)
		case n >= unixSeconds && n < unixMilliseconds:
			return waitFromDate(time.Unix(int64(n), 0), h)
		}
		return boundedWait(n), !math.IsNaN(n)
	}
	if d, err := time.ParseDuration(value); err == nil {
		return boundedWait(d.Seconds()), true
	}
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return waitFromDate(at, h)
	}
	if at, err := http.ParseTime(value); err == nil {
		return waitFromDate(at, h)
	}
	return 0, false
}

// waitFromDate returns the wait from the header Date of a response, which is by the endpoint's clock, until another
// time.
func waitFromDate(at time.Time, h http.Header) (time.Duration, bool) {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0, false
	}
	return boundedWait(at.Sub(date).Seconds()), true
}

// boundedWait returns a number of seconds as a duration from 0 to maxRetryAfter.
func boundedWait(seconds float64) time.Duration {
	if math.IsNaN(seconds) {
		return 0
	}
	return time.Duration(min(max(0, seconds), maxRetryAfter.Seconds()) * float64(time.Second))
}
