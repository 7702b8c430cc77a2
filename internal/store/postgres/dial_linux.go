package postgres

import (
	"strings"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT. Package syscall has no name for it.
const tcpUserTimeout = 18

// limitUnacknowledged limits how long the server may leave data unacknowledged. Without this limit, Linux retransmits
// data for about 15 minutes. Keep-alives do not help, because they detect a lost connection only if it has no
// unacknowledged data. An error is ignored, because some systems do not support the option.
func limitUnacknowledged(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(maxSilence.Milliseconds()))
	})
}
