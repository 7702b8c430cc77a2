package netpolicy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/capstan-dev/capstan/internal/onclose"
)

// errSent means that a request over HTTP/2 failed after all of it was sent: the server has reset the stream, or is
// closing the connection (GOAWAY).
var errSent = errors.New("the server ended the HTTP/2 stream or connection after the whole request was sent")

// SendOnce returns a copy of a request that a transport does not send again over HTTP/2 after all of it was sent,
// because the server may have processed it. Without SendOnce, net/http repeats a request that has GetBody each time the
// server resets its stream with PROTOCOL_ERROR or REFUSED_STREAM, or refuses it with GOAWAY. The repetitions after
// PROTOCOL_ERROR have no limit. An http.Client must not use the copy, because it calls GetBody for redirects, too.
func SendOnce(req *http.Request) *http.Request {
	if req.GetBody == nil {
		return req
	}
	trace, isSent := newTrace()
	out := req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	out.GetBody = func() (io.ReadCloser, error) {
		if isSent.Load() {
			return nil, errSent
		}
		return req.GetBody()
	}
	return out
}

// newTrace returns a trace that notes that all of a request was sent over HTTP/2. Over HTTP/1, a trace also reports a
// request that is only in the buffer of a connection that the server has closed. Such a request must be sent again.
func newTrace() (*httptrace.ClientTrace, *atomic.Bool) {
	var isHTTP2, isSent atomic.Bool
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn, isTLS := info.Conn.(*tls.Conn)
			isHTTP2.Store(isTLS && conn.ConnectionState().NegotiatedProtocol == "h2")
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil && isHTTP2.Load() {
				isSent.Store(true)
			}
		},
	}, &isSent
}

// RoundTripBounded sends a request that may have no body, as a GET. If it has one, it is not sent again over HTTP/2
// after all of it was sent: see SendOnce. A request without a body is sent at most twice over HTTP/2. The second time
// is needed because a server may refuse a request that it has not processed, as with REFUSED_STREAM, or with GOAWAY
// when it restarts. The limit is needed because net/http repeats the request after PROTOCOL_ERROR without limit and
// without a pause, each time on a new connection. The caller must close the body of the response.
func RoundTripBounded(transport http.RoundTripper, req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.Body != http.NoBody {
		return transport.RoundTrip(SendOnce(req))
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	trace, isSent := newTrace()
	var isRepeated atomic.Bool
	trace.GetConn = func(string) {
		if isSent.Swap(false) && isRepeated.Swap(true) {
			cancel(errSent)
		}
	}
	resp, err := transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errSent) {
			err = cause // the error may only say that the request was cancelled
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = onclose.Body(resp.Body, func() { cancel(nil) })
	return resp, nil
}
