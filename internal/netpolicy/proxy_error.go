package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// ProxyError means that a proxy did not connect to a server.
type ProxyError struct {
	// Proxy and Target are hosts with ports.
	Proxy, Target string
	// Status is the HTTP status of the proxy's answer.
	Status int
}

// Error returns the message for people. It has no text of the proxy.
func (e *ProxyError) Error() string {
	switch {
	case e.Status == http.StatusProxyAuthRequired:
		return fmt.Sprintf("the proxy %s requires valid credentials (HTTP 407): check the user and the password in the manager's "+
			"HTTPS_PROXY or HTTP_PROXY", e.Proxy)
	case e.IsTemporary():
		return fmt.Sprintf("the proxy %s could not connect to %s (HTTP %d)", e.Proxy, e.Target, e.Status)
	}
	return fmt.Sprintf("the proxy %s refused the connection to %s (HTTP %d): allow it there, or add the host to the manager's NO_PROXY",
		e.Proxy, e.Target, e.Status)
}

// IsTemporary reports whether the proxy failed or is overloaded. If not, the proxy refused to connect.
func (e *ProxyError) IsTemporary() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return e.Status >= http.StatusInternalServerError
}

// UseProxy makes a transport use the proxy of the environment: see Proxy. If the proxy does not connect to a server,
// the error is a *ProxyError.
func (p *Policy) UseProxy(t *http.Transport) {
	t.Proxy = p.Proxy()
	t.OnProxyConnectResponse = checkConnected
}

// checkConnected is a function for http.Transport.OnProxyConnectResponse.
func checkConnected(_ context.Context, proxy *url.URL, req *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return &ProxyError{Proxy: proxy.Host, Target: req.Host, Status: resp.StatusCode}
}

// FailedProxy returns the host of the proxy that a request could not reach. It returns an empty text if err is about
// the server.
func FailedProxy(req *http.Request, err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "proxyconnect" {
		return ProxyHost(req)
	}
	return ""
}
