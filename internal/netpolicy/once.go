package netpolicy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/capstan-dev/capstan/internal/onclose"
)

// ErrUnprocessed means that a server has refused a request over HTTP/2 without processing it: it has reset the stream
// with REFUSED_STREAM, or it is closing the connection (GOAWAY). Such a request may be sent again. Servers do this when
// they restart or are busy. nginx also does it after each 1,000 requests on a connection.
// See https://www.rfc-editor.org/rfc/rfc9113.html#name-request-reliability.
var ErrUnprocessed = errors.New("the server refused the HTTP/2 stream, or is closing the connection, without processing the request")

// errSent means that a request over HTTP/2 failed after it was sent, and that the server may have processed it.
var errSent = errors.New("the server ended the HTTP/2 stream or connection after the whole request was sent")

// Bounded is a transport for the requests to one server. Over HTTP/2, it sends a request at most twice. Without this
// limit, net/http repeats a request after PROTOCOL_ERROR without limit and without a pause, each time on a new
// connection. Over HTTP/2, a request with a body is sent a second time only if the server has not processed the first
// one (ErrUnprocessed), and if the request has GetBody. Over HTTP/1, the rules of net/http apply: it may repeat a
// request that is idempotent or has the header X-Idempotency-Key.
type Bounded struct {
	base http.RoundTripper
	// isHTTP2 says whether the newest connection uses HTTP/2.
	isHTTP2 atomic.Bool
}

// NewBounded returns a transport that sends with base.
func NewBounded(base http.RoundTripper) *Bounded { return &Bounded{base: base} }

// RoundTrip sends a request. The caller must close the body of the response. RoundTrip must keep a small stack frame
// while it waits for the response, because thousands of requests wait for models.
func (b *Bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return b.sendTwice(req)
	}
	resp, err := b.base.RoundTrip(b.once(req))
	if err == nil {
		return resp, nil
	}
	if err = withOutcome(err); req.GetBody == nil || !errors.Is(err, ErrUnprocessed) {
		return nil, err
	}
	again, err := newRepetition(req)
	if err == nil {
		resp, err = b.base.RoundTrip(b.once(again.req))
	}
	if err != nil {
		return nil, again.withOutcome(err)
	}
	return resp, nil
}

// repetition is a request that is sent again, because the server has not processed it.
type repetition struct {
	req   *http.Request
	begun atomic.Bool // whether the headers were written again
}

// newRepetition returns the repetition of a request, with a body that was not read.
func newRepetition(req *http.Request) (*repetition, error) {
	r := &repetition{}
	trace := &httptrace.ClientTrace{WroteHeaders: func() { r.begun.Store(true) }}
	r.req = req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	var err error
	r.req.Body, err = req.GetBody()
	return r, err
}

// withOutcome is like the function withOutcome. If nothing was sent again, for example because a server that restarts
// refuses connections, the error wraps ErrUnprocessed.
func (r *repetition) withOutcome(err error) error {
	if err = withOutcome(err); r.begun.Load() || errors.Is(err, ErrUnprocessed) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnprocessed, err)
}

// once returns a copy of a request that has a body. If all of the copy was sent over HTTP/2, net/http does not send it
// again.
//
// Over HTTP/1, net/http needs GetBody: it repeats a request of which it has sent nothing. Over HTTP/2, GetBody does
// harm: for a request that has GetBody, the error of net/http does not say whether the server has refused the request
// or may have processed it. So once hides GetBody when it knows that the server uses HTTP/2. Until then, the outcome of
// a refused request is unknown (errSent).
//
//go:noinline
func (b *Bounded) once(req *http.Request) *http.Request {
	trace, isSent := b.newTrace()
	out := req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	switch {
	case b.isHTTP2.Load():
		out.GetBody = nil
	case req.GetBody != nil:
		out.GetBody = func() (io.ReadCloser, error) {
			if isSent.Load() {
				return nil, errSent
			}
			return req.GetBody()
		}
	}
	return out
}

// withOutcome adds ErrUnprocessed or errSent to an error by which net/http says that it did not send the request again
// because GetBody is missing. net/http has no types for these errors. If their texts change, the outcome of such
// requests is unknown.
func withOutcome(err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "cannot rewind body after connection loss"): // nothing was sent
		return fmt.Errorf("%w: %w", ErrUnprocessed, err)
	case !strings.Contains(text, "cannot retry err ["):
		return err
	case strings.Contains(text, "GOAWAY]"), strings.Contains(text, "REFUSED_STREAM"):
		return fmt.Errorf("%w: %w", ErrUnprocessed, err)
	}
	return fmt.Errorf("%w: %w", errSent, err)
}

// newTrace returns a trace that notes whether a connection uses HTTP/2, and that all of a request was sent over HTTP/2.
// Over HTTP/1, a trace also reports a request that is only in the buffer of a connection that the server has closed.
// Such a request must be sent again.
func (b *Bounded) newTrace() (*httptrace.ClientTrace, *atomic.Bool) {
	var isHTTP2, isSent atomic.Bool
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn, isTLS := info.Conn.(*tls.Conn)
			isHTTP2.Store(isTLS && conn.ConnectionState().NegotiatedProtocol == "h2")
			b.isHTTP2.Store(isHTTP2.Load())
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil && isHTTP2.Load() {
				isSent.Store(true)
			}
		},
	}, &isSent
}

// sendTwice sends a request without a body. net/http sends the request again if it is possible that the server has not
// processed it, for example after GOAWAY when a server restarts. sendTwice prevents a third time.
func (b *Bounded) sendTwice(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	trace, isSent := b.newTrace()
	var isRepeated atomic.Bool
	trace.GetConn = func(string) {
		if isSent.Swap(false) && isRepeated.Swap(true) {
			cancel(errSent)
		}
	}
	resp, err := b.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
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
