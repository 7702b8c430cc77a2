package netpolicy_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// portsChild is the environment variable that makes this process the child of TestShortageOfPorts.
const portsChild = "CAPSTAN_TEST_WITHOUT_PORTS"

// TestShortageOfPorts checks that a connection fails with a *Shortage while all local ports are in use. It runs in a
// network namespace of its own, which has few ports. It is skipped if this process may not create one.
func TestShortageOfPorts(t *testing.T) {
	if os.Getenv(portsChild) != "" {
		useUpPorts(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestShortageOfPorts$", "-test.v")
	cmd.Env = append(os.Environ(), portsChild+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.ProcessState == nil:
		t.Skip(err)
	case err != nil:
		t.Fatalf("in a namespace with few ports: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	}
}

// useUpPorts connects to a server until no local port is left, and once more.
func useUpPorts(t *testing.T) {
	t.Helper()
	if err := startLoopback(); err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40003"), 0); err != nil {
		t.Skip(err)
	}
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:50000")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // because the test is over
	dial := netpolicy.NewLocalPolicy().DialContext(time.Minute)
	for range 4 {
		conn, err := dial(t.Context(), "tcp", server.Addr().String())
		if err != nil {
			t.Fatalf("while ports are free: %v", err)
		}
		defer conn.Close() //nolint:errcheck // because the test is over
	}
	conn, err := dial(t.Context(), "tcp", server.Addr().String())
	if err == nil {
		_ = conn.Close()
	}
	short, isShort := errors.AsType[*netpolicy.Shortage](err)
	if !isShort || !strings.Contains(short.Error(), "net.ipv4.ip_local_port_range") || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("without a free port: %v, want a *Shortage with the remedy", err)
	}
}

// startLoopback starts the loopback interface, which is down in a new namespace.
func startLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket) //nolint:errcheck // because it was not used for data
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo)
}
