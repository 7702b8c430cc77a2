//go:build !linux

package netpolicy

import (
	"syscall"
	"time"
)

// canWatch is false because the limit is left to the system.
const canWatch = false

func isSilent(syscall.RawConn, time.Duration) bool { return false }
