package webserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/webserver"
)

// listen starts a server with a limit of connections, and returns its address.
func listen(t *testing.T, most int) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := webserver.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	go func() { _ = server.Serve(webserver.Limit(l, most)) }()
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String()
}

// client is a connection from an address of this machine.
type client struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, from, to string) client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{conn, bufio.NewReader(conn)}
}

// ask sends a request with a header of this length, and returns the status of the response, or 0 if the server has
// closed the connection.
func (c client) ask(t *testing.T, header int) int {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: test\r\nX-Long: %s\r\n\r\n", strings.Repeat("x", header)); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close() //nolint:errcheck // because the test is over
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestLimit checks that an address with many connections loses its oldest to an address with fewer, and that nobody
// else does.
func TestLimit(t *testing.T) {
	const most = 8
	to := listen(t, most)
	var greedy []client
	for range most {
		c := dial(t, "127.0.0.2", to)
		if got := c.ask(t, 0); got != http.StatusOK {
			t.Fatalf("a connection within the limit: status %d", got)
		}
		greedy = append(greedy, c)
	}
	if got := dial(t, "127.0.0.2", to).ask(t, 0); got != 0 {
		t.Errorf("a connection beyond the limit: status %d, want it closed", got)
	}
	prober := dial(t, "127.0.0.3", to)
	if got := prober.ask(t, 0); got != http.StatusOK {
		t.Errorf("the first connection of another address: status %d", got)
	}
	if got := greedy[0].ask(t, 0); got != 0 {
		t.Errorf("the oldest connection of the greedy address: status %d, want it closed", got)
	}
	if got := dial(t, "127.0.0.2", to).ask(t, 0); got != 0 {
		t.Errorf("another connection of the greedy address: status %d, want it closed", got)
	}
	for i, c := range append(greedy[1:], prober) {
		if got := c.ask(t, 0); got != http.StatusOK {
			t.Errorf("connection %d: status %d, want it open", i, got)
		}
	}
	// Connections that clients have closed are free again.
	for _, c := range greedy {
		_ = c.Close()
	}
	for i := 0; dial(t, "127.0.0.4", to).ask(t, 0) != http.StatusOK; i++ {
		if i == 1000 {
			t.Fatal("closed connections still count")
		}
	}
}

// TestLongHeaders checks the bound of the headers of a request.
func TestLongHeaders(t *testing.T) {
	to := listen(t, 8)
	if got := dial(t, "127.0.0.1", to).ask(t, 12<<10); got != http.StatusOK {
		t.Errorf("headers of 12 KiB: status %d, want %d", got, http.StatusOK)
	}
	if got := dial(t, "127.0.0.1", to).ask(t, 24<<10); got != http.StatusRequestHeaderFieldsTooLarge && got != 0 {
		t.Errorf("headers of 24 KiB: status %d, want %d", got, http.StatusRequestHeaderFieldsTooLarge)
	}
}
