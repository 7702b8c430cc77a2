package manager

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestConnectionToADeadAPIServer checks that a client uses a new connection soon after its connection has become
// silent, as after the loss of one of several API servers. client-go alone takes 45 seconds.
func TestConnectionToADeadAPIServer(t *testing.T) {
	for _, name := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		t.Setenv(name, "") // restores the value after the test
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := pingConnections(); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request used %s, want HTTP/2", r.Proto)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"major":"1","minor":"37"}`)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	p := &freezingProxy{to: s.Listener.Addr().String()}
	cfg := &rest.Config{
		Host: "https://" + p.start(t), TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: 3 * time.Second,
	}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.Discovery().ServerVersion(); err != nil {
		t.Fatal(err)
	}
	p.freeze()
	const most = 8 // requests, which fail after 3 seconds each: less than the 45 seconds of client-go
	for failed := 0; ; failed++ {
		if _, err := clients.Discovery().ServerVersion(); err == nil {
			if failed == 0 {
				t.Error("the first request after the loss succeeded, so the connection was not lost")
			}
			return
		}
		if failed == most {
			t.Fatalf("%d requests failed, although new connections would work", failed)
		}
	}
}

// TestConnectionChecksOfTheUser checks that values which the user has set count.
func TestConnectionChecksOfTheUser(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "7")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "8")
	if err := pingConnections(); err != nil {
		t.Fatal(err)
	}
	if idle, ping := os.Getenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS"), os.Getenv("HTTP2_PING_TIMEOUT_SECONDS"); idle != "7" || ping != "8" {
		t.Errorf("the time limits are %s and %s seconds, want those that were set", idle, ping)
	}
}

// freezingProxy forwards connections to an address.
type freezingProxy struct {
	to     string
	frozen atomic.Int64 // number of connections from the first one that forward nothing any more
	all    atomic.Int64 // number of connections
}

// start returns the address of the proxy.
func (p *freezingProxy) start(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = client.Close()
				continue
			}
			context.AfterFunc(ctx, func() {
				_ = client.Close()
				_ = server.Close()
			})
			number := p.all.Add(1)
			go p.forward(server, client, number)
			go p.forward(client, server, number)
		}
	}()
	return l.Addr().String()
}

// forward forwards what it reads, and drops it after the connection was frozen. The connection stays open.
func (p *freezingProxy) forward(to io.Writer, from io.Reader, number int64) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if number <= p.frozen.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// freeze makes the existing connections forward nothing any more. They stay open.
func (p *freezingProxy) freeze() { p.frozen.Store(p.all.Load()) }
