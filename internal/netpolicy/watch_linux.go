package netpolicy

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// canWatch is true because Linux says what a peer has acknowledged.
const canWatch = true

// isSilent reports whether the peer of a connection has acknowledged nothing for some time, although something was sent
// again, or the peer was asked whether it reads again.
func isSilent(conn syscall.RawConn, limit time.Duration) bool {
	var info *unix.TCPInfo
	err := conn.Control(func(fd uintptr) {
		info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return err == nil && info != nil && isSilentInfo(info, limit)
}

// isSilentInfo is isSilent for what the kernel knows about a connection.
func isSilentInfo(info *unix.TCPInfo, limit time.Duration) bool {
	since := time.Duration(info.Last_ack_recv) * time.Millisecond
	return (info.Retransmits > 0 || info.Probes > 0) && since >= limit
}
