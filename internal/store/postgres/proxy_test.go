package postgres_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// loseAnswer is a payload. If the field lose of the proxy is true, the proxy loses the response to this payload.
const loseAnswer = "lose the answer to this"

// proxy forwards connections between a store and a server.
type proxy struct {
	url      string
	lose     atomic.Bool               // close the connection instead of forwarding the next response to loseAnswer
	lost     atomic.Int64              // number of lost responses
	requests atomic.Int64              // number of reads from clients, each of which is one round trip
	target   atomic.Pointer[[2]string] // the network and the address for new connections
	frozen   atomic.Int64              // number of calls of freeze
	over     chan struct{}             // closed by shut
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	group    sync.WaitGroup
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal("the server under test has a bad URL")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: listener.Addr().String(),
		Path: "/" + config.Database, RawQuery: "sslmode=disable&pool_max_conns=1",
	}
	p := &proxy{url: u.String(), listener: listener, over: make(chan struct{})}
	p.directTo(t, databaseURL)
	p.group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			to := p.target.Load()
			server, err := net.Dial(to[0], to[1])
			if err != nil {
				t.Errorf("failed to connect to port %s of the server under test: %v", strconv.Itoa(int(config.Port)), err)
				hangUp(client)
				continue
			}
			p.join(client, server)
		}
	})
	t.Cleanup(p.shut)
	return p
}

// directTo directs new connections to a server. Existing connections stay, as with a Service whose endpoint changes.
func (p *proxy) directTo(t *testing.T, databaseURL string) {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal("the server under test has a bad URL")
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	p.target.Store(&[2]string{network, address})
}

// freeze makes existing connections forward no more requests. They stay open without replies.
func (p *proxy) freeze() { p.frozen.Add(1) }

// join forwards data between two connections.
func (p *proxy) join(client, server net.Conn) {
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	var lose atomic.Bool
	freezesBefore := p.frozen.Load()
	p.group.Go(func() {
		pass(server, client, func(data []byte) bool {
			if p.frozen.Load() != freezesBefore {
				<-p.over
				return false
			}
			p.requests.Add(1)
			if bytes.Contains(data, []byte(loseAnswer)) && p.lose.CompareAndSwap(true, false) {
				lose.Store(true)
			}
			return true
		})
	})
	p.group.Go(func() {
		pass(client, server, func([]byte) bool {
			if lose.Load() {
				p.lost.Add(1)
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

// shut closes all connections and accepts no new ones.
func (p *proxy) shut() {
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
