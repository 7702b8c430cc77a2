//go:build unix

package netpolicy_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
)

// TestShortageOfFiles checks that a connection fails with a *Shortage while this process has no free file descriptor,
// also if a name must be resolved for it, and that it succeeds afterwards.
func TestShortageOfFiles(t *testing.T) {
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // because the test is over
	dial := netpolicy.NewLocalPolicy().DialContext(time.Minute)
	net.DefaultResolver.PreferGo = true // as in the released programs, which are built without cgo
	defer func() { net.DefaultResolver.PreferGo = false }()
	restore := shortagetest.NoFiles(t)
	for _, address := range []string{server.Addr().String(), "model.example:443"} {
		conn, err := dial(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		if _, isShort := errors.AsType[*netpolicy.Shortage](err); !isShort {
			t.Errorf("dial %s: %v, want a *Shortage", address, err)
		}
	}
	restore()
	conn, err := dial(t.Context(), "tcp", server.Addr().String())
	if err != nil {
		t.Fatalf("after the shortage: %v", err)
	}
	_ = conn.Close()
}
