package openai

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

var (
	errIdle     = errors.New("no part of an answer arrived in time")
	errRedirect = errors.New("the endpoint redirects elsewhere")
)

// response holds facts about a response that the library does not pass on.
type response struct {
	// wanted is the requested content type.
	wanted string
	// longest is the number of bytes of a stream that are read.
	longest     int
	status      int
	contentType string
	retryAfter  time.Duration
	// memory is the memory of a long reply. watch ends the request after a time-out; it is nil until there is a
	// response.
	memory replyMemory
	watch  *watch
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// exchangeOf returns the exchange that a request belongs to.
func exchangeOf(req *http.Request) *exchange {
	if x, ok := req.Context().Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{note: &response{}} // its fields are never read
}

// Content types of requests.
const (
	eventStream = "text/event-stream"
	jsonObject  = "application/json"
)

// contentTypeHint returns a hint if the response has another content type than requested, because that points to a
// wrong base URL.
func contentTypeHint(r *response) string {
	if r.contentType == "" || r.contentType == r.wanted {
		return ""
	}
	sent := "another type"
	if slices.Contains([]string{"text/html", "text/plain", jsonObject, eventStream}, r.contentType) {
		sent = r.contentType // any other type would be text of the endpoint
	}
	return fmt.Sprintf(" (the endpoint sent %s, not %s: check baseURL)", sent, r.wanted)
}

// errCaught is returned to the library for a request that is not sent yet.
var errCaught = errors.New("the request is caught, and not sent yet")

// transport sends requests for the library instead of an http.Client. It adds headers, replaces the body, ends a
// request whose answer makes no progress, and bounds the bytes that are read. The library expects only that errors
// are *url.Error.
//
// transport catches the request of an exchange: the exchange sends the request itself, and the library then gets
// the response.
type transport struct {
	base      http.RoundTripper
	headers   []Header
	anonymous bool
	idle      time.Duration
}

// Do sends one request. A redirect is an error, because it would carry the headers, and their secrets, to another
// host.
func (t *transport) Do(req *http.Request) (*http.Response, error) {
	switch x := exchangeOf(req); {
	case x.resp != nil:
		return t.prepareResponse(x, x.out, x.resp, x.watch)
	case x.payload != nil:
		x.out, x.watch = t.prepareRequest(req)
		x.payload.apply(x.out)
		return nil, errCaught
	default:
		out, w := t.prepareRequest(req)
		resp, err := t.base.RoundTrip(out)
		if err != nil {
			return nil, urlError(out, w.fail(err))
		}
		return t.prepareResponse(x, out, resp, w)
	}
}

// prepareRequest returns the request to send and the watch that ends it. The library's request must not be used again.
func (t *transport) prepareRequest(req *http.Request) (*http.Request, *watch) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{ctx: ctx, cancel: cancel, timer: time.AfterFunc(t.idle, func() { cancel(errIdle) }), idle: t.idle}
	out := req.WithContext(ctx)
	if t.anonymous {
		out.Header.Del("Authorization") // the library sends an empty bearer token
	}
	for _, h := range t.headers {
		out.Header.Set(h.Name, h.Value)
	}
	netpolicy.AskPlain(out)
	return out, w
}

// prepareResponse returns the response for the library.
func (t *transport) prepareResponse(x *exchange, req *http.Request, resp *http.Response, w *watch) (*http.Response, error) {
	note := x.note
	note.status = resp.StatusCode
	note.contentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	note.retryAfter, note.watch = retryAfter(resp.Header), w
	most, streamed := bodyLimit(note, resp)
	b := &body{ReadCloser: resp.Body, watch: w, most: most, refusal: resp.StatusCode >= http.StatusBadRequest}
	if redirects(resp) {
		_ = b.Close() // it is not read
		return nil, urlError(req, errRedirect)
	}
	if err := netpolicy.CheckPlain(resp); err != nil {
		_ = b.Close() // it is not read
		if resp.StatusCode < http.StatusBadRequest {
			return nil, urlError(req, err)
		}
		resp.Body = http.NoBody // the status is enough to classify the error
		return resp, nil
	}
	if resp.Body = b; streamed || isEvents(resp.Header) {
		resp.Body = newEvents(b, w, note)
	}
	return resp, nil
}

// bodyLimit returns the number of bytes of a response that are read, and reports whether it is a stream, whatever
// content type the endpoint states.
func bodyLimit(note *response, resp *http.Response) (most int, streamed bool) {
	if note.wanted == eventStream && resp.StatusCode < http.StatusBadRequest {
		return note.longest, true
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return maxRefusal, false
	}
	return maxOther, false
}

// redirects reports whether a response is a redirect.
func redirects(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return resp.Header.Get("Location") != ""
	}
	return false
}

// urlError returns the error of a request that got no response, in the form of an http.Client.
func urlError(req *http.Request, err error) error {
	if wrong, ok := errors.AsType[tls.RecordHeaderError](err); ok && string(wrong.RecordHeader[:]) == "HTTP/" {
		err = http.ErrSchemeMismatch
	}
	return &url.Error{Op: req.Method, URL: req.URL.Redacted(), Err: err}
}

// watch ends a request whose answer makes no progress. Events restart the time, single bytes do not: otherwise an
// endpoint that sends comments, or one byte at a time, could hold a Turn and its slot as long as it likes. The
// first event must arrive within the same time, and so must the whole of a response that is not an event stream.
type watch struct {
	ctx    context.Context //nolint:containedctx // because it is the request's, and its cause tells why a read failed
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

// fail releases a failed request and returns the reason of the failure.
func (w *watch) fail(err error) error {
	if errors.Is(context.Cause(w.ctx), errIdle) {
		err = errIdle
	}
	w.end()
	return err
}

// event restarts the time, because a part of the answer has arrived.
func (w *watch) event() { w.timer.Reset(w.idle) }

// end releases the request.
func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// body is a response body that ends when its time is over or when it exceeds its bound.
type body struct {
	io.ReadCloser
	*watch
	// most is the number of bytes that may be read, and read the number that were read.
	most, read int
	// refusal is true for an error response: its body ends at the bound without an error.
	refusal bool
}

// Read reads from the body. At the end of the body it also ends the request, because the library does not close the
// body of an error response.
func (b *body) Read(p []byte) (int, error) {
	if b.read >= b.most {
		b.end()
		if b.refusal {
			return 0, io.EOF
		}
		return 0, tooManyBytes("the answer", b.most)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.most-b.read)])
	b.read += n
	if err != nil {
		err = b.fail(err)
	}
	return n, err
}

// Close closes the body and ends its request.
func (b *body) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// maxRetryAfter bounds the wait that an endpoint may ask for. A longer wait never fits into a Turn.
const maxRetryAfter = 24 * time.Hour

// retryAfter returns the wait that an endpoint asks for, in seconds or as a date. It compares a date with the
// endpoint's own clock.
func retryAfter(h http.Header) time.Duration {
	var wait time.Duration
	value := h.Get("Retry-After")
	if ms, err := strconv.ParseInt(h.Get("Retry-After-Ms"), 10, 64); err == nil {
		wait = time.Duration(min(max(0, ms), maxRetryAfter.Milliseconds())) * time.Millisecond
	} else if s, err := strconv.ParseInt(value, 10, 64); err == nil {
		wait = time.Duration(min(max(0, s), int64(maxRetryAfter.Seconds()))) * time.Second
	} else if until, err := http.ParseTime(value); err == nil {
		if date, err := http.ParseTime(h.Get("Date")); err == nil {
			wait = until.Sub(date)
		}
	}
	return min(max(0, wait), maxRetryAfter)
}
