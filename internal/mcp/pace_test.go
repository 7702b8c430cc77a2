package mcp

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// TestWaitGrowsWhileToolsKeepChanging checks how long the client waits before it lists the tools again when changes are
// reported at various intervals after its requests.
func TestWaitGrowsWhileToolsKeepChanging(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var pace changePause
	report := func(times int, interval time.Duration) (last time.Duration) {
		for range times {
			last = pace.next(now)
			pace.asked = now.Add(last)
			now = pace.asked.Add(interval)
		}
		return last
	}
	for _, tc := range []struct {
		reason   string
		times    int
		interval time.Duration
		want     time.Duration
	}{
		{"the first wait is short", 1, 0, settle},
		{"each further wait is longer", 3, 0, 8 * settle},
		{"the wait has a maximum", 10, 0, maxSettle},
		{"the wait stays at the maximum while changes keep arriving", 3, maxSettle, maxSettle},
		{"the wait is short again after a long time without changes", 2, 10 * maxSettle, settle},
		{"the wait stays short if the interval is longer than twice the wait", 5, time.Second, settle},
	} {
		if got := report(tc.times, tc.interval); got != tc.want {
			t.Errorf("the wait is %s, want %s: %s", got, tc.want, tc.reason)
		}
		if tc.interval == maxSettle {
			now = now.Add(10 * maxSettle)
		}
	}
}

// TestRetryTimeOfServerIsLimited checks the pauses between connections when a server requests various retry times.
func TestRetryTimeOfServerIsLimited(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		events   string
		standing bool
		rounds   int
		atLeast  time.Duration
		atMost   time.Duration
	}{
		"no time": {"the pause grows while nothing arrives", "retry: 0\n\n", true, 20, 4 * time.Minute, 20 * time.Minute},
		"an error without an ID": {
			"it is no message that the stream is for", "retry: 0\ndata: {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{}}\n\n",
			true, 20, 4 * time.Minute, 20 * time.Minute,
		},
		"with messages": {
			"the pause is at least a second", "retry: 0\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n",
			true, 20, 20 * time.Second, 30 * time.Second,
		},
		"long": {
			"the server's time is used", "retry: 25000\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n",
			true, 4, 100 * time.Second, 100 * time.Second,
		},
		"a response": {
			"the stream of a response has a minimum pause, too",
			"retry: 0\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n", false, 20, 2 * time.Second, 2 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stream{ctx: t.Context(), wire: &wire{}, ex: &exchange{}, standing: tc.standing, pause: newPause()}
				began := time.Now()
				for range tc.rounds {
					s.begin(io.NopCloser(strings.NewReader(tc.events)), maxStandingEvent)
					data, err := s.event()
					if err != nil {
						t.Fatal(err)
					}
					s.handle(data)
					s.sleep()
				}
				if got := time.Since(began); got < tc.atLeast || got > tc.atMost {
					t.Errorf("%d connections within %s, want %s to %s: %s", tc.rounds, got, tc.atLeast, tc.atMost, tc.reason)
				}
			})
		})
	}
}

// transport is a function that serves requests.
type transport func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestPauseBetweenResumptions checks how often the stream of a response is resumed while the server
// answers each attempt with a stream that ends without an event, and that only the time limit of the request ends that.
func TestPauseBetweenResumptions(t *testing.T) {
	const limit = time.Hour
	for name, tc := range map[string]struct {
		events          string
		atLeast, atMost int
	}{
		"no time":   {"id: 1\n\n", 3590, 3620},
		"no pause":  {"id: 1\nretry: 0\n\n", 3590, 3620},
		"a minute":  {"id: 1\nretry: 60000\n\n", 119, 120}, // the time is limited to maxBackoff
		"2 seconds": {"id: 1\nretry: 2000\n\n", 1799, 1800},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				requests := 0
				web := &http.Client{Transport: transport(func(req *http.Request) (*http.Response, error) {
					requests++
					return reply(req, &http.Response{}, http.StatusOK, eventsType, nil), nil
				})}
				call, err := jsonrpc.MakeID(float64(7))
				if err != nil {
					t.Fatal(err)
				}
				w := &wire{client: web, url: "http://server"}
				s := &stream{wire: w, ctx: ctx, header: http.Header{}, ex: &exchange{}, call: call}
				s.begin(io.NopCloser(strings.NewReader(tc.events)), MaxResponseBytes)
				for !s.done {
					s.readResponse()
				}
				if ctx.Err() == nil || requests < tc.atLeast || requests > tc.atMost {
					t.Errorf("the stream was resumed %d times (%v); want %d to %d times within %s", requests, ctx.Err(),
						tc.atLeast, tc.atMost, limit)
				}
			})
		})
	}
}
