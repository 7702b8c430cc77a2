package apiclock

import (
	"net/http"
)

// Wrap returns a transport that takes a sample from each response of the API server. It fits rest.Config.Wrap.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper {
	return &transport{clock: c, next: next}
}

type transport struct {
	clock *Clock
	next  http.RoundTripper
}

// RoundTrip sends a request. It takes no sample from a response without a valid date, or from a response that may come
// from a proxy instead of the API server: one with a header Age, which comes from a cache, and one with a 5xx status.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := t.clock.Local()
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode >= http.StatusInternalServerError || response.Header.Get("Age") != "" {
		return response, err
	}
	received := t.clock.Local()
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		t.clock.Sample(date, sent, received)
	}
	return response, nil
}

// WrappedRoundTripper returns the wrapped transport. client-go looks for this method.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }
