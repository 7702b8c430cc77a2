package mcp

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/http2test"
)

// TestStreamIsRequestedOnceOverHTTP2 checks that a stream is requested only once at a time if the server resets the
// request, and at most twice with a GET. Only the stream itself requests it more often, after a pause: net/http would
// do so without a pause.
func TestStreamIsRequestedOnceOverHTTP2(t *testing.T) {
	for name, listen := range map[string][]byte{"GET": nil, "POST": []byte(`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen"}`)} {
		t.Run(name, func(t *testing.T) {
			var received atomic.Int32
			times := int32(1)
			if name == http.MethodGet {
				times = 2
			}
			url, certificate := http2test.Serve(t, func(method string, body []byte) http2test.Response {
				if method != name || string(body) != string(listen) {
					t.Errorf("the server received %s %q, want %s %q", method, body, name, listen)
				}
				if received.Add(1) <= times {
					return http2test.Response{Reset: http2.ErrCodeProtocol}
				}
				return http2test.Response{Status: http.StatusOK, ContentType: eventsType, Body: "data: {}\n\n"}
			})
			certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
			if err != nil {
				t.Fatal(err)
			}
			c := New(Config{Name: "demo", URL: url, TLS: certificates, Policy: netpolicy.NewLocalPolicy(), ConnectTimeout: time.Minute})
			t.Cleanup(c.Close)
			w := &wire{client: c.http, url: url, life: t.Context()}
			s := &stream{wire: w, ctx: t.Context(), header: http.Header{}, standing: true, listen: listen}
			//nolint:bodyclose // because there is none
			if resp, err := s.get(); err == nil || received.Load() != times {
				t.Errorf("the response is %+v, %v, after %d requests; want an error after %d", resp, err, received.Load(), times)
			}
			resp, err := s.get() //nolint:bodyclose // because the stream closes it
			if err != nil {
				t.Fatal(err)
			}
			s.begin(resp.Body, maxStandingEvent)
			defer s.body.Close() //nolint:errcheck // because it was read
			if data, err := s.event(); err != nil || string(data) != "{}" || received.Load() != times+1 {
				t.Errorf("the event is %q, %v, after %d requests; want it after %d", data, err, received.Load(), times+1)
			}
		})
	}
}
