package netpolicy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// ErrRedirect means that an HTTP server redirects a GET to another server, or redirects another method.
var ErrRedirect = errors.New("the server redirects elsewhere")

// maxRedirects bounds the redirects of a GET within one server.
const maxRedirects = 5

// pingTimeout is the time without a frame after which a connection with HTTP/2 is tested, and the time for the answer.
// Otherwise, requests on a dead connection would wait for their deadlines.
const pingTimeout = 15 * time.Second

// DialContext returns a function for http.Transport.DialContext that connects only to addresses that the policy
// allows. It checks each address when it connects to it. timeout bounds the whole connection, including the
// resolution of its name. Errors wrap a *Refused if an address is refused.
func (p *Policy) DialContext(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil || !strings.HasPrefix(network, "tcp") {
			return nil, fmt.Errorf("connections to %q over %q are not supported", address, network)
		}
		dialer := net.Dialer{
			Timeout: timeout, KeepAlive: 30 * time.Second,
			ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
				target, err := netip.ParseAddrPort(address)
				if err != nil {
					return fmt.Errorf("failed to parse the address %q: %w", address, err)
				}
				return p.Check(ctx, host, target.Addr())
			},
		}
		return dialer.DialContext(ctx, network, address)
	}
}

// Transport returns an HTTP transport with the dialer of a policy. roots are the trusted certificate authorities;
// nil means those of the system. The transport uses no proxy, which would connect instead of it, to any address. It
// requests no compression and decompresses nothing: see CheckPlain.
func Transport(p *Policy, connectTimeout time.Duration, roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		DialContext: p.DialContext(connectTimeout), TLSHandshakeTimeout: connectTimeout,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, MaxIdleConns: 256, MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 32 << 10, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingTimeout, PingTimeout: pingTimeout},
	}
}

// CheckRedirect is for http.Client.CheckRedirect. It follows only redirects of a GET within the same scheme, host
// and port, because a redirected request carries its headers, and so its secrets. The error is ErrRedirect.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if req.Method != http.MethodGet || first.Method != http.MethodGet || len(via) > maxRedirects ||
		req.URL.Scheme != first.URL.Scheme || !strings.EqualFold(req.URL.Host, first.URL.Host) || req.URL.User != nil {
		return ErrRedirect
	}
	return nil
}

// Roots returns the system's certificate authorities and those of a PEM bundle. It returns an error if the bundle
// has no certificate.
func Roots(bundle []byte) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // the system has none
	}
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, errors.New("it contains no PEM certificate")
	}
	return roots, nil
}
