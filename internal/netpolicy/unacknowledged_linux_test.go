package netpolicy_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// TestSilentPeers checks the options of a connection by which the kernel finds out within a minute that a peer is gone
// without a sign: after a request, and while an answer is awaited.
func TestSilentPeers(t *testing.T) {
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // because the test is over
	conn, err := netpolicy.NewLocalPolicy().DialContext(time.Minute)(t.Context(), "tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // because the test is over
	raw, err := conn.(syscall.Conn).SyscallConn()
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
	if ms := option(unix.TCP_USER_TIMEOUT); ms != 60_000 {
		t.Errorf("sent data may stay unacknowledged for %d ms, want a minute", ms)
	}
	if s := option(unix.TCP_KEEPIDLE) + option(unix.TCP_KEEPINTVL)*option(unix.TCP_KEEPCNT); s != 60 {
		t.Errorf("a peer that sends nothing is found gone after %d s, want a minute", s)
	}
}
