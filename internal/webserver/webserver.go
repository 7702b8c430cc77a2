// Package webserver bounds what the clients of an HTTP server can make it use: memory for headers and connections, and
// connections that other clients need.
package webserver

import (
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// headerTimeout bounds the time to read the headers of a request, and idleTimeout the time between two requests.
	headerTimeout, idleTimeout = 10 * time.Second, time.Minute
	// maxHeaderBytes bounds the headers of a request. The token of a user may have several KiB.
	maxHeaderBytes = 16 << 10
)

// New returns a server with bounds for the headers of requests. It does not bound the time of a request. It logs
// nothing, because every client could fill the log with failed handshakes.
func New(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// Limit returns a listener that has at most the given number of connections open at the same time. If it is full, an
// address that has at least two connections more than the address of a new one loses its oldest. If there is no such
// address, the new connection is closed. So a client can keep all connections from others only if it has as many
// addresses as there are connections.
func Limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, most: most, open: map[string][]*limitedConn{}}
}

type limited struct {
	net.Listener
	most int

	mu sync.Mutex
	// open has the open connections of each address, the oldest first, and all is their number. There are no empty
	// lists.
	open map[string][]*limitedConn
	all  int
}

// Accept waits for the next connection.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted, drop := l.admit(conn)
		if drop != nil {
			_ = drop.Close() // the client may have closed it
		}
		if accepted != nil {
			return accepted, nil
		}
	}
}

// admit counts a new connection. accepted is nil if there is no space for it. The caller must close drop if it is not
// nil.
func (l *limited) admit(conn net.Conn) (accepted, drop net.Conn) {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = conn.RemoteAddr().String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.most {
		greedy := host
		for other, connections := range l.open {
			if len(connections) > len(l.open[greedy]) {
				greedy = other
			}
		}
		if len(l.open[greedy]) < len(l.open[host])+2 {
			return nil, conn
		}
		oldest := l.open[greedy][0]
		l.remove(oldest)
		drop = oldest
	}
	c := &limitedConn{Conn: conn, of: l, host: host}
	l.open[host] = append(l.open[host], c)
	l.all++
	return c, drop
}

// remove removes a connection, unless it was removed before. The caller must hold the lock.
func (l *limited) remove(c *limitedConn) {
	for i, other := range l.open[c.host] {
		if other != c {
			continue
		}
		l.all--
		if l.open[c.host] = append(l.open[c.host][:i:i], l.open[c.host][i+1:]...); len(l.open[c.host]) == 0 {
			delete(l.open, c.host)
		}
		return
	}
}

// limitedConn is a connection that counts until it is closed.
type limitedConn struct {
	net.Conn
	of   *limited
	host string
}

// Close closes the connection.
func (c *limitedConn) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
