//go:build unix

package postgrestest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// LoseAnswer is a payload. If the field Lose of a Proxy is true, the proxy loses the response to this payload.
const LoseAnswer = "lose the answer to this"

// Proxy forwards connections between a store and a server, until the test ends. It is safe for concurrent use.
type Proxy struct {
	// URL is the URL of the database at the proxy.
	URL string
	// Lose closes the connection instead of forwarding the next response to LoseAnswer, and is then false. Lost is the
	// number of lost responses.
	Lose atomic.Bool
	Lost atomic.Int64
	// Requests is the number of reads from clients, each of which is one round trip.
	Requests atomic.Int64

	target   atomic.Pointer[[2]string] // the network and the address for new connections
	frozen   atomic.Int64              // number of calls of Freeze
	over     chan struct{}             // closed by Shut
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	group    sync.WaitGroup
}

// NewProxy starts a proxy to the server of a database. Pools with its URL have one connection.
func NewProxy(tb testing.TB, databaseURL string) *Proxy {
	tb.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		tb.Fatal("the server under test has a bad URL")
	}
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: listener.Addr().String(),
		Path: "/" + config.Database, RawQuery: "sslmode=disable&pool_max_conns=1",
	}
	p := &Proxy{URL: u.String(), listener: listener, over: make(chan struct{})}
	p.DirectTo(tb, databaseURL)
	p.group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			to := p.target.Load()
			server, err := (&net.Dialer{}).DialContext(context.WithoutCancel(tb.Context()), to[0], to[1])
			if err != nil {
				tb.Errorf("failed to connect to port %s of the server under test: %v", strconv.Itoa(int(config.Port)), err)
				hangUp(client)
				continue
			}
			p.join(client, server)
		}
	})
	tb.Cleanup(p.Shut)
	return p
}

// DirectTo directs new connections to a server. Existing connections stay, as with a Service whose endpoint changes.
func (p *Proxy) DirectTo(tb testing.TB, databaseURL string) {
	tb.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		tb.Fatal("the server under test has a bad URL")
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	p.target.Store(&[2]string{network, address})
}

// Freeze makes existing connections forward no more requests. They stay open without replies.
func (p *Proxy) Freeze() { p.frozen.Add(1) }

// join forwards data between two connections. It closes them if Shut was called meanwhile, which waits for all of them.
func (p *Proxy) join(client, server net.Conn) {
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	select {
	case <-p.over:
		hangUp(client)
		hangUp(server)
	default:
	}
	var lose atomic.Bool
	freezesBefore := p.frozen.Load()
	p.group.Go(func() {
		pass(server, client, func(data []byte) bool {
			if p.frozen.Load() != freezesBefore {
				<-p.over
				return false
			}
			p.Requests.Add(1)
			if bytes.Contains(data, []byte(LoseAnswer)) && p.Lose.CompareAndSwap(true, false) {
				lose.Store(true)
			}
			return true
		})
	})
	p.group.Go(func() {
		pass(client, server, func([]byte) bool {
			if lose.Load() {
				p.Lost.Add(1)
			}
			return !lose.Load()
		})
	})
}

// pass copies data until a side is closed or the function look returns false. It then closes both sides.
func pass(to io.WriteCloser, from io.ReadCloser, look func(data []byte) bool) {
	defer hangUp(to)
	defer hangUp(from)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !look(buffer[:n]) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// hangUp closes c, which may already be closed.
func hangUp(c io.Closer) {
	_ = c.Close()
}

// Shut closes all connections and accepts no new ones.
func (p *Proxy) Shut() {
	hangUp(p.listener)
	p.mu.Lock()
	select {
	case <-p.over:
	default:
		close(p.over)
	}
	for _, c := range p.conns {
		hangUp(c)
	}
	p.mu.Unlock()
	p.group.Wait()
}
