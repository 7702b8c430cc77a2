package postgres

import (
	"strings"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT. Package syscall has no name for it.
const tcpUserTimeout = 18

// limitUnacknowledged limits how long the server may leave data unacknowledged. Keep-alives only detect the loss of
// connections without unacknowledged data. Without this limit, Linux retransmits data for about 15 minutes. A kernel
// that does not know the option ignores it.
func limitUnacknowledged(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silence.Milliseconds()))
	})
}
