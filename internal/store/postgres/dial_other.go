//go:build !linux

package postgres

import "syscall"

// limitUnacknowledged does nothing on this system, which has no such option. Only keep-alives and the timeouts of calls
// end a connection whose data is not acknowledged.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
