package netpolicy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// pipes is a listener for connections within the process.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serve starts a server within the process, and returns a transport that connects to the server over one protocol, and
// the number of open connections.
func serve(t *testing.T, isHTTP2 bool, handle http.HandlerFunc) (transport *http.Transport, connections *atomic.Int64) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(isHTTP2)
	protocols.SetHTTP1(!isHTTP2)
	connections = &atomic.Int64{}
	server := &http.Server{
		Protocols: protocols, Handler: handle, ReadHeaderTimeout: time.Hour,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				connections.Add(-1)
			}
		},
	}
	listener := make(pipes)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		close(listener)
		_ = server.Close()
	})
	transport = netpolicy.Transport(netpolicy.NewLocalPolicy(), time.Minute, nil)
	transport.Protocols = protocols
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		connections.Add(1)
		listener <- server
		return client, nil
	}
	t.Cleanup(transport.CloseIdleConnections)
	return transport, connections
}

// get sends a request, and returns the body of the response.
func get(t *testing.T, transport *http.Transport) io.ReadCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://model.test/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return http.NoBody
	}
	return resp.Body
}

// TestHTTP2 checks that requests over HTTP/2 share one connection, and that the unread part of an answer is bounded,
// because it is in the memory of this process.
func TestHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, most = 50, 32 << 10
		var written atomic.Int64
		transport, connections := serve(t, true, func(w http.ResponseWriter, _ *http.Request) {
			for range 1024 {
				n, err := w.Write(make([]byte, 1<<10))
				written.Add(int64(n))
				if err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
			}
		})
		for range requests {
			defer get(t, transport).Close() //nolint:errcheck // because the test is over
		}
		synctest.Wait()
		// The server itself holds a little more than what it has sent.
		if got := written.Load(); got < requests<<10 || got > requests*(most+64<<10) {
			t.Errorf("%d bytes of %d unread answers were accepted, want at most %d of each", got, requests, most)
		}
		if n := connections.Load(); n != 1 {
			t.Errorf("%d connections for parallel requests, want one", n)
		}
	})
}

// TestIdleConnections checks that a burst of requests over HTTP/1.1 leaves a bounded number of connections, and none
// for long.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, most = 300, 256
		answer := make(chan struct{})
		transport, connections := serve(t, false, func(http.ResponseWriter, *http.Request) { <-answer })
		for range requests {
			go func() {
				body := get(t, transport)
				_, _ = io.Copy(io.Discard, body) // the connection can then be used again
				_ = body.Close()
			}()
		}
		synctest.Wait()
		if n := connections.Load(); n != requests {
			t.Errorf("%d connections for %d parallel requests, want one for each", n, requests)
		}
		close(answer)
		synctest.Wait()
		if n := connections.Load(); n == 0 || n > most {
			t.Errorf("%d idle connections, want some and at most %d", n, most)
		}
		time.Sleep(2 * time.Minute) // of virtual time
		synctest.Wait()
		if n := connections.Load(); n != 0 {
			t.Errorf("%d connections after two idle minutes, want none", n)
		}
	})
}

// TestResponseHeaders checks the bound of the headers of a response.
func TestResponseHeaders(t *testing.T) {
	for _, isHTTP2 := range []bool{false, true} {
		for kib, accepted := range map[int]bool{12: true, 20: false} {
			t.Run(fmt.Sprintf("%d KiB, HTTP/2 %t", kib, isHTTP2), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					transport, _ := serve(t, isHTTP2, func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("X-Long", strings.Repeat("x", kib<<10))
					})
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://model.test/", http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					resp, err := transport.RoundTrip(req)
					if err == nil {
						_ = resp.Body.Close()
					}
					if (err == nil) != accepted {
						t.Errorf("RoundTrip: %v, want the headers accepted: %t", err, accepted)
					}
				})
			})
		}
	}
}
