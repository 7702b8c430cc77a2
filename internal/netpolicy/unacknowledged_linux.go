package netpolicy

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged sets the limit unacknowledged for a connection. Otherwise Linux repeats what was sent for about
// 15 minutes. It is no error if the kernel refuses.
func limitUnacknowledged(conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
}
