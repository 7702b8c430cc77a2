package netpolicy

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSilentInfo checks which information of the kernel means that a peer is silent.
func TestSilentInfo(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		info   unix.TCPInfo
		want   bool
	}{
		"sent again":        {"nothing was acknowledged", unix.TCPInfo{Retransmits: 5, Last_ack_recv: 40_000}, true},
		"sent again lately": {"an acknowledgement may still arrive", unix.TCPInfo{Retransmits: 5, Last_ack_recv: 39_999}, false},
		"full window, gone": {"the peer is gone", unix.TCPInfo{Probes: 1, Last_ack_recv: 90_000}, true},
		"a full window":     {"the peer has answered the last probe", unix.TCPInfo{Backoff: 9, Last_ack_recv: 90_000}, false},
		"idle":              {"nothing was sent", unix.TCPInfo{Last_ack_recv: 90_000}, false},
	} {
		if got := isSilentInfo(&tc.info, usualWatch.silent); got != tc.want {
			t.Errorf("%s: silent %t, want %t: %s", name, got, tc.want, tc.reason)
		}
	}
}

// TestServerThatReadsLate sends a long prompt to a server that does not read it for a while. The times of the watch are
// short, but longer than the first pauses between two probes of a full window: a receiver ignores probes that follow
// each other quickly.
func TestServerThatReadsLate(t *testing.T) {
	t.Parallel()
	w := watch{every: 50 * time.Millisecond, silent: 1500 * time.Millisecond}
	full := make(chan struct{})
	var checks, requests atomic.Int64
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		<-full
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != longPrompt {
			t.Errorf("the server read %d bytes: %v", n, err)
		}
		rw.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close() //nolint:errcheck // because the test is over
	dial := NewLocalPolicy().dialer(time.Minute, w, nil)
	transport := Transport(NewLocalPolicy(), time.Minute, nil)
	defer transport.CloseIdleConnections()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if c, ok := conn.(*watchedConn); ok {
			check := c.isSilent
			c.isSilent = func() bool {
				// By now the server has not read for several intervals of the watch, and the kernel has sent probes.
				if checks.Add(1) == 100 {
					close(full)
				}
				return check()
			}
		}
		return conn, err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String(),
		io.LimitReader(zeros{}, longPrompt))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = longPrompt
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("RoundTrip: %v, want the answer of a server that reads late", err)
	}
	_ = resp.Body.Close()
	if n := requests.Load(); n != 1 || resp.StatusCode != http.StatusNoContent {
		t.Errorf("%d requests, status %d; want one", n, resp.StatusCode)
	}
}

// longPrompt is the size of a prompt that the buffers of the kernel do not hold.
const longPrompt = 32 << 20

// zeros is a reader without an end.
type zeros struct{}

// Read fills b.
func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestSilentPeers checks the options of a connection by which the kernel finds out within a minute that a peer is gone
// while an answer is awaited, and that the kernel does not end a connection whose peer does not read.
func TestSilentPeers(t *testing.T) {
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // because the test is over
	conn, err := NewLocalPolicy().DialContext(time.Minute)(t.Context(), "tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // because the test is over
	raw, err := conn.(*watchedConn).NetConn().(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(name int) (value int) {
		t.Helper()
		var failed error
		err := raw.Control(func(fd uintptr) { value, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) })
		if err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		return value
	}
	if ms := option(unix.TCP_USER_TIMEOUT); ms != 0 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms, want 0: the kernel must not end the connection", ms)
	}
	if s := option(unix.TCP_KEEPIDLE) + option(unix.TCP_KEEPINTVL)*option(unix.TCP_KEEPCNT); s != 60 {
		t.Errorf("a gone peer of an idle connection is detected after %d s, want 60", s)
	}
	if took := usualWatch.silent + 2*usualWatch.every; took > time.Minute {
		t.Errorf("a peer that acknowledges nothing is detected after %s, want at most a minute", took)
	}
}
