package netpolicy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestWithShortage checks which errors of a dialer are a shortage of this machine, and that the messages name a remedy.
func TestWithShortage(t *testing.T) {
	dial := func(to string, number syscall.Errno) error {
		return &net.OpError{
			Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(to), Port: 443}, Err: os.NewSyscallError("connect", number),
		}
	}
	lookup := func(text string) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: text, Name: "model.example"}}
	}
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   string // a part of the message, or empty if it is no shortage
	}{
		"EMFILE":          {"the limit of the process", dial("192.0.2.1", syscall.EMFILE), "raise its limit of open files (ulimit -n"},
		"EMFILE, wrapped": {"errors have many layers", fmt.Errorf("dial: %w", dial("2001:db8::1", syscall.EMFILE)), "ulimit -n"},
		"ENFILE":          {"the limit of the machine", dial("192.0.2.1", syscall.ENFILE), "fs.file-max"},
		"EADDRNOTAVAIL":   {"all ports are in use", dial("192.0.2.1", syscall.EADDRNOTAVAIL), "net.ipv4.ip_local_port_range"},
		"EADDRNOTAVAIL over IPv6": {
			"the machine may have no IPv6 address, so another endpoint must be tried", dial("2001:db8::1", syscall.EADDRNOTAVAIL), "",
		},
		"ENOBUFS": {"memory of the kernel", dial("192.0.2.1", syscall.ENOBUFS), "memory"},
		"ENOMEM":  {"memory of the kernel", dial("192.0.2.1", syscall.ENOMEM), "memory"},
		"EMFILE of a lookup": {
			"net.DNSError has only the text", lookup("dial udp 10.96.0.10:53: socket: too many open files"), "ulimit -n",
		},
		"ECONNREFUSED":          {"the server refuses", dial("192.0.2.1", syscall.ECONNREFUSED), ""},
		"ENETUNREACH":           {"no route to the server", dial("192.0.2.1", syscall.ENETUNREACH), ""},
		"no such host":          {"the name is wrong", lookup("no such host"), ""},
		"a refusal of a lookup": {"the DNS server fails", lookup("read udp 10.96.0.10:53: connection refused"), ""},
		"none":                  {"another error", errors.New("too many open files"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := WithShortage(tc.err)
			short, isShort := errors.AsType[*Shortage](got)
			if isShort != (tc.want != "") || isShort && !strings.Contains(short.Error(), tc.want) || !errors.Is(got, tc.err) {
				t.Errorf("got %v, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}
