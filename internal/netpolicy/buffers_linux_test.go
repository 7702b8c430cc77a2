package netpolicy

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// emptyCluster has no addresses.
type emptyCluster struct{}

func (emptyCluster) Find(context.Context, netip.Addr) (*Range, error) { return nil, nil }

func (emptyCluster) Serves(context.Context, string, string, netip.Addr) (bool, error) {
	return false, nil
}

// TestReceiveBuffer checks the receive buffers of real connections, and that connections that failed or were closed,
// even twice, do not count.
func TestReceiveBuffer(t *testing.T) {
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // because the test is over
	// The kernel may reduce a size to its own limit. It reports twice the size.
	sizeOf := func(conn net.Conn) (size int) {
		t.Helper()
		raw, err := conn.(*watchedConn).NetConn().(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		err = raw.Control(func(fd uintptr) { size, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
		if err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		return size
	}
	all := NewLocalPolicy().ForCluster(emptyCluster{})
	p := all.ForNamespace("greedy")
	dial := func() net.Conn {
		t.Helper()
		conn, err := p.DialContext(time.Minute)(t.Context(), "tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 600 {
		all.buffers.enter("greedy")
	}
	conn := dial()
	if got := sizeOf(conn); got != 2*minBuffer {
		t.Errorf("with 600 connections, a new one has a receive buffer of %d bytes, want %d", got, 2*minBuffer)
	}
	for range 2 {
		_ = conn.Close() // the second time, it is closed already
	}
	if _, err := p.DialContext(time.Minute)(t.Context(), "tcp", "169.254.169.254:80"); err == nil {
		t.Error("a refused address was dialled")
	}
	if n := all.buffers.open["greedy"]; n != 600 {
		t.Errorf("after a failure and a close, %d connections are open, want the 600 from before", n)
	}
	for range 600 {
		all.buffers.leave("greedy")
	}
	conn = dial()
	defer conn.Close() //nolint:errcheck // because the test is over
	if got := sizeOf(conn); got <= 2*minBuffer {
		t.Errorf("the only connection has a receive buffer of %d bytes, want more than %d", got, 2*minBuffer)
	}
}
