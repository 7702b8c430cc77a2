//go:build !linux

package netpolicy

import (
	"syscall"
	"time"
)

// canWatch is false: the system alone decides when a peer is gone.
const canWatch = false

func setReceiveBuffer(syscall.RawConn, int) {}

func isSilent(syscall.RawConn, time.Duration) bool { return false }
