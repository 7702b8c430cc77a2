package netpolicy

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// watchedConn ends a connection whose peer no longer acknowledges what was sent. Otherwise Linux repeats it for about
// 15 minutes. Its option TCP_USER_TIMEOUT is no remedy. It also ends a connection whose peer acknowledges everything
// but does not read for a while, such as a server that is busy with other prompts. That request would be sent, and
// billed, again.
//
// The deadline for reading is that of the watch. A caller ends a Read by closing the connection.
type watchedConn struct {
	net.Conn
	watch watch
	// isSilent reports whether the peer has acknowledged nothing for watch.silent, although it should have.
	isSilent func() bool
}

// watch says how often a connection is checked while it is read, and when its peer counts as silent. A peer is gone if
// two checks find it silent: an acknowledgement may be under way during one.
type watch struct{ every, silent time.Duration }

// usualWatch finds out within a minute that a peer is gone.
var usualWatch = watch{every: 10 * time.Second, silent: 40 * time.Second}

// newWatchedConn returns a connection that is watched, or conn itself if the system does not say what was acknowledged.
func newWatchedConn(conn net.Conn, w watch) net.Conn {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil || !canWatch {
		return conn
	}
	return &watchedConn{Conn: conn, watch: w, isSilent: func() bool { return isSilent(raw, w.silent) }}
}

// NetConn returns the connection that is watched.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

// Read reads from the connection. It fails as with TCP_USER_TIMEOUT if the peer is gone.
func (c *watchedConn) Read(b []byte) (int, error) {
	for silent := 0; ; {
		begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		if err := c.SetReadDeadline(begin.Add(c.watch.every)); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(b)
		switch {
		case n > 0, !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case !c.isSilent():
			silent = 0
		case silent > 0:
			return 0, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
		default:
			silent++
		}
	}
}
