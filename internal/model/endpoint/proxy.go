package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// proxyError means that a proxy did not connect to the endpoint.
type proxyError struct {
	// proxy and target are hosts with ports.
	proxy, target string
	status        int
}

// Error returns the message for people.
func (e *proxyError) Error() string {
	switch {
	case e.status == http.StatusProxyAuthRequired:
		return fmt.Sprintf("the proxy %s refused its credentials (HTTP 407): check the user and the password in the manager's "+
			"HTTPS_PROXY or HTTP_PROXY", e.proxy)
	case e.status >= http.StatusInternalServerError:
		return fmt.Sprintf("the proxy %s could not connect to %s (HTTP %d)", e.proxy, e.target, e.status)
	}
	return fmt.Sprintf("the proxy %s refused the connection to %s (HTTP %d): allow it there, or add the host to the manager's NO_PROXY",
		e.proxy, e.target, e.status)
}

// failure returns the failure of a request that the proxy did not pass on.
func (e *proxyError) failure() *model.Error {
	kind := model.InvalidRequest
	switch {
	case e.status == http.StatusProxyAuthRequired:
		kind = model.Auth
	case e.status >= http.StatusInternalServerError:
		kind = model.Network
	}
	return &model.Error{Kind: kind, Unsent: true, Message: e.Error()}
}

// checkConnected is for http.Transport.OnProxyConnectResponse. It returns a *proxyError if the proxy refuses to
// connect.
func checkConnected(_ context.Context, proxy *url.URL, asked *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return &proxyError{proxy: proxy.Host, target: asked.Host, status: answer.StatusCode}
}

// isProxyDial reports whether the connection to a proxy failed, and not that to the endpoint.
func isProxyDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "proxyconnect"
}
