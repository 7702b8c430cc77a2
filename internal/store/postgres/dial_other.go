//go:build !linux

package postgres

import "syscall"

// acknowledge sets nothing: keep-alives and the time-outs of calls must do.
func acknowledge(string, string, syscall.RawConn) error { return nil }
