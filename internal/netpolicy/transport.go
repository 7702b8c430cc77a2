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

// ErrRedirect means that an HTTP server redirects to another place, or something other than a GET.
var ErrRedirect = errors.New("the server redirects elsewhere")

// maxRedirects bounds how often a GET is redirected within one server.
const maxRedirects = 5

// DialContext returns a function for http.Transport.DialContext that connects only to addresses that the policy allows: it looks
// at each address when it connects to it. The timeout bounds a connection, the resolution of its name included. Errors hold a
// *Refused if an address is refused.
func (p *Policy) DialContext(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil || !strings.HasPrefix(network, "tcp") {
			return nil, fmt.Errorf("connections to %q over %q are not made", address, network)
		}
		dialer := net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second, ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
			target, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("failed to read the address %q: %w", address, err)
			}
			return p.Check(ctx, host, target.Addr())
		}}
		return dialer.DialContext(ctx, network, address)
	}
}

// Transport returns an HTTP transport with the dialer of a policy. Roots are the certificate authorities that are trusted; nil
// for the system's. It uses no proxy: one would connect in its place, to what it likes. It asks for no compression and undoes
// none: see CheckPlain.
func Transport(p *Policy, connectTimeout time.Duration, roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		DialContext: p.DialContext(connectTimeout), TLSHandshakeTimeout: connectTimeout,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, MaxIdleConns: 256, MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 32 << 10, DisableCompression: true,
	}
}

// CheckRedirect is for http.Client.CheckRedirect: it follows a GET within the same scheme, host and port, and nothing else, since a redirected request
// carries its headers, and so their secrets, along. The error is ErrRedirect.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if req.Method != http.MethodGet || first.Method != http.MethodGet || len(via) > maxRedirects ||
		req.URL.Scheme != first.URL.Scheme || !strings.EqualFold(req.URL.Host, first.URL.Host) || req.URL.User != nil {
		return ErrRedirect
	}
	return nil
}

// Roots returns the system's certificate authorities with those of a bundle in PEM beside them. It is an error if the bundle
// has none.
func Roots(bundle []byte) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // a system without any: the bundle stands alone
	}
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, errors.New("no certificate in PEM is in it")
	}
	return roots, nil
}
