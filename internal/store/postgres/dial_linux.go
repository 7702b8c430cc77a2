package postgres

import (
	"strings"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT. Package syscall has no name for it.
const tcpUserTimeout = 18

// acknowledge limits how long the server may take to acknowledge data. Keep-alives only cover connections without
// unacknowledged data. Without this limit, Linux retransmits for about 15 minutes. A kernel that does not know the
// option ignores it.
func acknowledge(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silence.Milliseconds()))
	})
}
