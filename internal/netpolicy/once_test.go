package netpolicy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/http2test"
)

// send sends a request, and returns the status of the response.
func send(t *testing.T, transport http.RoundTripper, method, url, body string) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // because it was read
	if _, err = io.ReadAll(resp.Body); err != nil {
		t.Errorf("the body of the response: %v", err)
	}
	return resp.StatusCode, nil
}

// TestBounded checks that a request is sent once more over HTTP/2 if the server has not processed it, but never
// a third time. After PROTOCOL_ERROR, the server may have processed it, so only a request without a body is sent again.
func TestBounded(t *testing.T) {
	const first = "the first request shows that the server uses HTTP/2"
	done := http2test.Response{Status: http.StatusOK, ContentType: "text/plain", Body: "done"}
	refusals := map[string]http2test.Response{
		"PROTOCOL_ERROR": {Reset: http2.ErrCodeProtocol}, "REFUSED_STREAM": {Reset: http2.ErrCodeRefusedStream}, "GOAWAY": {GoAway: true},
	}
	for name, refusal := range refusals {
		const unclear, unprocessed = "the server ended the HTTP/2 stream or connection after the whole request was sent",
			"the server refused the HTTP/2 stream, or is closing the connection, without processing the request"
		afterOne, afterTwo, sentPosts := "", unprocessed, int32(2) // of requests with a body
		if refusal.Reset == http2.ErrCodeProtocol {
			afterOne, afterTwo, sentPosts = unclear, unclear, 1
		}
		for _, tc := range []struct {
			method, body  string
			refused, sent int32
			failure       string // is empty if the last request is processed
		}{
			{http.MethodPost, "once", 1, sentPosts, afterOne},
			{http.MethodPost, "once", sentPosts, sentPosts, afterTwo},
			{http.MethodGet, "", 1, 2, ""},
			{http.MethodGet, "", 2, 2, unclear},
		} {
			t.Run(fmt.Sprintf("%s, %s refused %d times", name, tc.method, tc.refused), func(t *testing.T) {
				var received atomic.Int32
				url, certificate := http2test.Serve(t, func(_ string, body []byte) http2test.Response {
					if string(body) == first {
						return done
					}
					if string(body) != tc.body {
						t.Errorf("the body is %q, want the whole one", body)
					}
					if received.Add(1) <= tc.refused {
						return refusal
					}
					return done
				})
				certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
				if err != nil {
					t.Fatal(err)
				}
				transport := netpolicy.Transport(netpolicy.NewLocalPolicy(), time.Minute, certificates)
				defer transport.CloseIdleConnections()
				bounded := netpolicy.NewBounded(transport)
				if status, err := send(t, bounded, http.MethodPost, url, first); err != nil || status != http.StatusOK {
					t.Fatalf("the first request: %d, %v; want status 200", status, err)
				}
				status, err := send(t, bounded, tc.method, url, tc.body)
				isExpected := err == nil && status == http.StatusOK
				if tc.failure != "" {
					isExpected = err != nil && netpolicy.Cause(err) == tc.failure
				}
				if !isExpected || received.Load() != tc.sent {
					t.Errorf("the response is %d, %v, and the server has received %d requests; want the failure %q and %d requests",
						status, err, received.Load(), tc.failure, tc.sent)
				}
				if status, err := send(t, bounded, tc.method, url, tc.body); err != nil || status != http.StatusOK {
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
			bounded := netpolicy.NewBounded(transport)
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
				if status, err := send(t, bounded, method, web.URL, body); err != nil || status != http.StatusOK {
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

// TestRefusedRequestThatCannotBeSentAgain checks that the outcome of a request is known if the server refuses it
// because it restarts, and then accepts no connection, or does not speak TLS: nothing was done.
func TestRefusedRequestThatCannotBeSentAgain(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for name, tc := range map[string]struct {
		again dial
		cause string
	}{
		"no connection": {
			func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }, syscall.ECONNREFUSED.Error(),
		},
		"no TLS": {func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, plain.Listener.Addr().String())
		}, "tls: the server does not speak TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			url, certificate := http2test.Serve(t, func(_ string, body []byte) http2test.Response {
				return http2test.Response{Status: http.StatusOK, GoAway: string(body) == "refused"}
			})
			bounded := boundedTo(t, certificate, tc.again)
			if _, err := send(t, bounded, http.MethodPost, url, "first"); err != nil {
				t.Fatal(err)
			}
			_, err := send(t, bounded, http.MethodPost, url, "refused")
			if !errors.Is(err, netpolicy.ErrUnprocessed) || netpolicy.Cause(err) != tc.cause {
				t.Errorf("the error is %v, want that nothing was processed, because of %q", err, tc.cause)
			}
		})
	}
}

// TestRequestsOfABurstHaveAnOutcome checks that, if a server often closes a connection with GOAWAY while many requests
// use it, each request is processed once and succeeds, or is known to be unprocessed.
func TestRequestsOfABurstHaveAnOutcome(t *testing.T) {
	var received, processed, succeeded, unprocessed atomic.Int32
	url, certificate := http2test.Serve(t, func(string, []byte) http2test.Response {
		if received.Add(1)%7 == 0 {
			return http2test.Response{GoAway: true}
		}
		processed.Add(1)
		return http2test.Response{Status: http.StatusOK}
	})
	bounded := boundedTo(t, certificate, nil)
	if _, err := send(t, bounded, http.MethodPost, url, "first"); err != nil {
		t.Fatal(err)
	}
	processed.Store(0)
	var senders sync.WaitGroup
	for range 20 {
		senders.Go(func() {
			for range 50 {
				switch _, err := send(t, bounded, http.MethodPost, url, "one of a burst"); {
				case err == nil:
					succeeded.Add(1)
				case errors.Is(err, netpolicy.ErrUnprocessed):
					unprocessed.Add(1)
				default:
					t.Errorf("the outcome is unknown: %v", err)
				}
			}
		})
	}
	senders.Wait()
	if processed.Load() != succeeded.Load() || succeeded.Load()+unprocessed.Load() != 1000 {
		t.Errorf("%d requests were processed, %d succeeded and %d are known to be unprocessed; want each of 1000 in one group",
			processed.Load(), succeeded.Load(), unprocessed.Load())
	}
}

// dial makes a connection.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// boundedTo returns a transport that makes its connections after the first one with again, unless that is nil.
func boundedTo(t *testing.T, certificate string, again dial) *netpolicy.Bounded {
	t.Helper()
	certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
	if err != nil {
		t.Fatal(err)
	}
	transport := netpolicy.Transport(netpolicy.NewLocalPolicy(), time.Minute, certificates)
	t.Cleanup(transport.CloseIdleConnections)
	var dialed atomic.Bool
	first := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialed.Swap(true) && again != nil {
			return again(ctx, network, address)
		}
		return first(ctx, network, address)
	}
	return netpolicy.NewBounded(transport)
}
