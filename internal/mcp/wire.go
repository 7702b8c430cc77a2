package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/span"
)

const (
	// MaxResponseBytes is the maximum number of bytes that are read from the response to one request.
	MaxResponseBytes = 8 << 20
	// maxErrorBytes is the maximum number of bytes that are kept of the body of a response that refuses a request.
	maxErrorBytes = 16 << 10
	// messageTimeout is the time limit for a short message, such as a notification or a ping. deleteTimeout is the time
	// limit for the DELETE request that ends a session.
	messageTimeout = 5 * time.Second
	deleteTimeout  = 2 * time.Second
)

// Headers of the protocol.
const (
	sessionHeader     = "Mcp-Session-Id"
	lastEventIDHeader = "Last-Event-ID"
)

// The content types of the protocol.
const (
	jsonType   = "application/json"
	eventsType = "text/event-stream"
)

var (
	// ErrClosed means that the client closed its connection to the server, and aborted the requests on it.
	ErrClosed = errors.New("the connection was ended")

	errSession  = errors.New("the server has ended the session")
	errTooLong  = fmt.Errorf("the response exceeds %d MiB", MaxResponseBytes>>20)
	errProtocol = errors.New("the response does not follow the Model Context Protocol")
	errEmpty    = fmt.Errorf("%w: it is empty", errProtocol)
	// errPage means that the server, or a proxy or login in front of it, sent a page for people.
	errPage     = fmt.Errorf("%w: it is an HTML page, such as a login page or the error page of a proxy", errProtocol)
	errElements = fmt.Errorf("a list in the response has more than %d elements", maxElements)
	errBroken   = errors.New("the connection broke before the response arrived")
	// errMoved means that the response is a redirect with a status that servers also send after they have processed a
	// request.
	errMoved = fmt.Errorf("%w, and may have dealt with the request", netpolicy.ErrRedirect)
)

// statusError is an HTTP status that refuses a request.
type statusError struct {
	status int
	// detail is the start of the response's body.
	detail string
}

// kind returns the reason for which a server that answers so cannot be used.
func (e *statusError) kind() Kind {
	if e.refusesHost() {
		return Protocol
	}
	return kindOf(e.status)
}

// refusesHost reports whether the server does not accept the host name of mcp.url in the header Host. Servers check it
// against DNS rebinding, and by default many accept only localhost. The SDK for Python answers 421
// (github.com/modelcontextprotocol/python-sdk/issues/1798), and those for TypeScript and Rust answer 403.
func (e *statusError) refusesHost() bool {
	detail := strings.ToLower(e.detail)
	return e.status == http.StatusMisdirectedRequest ||
		e.status == http.StatusForbidden && (strings.Contains(detail, "host header") || strings.Contains(detail, "invalid host"))
}

// sessionError is the refusal of a request because the server does not know the session. It wraps errSession.
type sessionError struct {
	// detail is the start of the response's body.
	detail string
}

// Error returns the message of errSession.
func (e *sessionError) Error() string { return errSession.Error() }

// Unwrap returns errSession.
func (e *sessionError) Unwrap() error { return errSession }

// Error returns the status code as text.
func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d", e.status) }

// wire is the transport for the requests of one session.
type wire struct {
	client *http.Client
	url    string
	life   context.Context //nolint:containedctx // because it is the life of the connection, not of a call
	// serverBudget has the server's shares of the budget for large responses. All connections to the server use it.
	serverBudget *serverBudget
	// memory is the account from which memory for responses is reserved.
	memory bytebudget.Account
	// onChange is called when the tools may have changed, and onLost when the server has ended the session.
	onChange, onLost func()
}

// RoundTrip sends a request of the SDK.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case http.MethodGet:
		return w.openStandingStream(req, nil), nil
	case http.MethodPost:
		return w.post(req)
	}
	ctx, cancel := context.WithTimeout(req.Context(), deleteTimeout)
	defer cancel()
	return w.sendWithoutReply(req.Clone(ctx), "")
}

// post sends a message.
func (w *wire) post(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close() // the body is in memory
	if err != nil {
		return nil, err
	}
	message, err := decodeEnvelope(req.Context(), body)
	if err != nil {
		return nil, err
	}
	if message.Method != "" && message.id.IsValid() {
		if message.Method != "tools/call" { // net/http may repeat all other requests if the connection turns out to be closed
			req = req.Clone(req.Context())
			req.Header["X-Idempotency-Key"] = nil // net/http sends no header without values, but repeats requests that have this key
		}
		if message.Method == "subscriptions/listen" {
			return w.openStandingStream(req, body), nil
		}
		return w.call(req, body, message.id)
	}
	ctx, cancel := w.withTimeout(req.Context(), messageTimeout)
	defer cancel()
	out := req.Clone(ctx)
	setBody(out, body)
	return w.sendWithoutReply(out, message.Method)
}

func setBody(req *http.Request, body []byte) {
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
}

// withTimeout returns a context that ends with ctx, with the connection, or after limit.
func (w *wire) withTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	stop := context.AfterFunc(w.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// sendWithoutReply sends a request and returns an empty response. It reads the server's response only if that is an
// error. method is the method of the message in the request, or empty. Some servers refuse the notification that the
// client is initialized. The request for the list of tools, which follows, shows whether they can be used.
func (w *wire) sendWithoutReply(req *http.Request, method string) (*http.Response, error) {
	resp, err := w.do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // the body is not needed
	isIgnored := method == "notifications/initialized" && resp.StatusCode >= http.StatusBadRequest &&
		resp.StatusCode < http.StatusInternalServerError
	if !isIgnored {
		if err := w.refusal(req, resp); err != nil {
			return nil, err
		}
	}
	return reply(req, resp, http.StatusAccepted, "", nil), nil
}

// do sends a request.
func (w *wire) do(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.RequestURI = ""
	if parent := span.HeaderOf(req.Context()); parent != "" && out.Header.Get(span.Header) == "" {
		out.Header.Set(span.Header, parent)
	}
	resp, err := w.client.Do(out) //nolint:gosec // because the policy of the client limits the addresses
	if err != nil && resp != nil && (resp.StatusCode == http.StatusFound || resp.StatusCode == http.StatusSeeOther) &&
		errors.Is(err, netpolicy.ErrRedirect) {
		_ = resp.Body.Close() // it is already closed
		return nil, errMoved
	}
	if err != nil {
		return nil, err
	}
	if resp, err = checkPlain(resp); err != nil {
		return nil, err
	}
	dropHeaders(resp)
	if req.Header.Get(sessionHeader) != "" { // some servers send a new ID with each response, but the first one is valid
		resp.Header.Del(sessionHeader)
	}
	return resp, nil
}

// dropHeaders drops the headers of a response that are not used. They could take hundreds of KiB while the body is
// read, and a stream of events may stay open for hours.
func dropHeaders(resp *http.Response) {
	kept := http.Header{}
	for _, name := range []string{"Content-Type", sessionHeader} {
		if value := resp.Header.Get(name); value != "" {
			kept.Set(name, value)
		}
	}
	resp.Header, resp.Trailer = kept, nil
}

// checkPlain returns resp if its body is not compressed. If the body is compressed, checkPlain returns an error, or, if
// the status is an error, the response without its body.
func checkPlain(resp *http.Response) (*http.Response, error) {
	err := netpolicy.CheckPlain(resp)
	if err == nil {
		return resp, nil
	}
	_ = resp.Body.Close() // the body is not read
	if resp.StatusCode < http.StatusBadRequest {
		return nil, err
	}
	resp.Body = http.NoBody
	return resp, nil
}

// call sends a request that has a response in the protocol. It returns this response, or the stream that contains it.
func (w *wire) call(req *http.Request, body []byte, id jsonrpc.ID) (*http.Response, error) {
	ex := exchangeOf(req.Context())
	// ctx ends with the caller's context only until release is called. Afterwards, the last bytes of a response can
	// still be read, so that its connection can be reused.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(req.Context()))
	stops := []func() bool{ // each one stops a function that would cancel ctx
		//nolint:contextcheck // because the context belongs to the request
		context.AfterFunc(req.Context(), func() { cancel(context.Cause(req.Context())) }),
		//nolint:contextcheck // because the connection may end before the request
		context.AfterFunc(w.life, func() { cancel(ErrClosed) }),
	}
	release := func() {
		for _, stop := range stops {
			stop()
		}
	}
	out := req.Clone(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { ex.sent.Store(true) }}))
	maps.Copy(out.Header, ex.headers)
	setBody(out, body)
	resp, err := w.do(out)
	if err == nil {
		resp, err = w.answer(req, resp, ex, &stream{
			wire: w, ctx: ctx, cancel: cancel, release: release,
			header: req.Header, call: id, ex: ex,
		})
	}
	if err != nil {
		release()
		cancel(err)
		return nil, err
	}
	return resp, nil
}

// answer converts a response for the SDK. If the response is broken, only its own request fails, and the connection
// stays usable.
func (w *wire) answer(req *http.Request, resp *http.Response, ex *exchange, s *stream) (*http.Response, error) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK && kind == eventsType {
		s.begin(resp.Body, MaxResponseBytes)
		resp.Body, resp.ContentLength = s, -1
		return resp, nil
	}
	defer s.cancel(nil)
	defer s.release()
	defer func() { _ = resp.Body.Close() }() // the relevant part has been read
	if isFailure(resp.StatusCode) {
		return nil, w.status(req, resp.StatusCode, detailOf(resp))
	}
	body, err := s.readAll(resp)
	switch {
	case errors.Is(err, errTooLong), errors.Is(err, errSlow), errors.Is(err, bytebudget.ErrNoSpace):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	case resp.StatusCode != http.StatusOK:
		return w.handleRefusal(req, resp, ex, s.call, body)
	}
	m, err := decodeEnvelope(s.ctx, body)
	switch {
	case (err != nil || m.isErrorWithoutID()) && w.deniesSession(req.Header, body):
		return nil, &sessionError{detail: string(body)}
	case err != nil:
		return nil, unreadable(kind, body)
	case !m.answers(s.call):
		return nil, errProtocol
	}
	ex.keep(body, m.isErrorWithoutID())
	return reply(req, resp, http.StatusOK, jsonType, ex.stub(s.call, &m, body)), nil
}

// unreadable returns the error for a body that is no message of the protocol.
func unreadable(kind string, body []byte) error {
	switch {
	case kind == "text/html":
		return errPage
	case len(bytes.TrimSpace(body)) == 0:
		return errEmpty
	}
	return errProtocol
}

// reply returns a response for the SDK with a body in memory. It copies only the session ID of the original response.
func reply(req *http.Request, original *http.Response, status int, kind string, body []byte) *http.Response {
	header := http.Header{}
	if id := original.Header.Get(sessionHeader); id != "" {
		header.Set(sessionHeader, id)
	}
	if kind != "" {
		header.Set("Content-Type", kind)
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}
}
