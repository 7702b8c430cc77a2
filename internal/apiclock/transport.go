package apiclock

import (
	"net/http"
)

// Wrap returns a transport that takes a sample of each response of the API server, as rest.Config.Wrap wants it.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper {
	return &transport{clock: c, next: next}
}

type transport struct {
	clock *Clock
	next  http.RoundTripper
}

// RoundTrip sends a request. A response without a date that can be read says nothing of the time, nor does one that comes from a
// proxy: out of its cache, or because it does not reach the API server.
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

// WrappedRoundTripper returns the transport within, which client-go looks for.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }
