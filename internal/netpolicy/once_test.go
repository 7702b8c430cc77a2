package netpolicy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/http2test"
)

// send sends a request with RoundTripBounded, and returns the status of the response.
func send(t *testing.T, transport *http.Transport, method, url, body string) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := netpolicy.RoundTripBounded(transport, req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // because it was read
	if _, err = io.ReadAll(resp.Body); err != nil {
		t.Errorf("the body of the response: %v", err)
	}
	return resp.StatusCode, nil
}

// TestRoundTripBounded checks that a request with a body is not sent again over HTTP/2 after the server has received
// all of it, and that a request without a body is sent once more, because the server may not have processed it.
func TestRoundTripBounded(t *testing.T) {
	refusals := map[string]http2test.Response{
		"PROTOCOL_ERROR": {Reset: http2.ErrCodeProtocol}, "REFUSED_STREAM": {Reset: http2.ErrCodeRefusedStream}, "GOAWAY": {GoAway: true},
	}
	for name, refusal := range refusals {
		for _, tc := range []struct {
			method, body    string
			refused, sent   int32
			mustBeProcessed bool
		}{
			{http.MethodPost, "once", 1, 1, false},
			{http.MethodGet, "", 1, 2, true},
			{http.MethodGet, "", 2, 2, false},
		} {
			t.Run(fmt.Sprintf("%s, %s refused %d times", name, tc.method, tc.refused), func(t *testing.T) {
				var received atomic.Int32
				url, certificate := http2test.Serve(t, func(_ string, body []byte) http2test.Response {
					if string(body) != tc.body {
						t.Errorf("the body is %q, want the whole one", body)
					}
					if received.Add(1) <= tc.refused {
						return refusal
					}
					return http2test.Response{Status: http.StatusOK, ContentType: "text/plain", Body: "done"}
				})
				certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
				if err != nil {
					t.Fatal(err)
				}
				transport := netpolicy.Transport(netpolicy.NewLocalPolicy(), time.Minute, certificates)
				defer transport.CloseIdleConnections()
				const reason = "the server ended the HTTP/2 stream or connection after the whole request was sent"
				status, err := send(t, transport, tc.method, url, tc.body)
				isExpected := err == nil && status == http.StatusOK
				if !tc.mustBeProcessed {
					isExpected = err != nil && netpolicy.Cause(err) == reason
				}
				if !isExpected || received.Load() != tc.sent {
					t.Errorf("the response is %d, %v, and the server has received %d requests; want success %t and %d requests",
						status, err, received.Load(), tc.mustBeProcessed, tc.sent)
				}
				if status, err := send(t, transport, tc.method, url, tc.body); err != nil || status != http.StatusOK {
					t.Errorf("the next request: %d, %v; want status 200", status, err)
				}
			})
		}
	}
}

// brokenConn is a connection on which nothing can be written once it is broken.
type brokenConn struct {
	net.Conn
	broken *atomic.Bool
}

// Write writes to the connection unless it is broken.
func (c *brokenConn) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(b)
}

// TestUnsentRequestIsSentAgain checks that a request of which nothing was written is sent on another connection: over
// HTTP/1, a server may close a connection at the moment when it is used again.
func TestUnsentRequestIsSentAgain(t *testing.T) {
	for method, body := range map[string]string{http.MethodPost: "once", http.MethodGet: ""} {
		t.Run(method, func(t *testing.T) {
			var received, dialed atomic.Int32
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				received.Add(1)
				_, _ = io.Copy(w, r.Body) // the client checks that it arrives
			}))
			defer web.Close()
			transport := netpolicy.Transport(netpolicy.NewLocalPolicy(), time.Minute, nil)
			defer transport.CloseIdleConnections()
			dial := transport.DialContext
			var broken atomic.Bool
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				if err == nil && dialed.Add(1) == 1 {
					conn = &brokenConn{conn, &broken}
				}
				return conn, err
			}
			for range 2 {
				if status, err := send(t, transport, method, web.URL, body); err != nil || status != http.StatusOK {
					t.Fatalf("the response is %d, %v; want status 200", status, err)
				}
				broken.Store(true)
			}
			if received.Load() != 2 || dialed.Load() != 2 {
				t.Errorf("%d requests on %d connections, want 2 on 2", received.Load(), dialed.Load())
			}
		})
	}
}
