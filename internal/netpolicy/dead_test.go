package netpolicy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// TestDeadConnection checks that a request over HTTP/2 does not wait for a peer that is gone and has not closed the
// connection.
func TestDeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := netpolicy.Transport(netpolicy.NewLocalPolicy(), time.Minute, nil)
		defer transport.CloseIdleConnections()
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			go func() { _, _ = server.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) }() // empty settings
			return client, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://model.test/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if took := time.Since(begin); err == nil || took > time.Minute {
			t.Errorf("the request ended after %s: %v; want an error within a minute", took, err)
		}
	})
}
