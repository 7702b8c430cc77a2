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
	// Local is true if the policy is from NewLocalPolicy, so that the environment is that of a person.
	Local bool
}

// NewProxyError returns the error for the answer of a proxy with a status.
func (p *Policy) NewProxyError(proxy, target string, status int) *ProxyError {
	return &ProxyError{Proxy: proxy, Target: target, Status: status, Local: p.isLocal()}
}

// ofManager returns the words before an environment variable in a message: in a cluster, the reader must change that of
// the manager, and with the command line their own.
func ofManager(isLocal bool) string {
	if isLocal {
		return ""
	}
	return "the manager's "
}

// Error returns the message for people. It has no text of the proxy.
func (e *ProxyError) Error() string {
	switch {
	case e.Status == http.StatusProxyAuthRequired:
		return fmt.Sprintf("the proxy %s requires valid credentials (HTTP 407): check the user and the password in %sHTTPS_PROXY "+
			"or HTTP_PROXY", e.Proxy, ofManager(e.Local))
	case e.IsTemporary():
		return fmt.Sprintf("the proxy %s could not connect to %s (HTTP %d)", e.Proxy, e.Target, e.Status)
	}
	return fmt.Sprintf("the proxy %s refused the connection to %s (HTTP %d): allow it there, or add the host to %sNO_PROXY",
		e.Proxy, e.Target, e.Status, ofManager(e.Local))
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
	t.OnProxyConnectResponse = p.checkConnected
}

// checkConnected is a function for http.Transport.OnProxyConnectResponse.
func (p *Policy) checkConnected(_ context.Context, proxy *url.URL, req *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return p.NewProxyError(proxy.Host, req.Host, resp.StatusCode)
}

// FailedProxy returns the host of the proxy that a request could not reach. It returns an empty text if err is about
// the server.
func FailedProxy(req *http.Request, err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "proxyconnect" {
		return ProxyHost(req)
	}
	return ""
}
