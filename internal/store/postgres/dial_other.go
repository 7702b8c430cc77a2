//go:build !linux

package postgres

import "syscall"

// limitUnacknowledged does nothing, because Capstan sets the option only on Linux. On other systems, only keep-alives
// and the timeouts of calls end a connection whose data is not acknowledged.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
