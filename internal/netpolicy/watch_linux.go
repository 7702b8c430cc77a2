package netpolicy

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// canWatch is true because Linux reports when a peer has acknowledged data.
const canWatch = true

// isSilent reports whether the peer of a connection has acknowledged nothing for at least limit, while the kernel
// retransmits data or probes a zero window.
func isSilent(conn syscall.RawConn, limit time.Duration) bool {
	var info *unix.TCPInfo
	err := conn.Control(func(fd uintptr) {
		info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return err == nil && info != nil && isSilentInfo(info, limit)
}

// setReceiveBuffer sets the size of the receive buffer of a socket, unless size is 0. The kernel reserves up to twice
// the size, for its own data. An error is ignored: the kernel then decides, as without this call.
func setReceiveBuffer(socket syscall.RawConn, size int) {
	if size > 0 {
		_ = socket.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, size) })
	}
}

// isSilentInfo is isSilent for the kernel's information about a connection.
func isSilentInfo(info *unix.TCPInfo, limit time.Duration) bool {
	since := time.Duration(info.Last_ack_recv) * time.Millisecond
	return (info.Retransmits > 0 || info.Probes > 0) && since >= limit
}
