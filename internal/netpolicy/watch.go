package netpolicy

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// watchedConn ends a connection whose peer no longer acknowledges sent data. Linux alone would send the data again for
// about 15 minutes. The option TCP_USER_TIMEOUT of Linux is not a solution: it would also end a connection whose peer
// acknowledges all data but does not read for a while, such as a server that is busy with other prompts. The request
// would then be sent, and billed, again.
//
// The watch sets the read deadline, so a caller must not set it. A caller ends a Read by closing the connection.
type watchedConn struct {
	net.Conn
	watch watch
	// isSilent reports whether the peer has acknowledged nothing for watch.silent, although it must acknowledge data.
	isSilent func() bool
}

// watch is the interval of the checks of a connection while it is read, and the time after which its peer counts as
// silent. A peer is gone if two checks in a row find it silent: during one check, an acknowledgement may still be on
// its way.
type watch struct{ every, silent time.Duration }

// usualWatch detects within a minute that a peer is gone.
var usualWatch = watch{every: 10 * time.Second, silent: 40 * time.Second}

// newWatchedConn returns a connection that is watched, or conn itself if the system does not report acknowledgements.
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
