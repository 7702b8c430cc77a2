package netpolicy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// pieceBytes is the number of received bytes that count as a piece of work: see fairgate.Flow. A processor needs up to
// 15 microseconds for them if they are many small frames of HTTP/2.
const pieceBytes = 1 << 10

// maxHandshake is the maximum number of bytes that a server may send during a TLS handshake. Most of them are its
// certificates, which take about ten times their length while the connection is open. Capstan does not count this
// memory. Usual servers send 3 to 10 KiB, and crypto/tls accepts certificates of 256 KiB.
const maxHandshake = 64 << 10

// errHandshake means that a server sent more than maxHandshake.
var errHandshake = fmt.Errorf("the server sent more than %d KiB during the TLS handshake: let it send fewer or smaller certificates",
	maxHandshake>>10)

// The beginnings of the TLS records by which a client begins a handshake and sends its first data. TLS 1.3 may send the
// last message of the handshake as data, too. The server has then sent all of its messages.
var (
	helloRecord = []byte{22, 3, 1}
	dataRecord  = []byte{23, 3, 3}
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
	// closed is called when the connection is closed for the first time.
	closed func()
	once   sync.Once

	// pace waits after a piece of received or sent data. A server can send frames that belong to no response, such as
	// pings, and most of them need an answer. So each write counts as a piece.
	pace           func(*fairgate.Flow)
	received, sent fairgate.Flow
	// unpaced is the number of bytes that were received since the last piece.
	unpaced int

	// inHandshake is true from the first record of a TLS handshake that is sent to the first record of data. The
	// records show it because, behind a proxy, crypto/tls begins in the middle of a connection. handshake is the number
	// of bytes that were received meanwhile.
	inHandshake atomic.Bool
	handshake   int
}

// watch is the interval of the checks of a connection while it is read, and the time after which its peer counts as
// silent. A peer is gone if two checks in a row find it silent: during one check, an acknowledgement may still be on
// its way.
type watch struct{ every, silent time.Duration }

// usualWatch detects within a minute that a peer is gone.
var usualWatch = watch{every: 10 * time.Second, silent: 40 * time.Second}

// newWatchedConn returns a connection that is watched, that waits by pace, and that calls closed when it is closed. It
// returns conn itself, and calls closed at once, if the system does not report acknowledgements: that system has no
// receive buffers to share either.
func newWatchedConn(conn net.Conn, w watch, pace func(*fairgate.Flow), closed func()) net.Conn {
	if tcp, ok := conn.(syscall.Conn); ok && canWatch {
		if raw, err := tcp.SyscallConn(); err == nil {
			return &watchedConn{
				Conn: conn, watch: w, isSilent: func() bool { return isSilent(raw, w.silent) }, pace: pace, closed: closed,
			}
		}
	}
	closed()
	return conn
}

// Close closes the connection.
func (c *watchedConn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

// NetConn returns the connection that is watched.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

// Read reads from the connection. It fails as with TCP_USER_TIMEOUT if the peer is gone, and with errHandshake if the
// peer sends too much during a TLS handshake.
func (c *watchedConn) Read(b []byte) (int, error) {
	for silent := 0; ; {
		begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		if err := c.SetReadDeadline(begin.Add(c.watch.every)); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(b)
		switch {
		case n > 0, !errors.Is(err, os.ErrDeadlineExceeded):
			for c.unpaced += n; c.unpaced >= pieceBytes; c.unpaced -= pieceBytes {
				c.pace(&c.received)
			}
			if c.inHandshake.Load() {
				if c.handshake += n; c.handshake > maxHandshake {
					return 0, errHandshake
				}
			}
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

// Write writes to the connection.
func (c *watchedConn) Write(b []byte) (int, error) {
	c.pace(&c.sent)
	switch {
	case bytes.HasPrefix(b, helloRecord):
		c.inHandshake.Store(true)
	case bytes.HasPrefix(b, dataRecord):
		c.inHandshake.Store(false)
	}
	return c.Conn.Write(b)
}
