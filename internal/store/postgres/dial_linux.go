package postgres

import (
	"strings"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which syscall does not name.
const tcpUserTimeout = 18

// acknowledge bounds how long the other side may take to acknowledge data; keep-alives bound only a connection without any. Without it
// Linux sends the data again for about 15 minutes. A kernel that does not know it does no harm.
func acknowledge(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silence.Milliseconds()))
	})
}
