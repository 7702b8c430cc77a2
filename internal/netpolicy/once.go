package netpolicy

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// errSent means that a request over HTTP/2 failed after all of it was sent.
var errSent = errors.New("the server ended the HTTP/2 stream after the whole request was sent")

// SendOnce returns a copy of a request that a transport does not send again over HTTP/2 after all of it was sent,
// because the server may have processed it. Without SendOnce, net/http repeats a request that has GetBody each time the
// server resets its stream with PROTOCOL_ERROR or REFUSED_STREAM, or refuses it with GOAWAY. The repetitions after
// PROTOCOL_ERROR have no limit. An http.Client must not use the copy, because it calls GetBody for redirects, too.
func SendOnce(req *http.Request) *http.Request {
	if req.GetBody == nil {
		return req
	}
	// Over HTTP/1, the trace also reports a request that is only in the buffer of a connection that the server has
	// closed. Such a request must be sent again.
	var isHTTP2, isSent atomic.Bool
	out := req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn, isTLS := info.Conn.(*tls.Conn)
			isHTTP2.Store(isTLS && conn.ConnectionState().NegotiatedProtocol == "h2")
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil && isHTTP2.Load() {
				isSent.Store(true)
			}
		},
	}))
	out.GetBody = func() (io.ReadCloser, error) {
		if isSent.Load() {
			return nil, errSent
		}
		return req.GetBody()
	}
	return out
}
