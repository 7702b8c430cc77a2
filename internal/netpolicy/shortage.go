package netpolicy

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
)

// Shortage means that no connection was made because this process or its machine had no resources for one. Nothing was
// sent, and it says nothing about the server.
type Shortage struct {
	number syscall.Errno
	err    error
}

// shortages are the numbers of the errors that are a shortage on this machine.
var shortages = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM}

// WithShortage returns the error of a dialer, as a *Shortage if it is one.
func WithShortage(err error) error {
	number, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		number, ok = hiddenNumber(err)
	}
	if !ok || !slices.Contains(shortages, number) || number == syscall.EADDRNOTAVAIL && !isIPv4(err) {
		return err
	}
	return &Shortage{number: number, err: err}
}

// hiddenNumber returns the number of the error of the socket for a DNS query. net.DNSError has only its text.
func hiddenNumber(err error) (number syscall.Errno, ok bool) {
	lookup, ok := errors.AsType[*net.DNSError](err)
	if !ok {
		return 0, false
	}
	i := slices.IndexFunc(shortages, func(n syscall.Errno) bool { return strings.HasSuffix(lookup.Err, n.Error()) })
	if i < 0 {
		return 0, false
	}
	return shortages[i], true
}

// isIPv4 reports whether a connection to an IPv4 address failed. Over IPv4, EADDRNOTAVAIL means that all local ports
// are in use. Over IPv6, it may also mean that this machine has no IPv6 address, which does not pass.
func isIPv4(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return false
	}
	to, ok := op.Addr.(*net.TCPAddr)
	return ok && to.IP.To4() != nil
}

// Error returns the message, which says what to do.
func (s *Shortage) Error() string {
	switch s.number {
	case syscall.EMFILE:
		return "this process has no free file descriptor for a connection: raise its limit of open files (ulimit -n, or " +
			"LimitNOFILE of the container runtime), or run fewer turns at the same time"
	case syscall.ENFILE:
		return "this machine has no free file descriptor for a connection: raise its sysctl fs.file-max, or stop the process " +
			"that has the most open files"
	case syscall.EADDRNOTAVAIL:
		return "this machine has no free local port for a connection: widen its sysctl net.ipv4.ip_local_port_range, or run " +
			"fewer turns at the same time"
	default:
		return "the kernel of this machine has no memory for a connection (" + s.number.Error() + "): raise the memory limit of " +
			"this process, or free memory on the machine"
	}
}

// Unwrap returns the error of the connection.
func (s *Shortage) Unwrap() error { return s.err }
