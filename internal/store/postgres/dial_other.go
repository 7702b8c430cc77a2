//go:build !linux

package postgres

import "syscall"

// acknowledge does nothing on this system. Only keep-alives and the timeouts of calls apply.
func acknowledge(string, string, syscall.RawConn) error { return nil }
