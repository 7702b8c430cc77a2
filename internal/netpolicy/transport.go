package netpolicy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// ErrRedirect means that an HTTP server redirects a GET to another server, or redirects another method.
var ErrRedirect = errors.New("the server redirects elsewhere")

// maxRedirects bounds the redirects of a GET within one server.
const maxRedirects = 5

// pingTimeout is the time without a frame after which an HTTP/2 connection is tested by a ping, and the time for the
// answer to the ping. Without pings, requests on a dead connection would wait for their deadlines.
const pingTimeout = 15 * time.Second

// keepAlive detects within a minute that the peer of a connection is gone, even if the peer has not closed it. Without
// keepAlive, a request over HTTP/1.1, and its Turn, would wait for the deadline. While sent data is not acknowledged,
// the kernel sends no keep-alive probes: see watchedConn.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3}

// streamBuffer bounds the bytes of one response over HTTP/2 that arrive before they are read, because they are in the
// memory of this process. It is as small as the smallest buffer of a connection over HTTP/1.1. The sum of all responses
// of a connection has no bound of its own: responses that wait for memory would then stop the others.
const streamBuffer = minBuffer

// writeTimeout is the time after which an HTTP/2 connection is closed if its server reads nothing but still sends
// frames. A server that sends nothing either is found by pings in the same time.
const writeTimeout = 2 * pingTimeout

// maxIdle bounds the idle connections to one server over HTTP/1.1, each of which takes about 20 KB. Over HTTP/2,
// requests usually share one connection. See also idle.
const maxIdle = 256

// DialContext returns a function for http.Transport.DialContext that connects only to addresses that the policy
// allows. It checks each address when it connects. timeout bounds the time to connect, including the resolution of the
// name. Errors wrap a *Refused if an address is refused, and a *Shortage if this machine has no resources for the
// connection.
func (p *Policy) DialContext(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return p.dialer(timeout, usualWatch, nil)
}

// dialer is DialContext for the connections of a transport, which may be nil.
func (p *Policy) dialer(
	timeout time.Duration, w watch, of *http.Transport,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil || !strings.HasPrefix(network, "tcp") {
			return nil, fmt.Errorf("connections to %q over %q are not supported", address, network)
		}
		receive, leave := p.enter(of)
		dialer := net.Dialer{
			Timeout: timeout, KeepAliveConfig: keepAlive,
			ControlContext: func(ctx context.Context, _, address string, socket syscall.RawConn) error {
				target, err := netip.ParseAddrPort(address)
				if err != nil {
					return fmt.Errorf("failed to parse the address %q: %w", address, err)
				}
				setReceiveBuffer(socket, receive) // before the connection exists, because its first packet offers space
				return p.Check(ctx, host, target.Addr())
			},
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			leave()
			return nil, WithShortage(err)
		}
		return newWatchedConn(conn, w, p.pace(), leave), nil //nolint:contextcheck // because the connection outlives the request
	}
}

// enter counts a new connection of a transport, which may be nil, and returns the size of its receive buffer in bytes,
// or 0 if the kernel decides. The caller must call leave when the connection is closed.
func (p *Policy) enter(of *http.Transport) (size int, leave func()) {
	if p == nil || p.buffers == nil {
		return 0, func() {}
	}
	leaveIdle := p.idle.enter(p.namespace, of)
	return p.buffers.enter(p.namespace), func() {
		p.buffers.leave(p.namespace)
		leaveIdle()
	}
}

// pace returns the function that waits after a piece of a connection's data: see fairgate.Flow. It does not depend on
// the request for which the connection was made, because other requests use the connection, too.
func (p *Policy) pace() func(*fairgate.Flow) {
	if p == nil || p.processors == nil {
		return func(*fairgate.Flow) {}
	}
	turns := p.processors.With(context.Background(), p.namespace)
	return func(f *fairgate.Flow) { f.Wait(turns) }
}

// maxResponseHeaders bounds the headers of a response, in bytes. Many short headers take about 20 times as much.
const maxResponseHeaders = 16 << 10

// connectionBuffer is the size of each buffer of an HTTP/1 connection, in bytes: half of the default. Thousands of
// connections wait for models at the same time. Long bodies are read and written without these buffers.
const connectionBuffer = 2 << 10

// Transport returns an HTTP transport with the dialer of a policy. certificates are from Certificates.TLS; nil means
// that the authorities of the system are trusted. The transport uses no proxy, because a proxy might connect to any
// address: see Policy.UseProxy. It requests no compression and decompresses nothing: see CheckPlain.
func Transport(p *Policy, connectTimeout time.Duration, certificates *tls.Config) *http.Transport {
	if certificates == nil {
		certificates = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t := &http.Transport{
		TLSHandshakeTimeout: connectTimeout, TLSClientConfig: certificates,
		ForceAttemptHTTP2: true, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: maxResponseHeaders, DisableCompression: true,
		ReadBufferSize: connectionBuffer, WriteBufferSize: connectionBuffer,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingTimeout, PingTimeout: pingTimeout, WriteByteTimeout: writeTimeout,
			MaxReceiveBufferPerStream: streamBuffer,
		},
	}
	t.DialContext = p.dialer(connectTimeout, usualWatch, t)
	return t
}

// CheckRedirect is a function for http.Client.CheckRedirect. It allows only redirects of a GET within the same scheme,
// host and port, because a redirected request carries its headers, and so its secrets. The error is ErrRedirect.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if req.Method != http.MethodGet || first.Method != http.MethodGet || len(via) > maxRedirects ||
		!isSameServer(req.URL, first.URL) || req.URL.User != nil {
		return ErrRedirect
	}
	return nil
}

// isSameServer reports whether two URLs have the same scheme, host and port.
func isSameServer(a, b *url.URL) bool {
	host, err := ASCIIHost(a.Hostname())
	other, otherErr := ASCIIHost(b.Hostname())
	return err == nil && otherErr == nil && host == other && a.Scheme == b.Scheme && a.Port() == b.Port()
}
