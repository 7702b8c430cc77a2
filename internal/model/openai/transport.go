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

// response is what the transport notes of a response that the library does not hand on.
type response struct {
	// wanted is the content type that was asked for.
	wanted string
	// longest is how many bytes of a stream are read.
	longest     int
	status      int
	contentType string
	retryAfter  time.Duration
	// room is the memory of a long reply, watch what ends the request, nil before there is a response.
	room  room
	watch *watch
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// exchangeOf is the exchange that a request is of.
func exchangeOf(req *http.Request) *exchange {
	if x, ok := req.Context().Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{note: &response{}} // noted in vain
}

// The content types that are asked for.
const (
	eventStream = "text/event-stream"
	jsonObject  = "application/json"
)

// unlikely says so if the response was not of the type that was asked for, which points to a wrong base URL.
func unlikely(r *response) string {
	if r.contentType == "" || r.contentType == r.wanted {
		return ""
	}
	sent := "another type"
	if slices.Contains([]string{"text/html", "text/plain", jsonObject, eventStream}, r.contentType) {
		sent = r.contentType // any other would be the endpoint's own words
	}
	return fmt.Sprintf(" (the endpoint sent %s, not %s: check baseURL)", sent, r.wanted)
}

// errCaught is returned to the library for a request that is not sent yet.
var errCaught = errors.New("the request is caught, and not sent yet")

// transport sends requests for the library, in place of an http.Client: it adds headers, puts in the body that is to be sent, ends
// a request whose answer stands still, and bounds what is read. Of an http.Client it needs nothing but that errors are *url.Error.
// The request of an exchange is caught: the exchange sends it by itself, and the library then gets the response.
type transport struct {
	base      http.RoundTripper
	headers   []Header
	anonymous bool
	idle      time.Duration
}

// Do sends one request. A redirect is an error: it would carry the headers, and so their secrets, to another host.
func (t *transport) Do(req *http.Request) (*http.Response, error) {
	switch x := exchangeOf(req); {
	case x.resp != nil:
		return t.incoming(x, x.out, x.resp, x.watch)
	case x.sending != nil:
		x.out, x.watch = t.outgoing(req)
		x.sending.apply(x.out)
		return nil, errCaught
	default:
		out, w := t.outgoing(req)
		resp, err := t.base.RoundTrip(out)
		if err != nil {
			return nil, failed(out, w.ended(err))
		}
		return t.incoming(x, out, resp, w)
	}
}

// outgoing is what is sent for a request of the library, which is used up, and what ends it.
func (t *transport) outgoing(req *http.Request) (*http.Request, *watch) {
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

// incoming is what the library is given of a response.
func (t *transport) incoming(x *exchange, req *http.Request, resp *http.Response, w *watch) (*http.Response, error) {
	note := x.note
	note.status = resp.StatusCode
	note.contentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	note.retryAfter, note.watch = retryAfter(resp.Header), w
	most, streamed := mostOf(note, resp)
	b := &body{ReadCloser: resp.Body, watch: w, most: most, refusal: resp.StatusCode >= http.StatusBadRequest}
	if redirects(resp) {
		_ = b.Close() // nothing of it is read
		return nil, failed(req, errRedirect)
	}
	if err := netpolicy.CheckPlain(resp); err != nil {
		_ = b.Close() // nothing of it is read
		if resp.StatusCode < http.StatusBadRequest {
			return nil, failed(req, err)
		}
		resp.Body = http.NoBody // the status says what is wrong
		return resp, nil
	}
	if resp.Body = b; streamed || isEvents(resp.Header) {
		resp.Body = newEvents(b, w, note)
	}
	return resp, nil
}

// mostOf is how many bytes of a response are read, and says whether it is a stream, whatever its endpoint calls it.
func mostOf(note *response, resp *http.Response) (most int, streamed bool) {
	if note.wanted == eventStream && resp.StatusCode < http.StatusBadRequest {
		return note.longest, true
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return maxRefusal, false
	}
	return maxOther, false
}

// redirects says whether a response sends its reader elsewhere.
func redirects(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return resp.Header.Get("Location") != ""
	}
	return false
}

// failed is the error of a request that got no response, as an http.Client has it.
func failed(req *http.Request, err error) error {
	if wrong, ok := errors.AsType[tls.RecordHeaderError](err); ok && string(wrong.RecordHeader[:]) == "HTTP/" {
		err = http.ErrSchemeMismatch
	}
	return &url.Error{Op: req.Method, URL: req.URL.Redacted(), Err: err}
}

// watch ends a request whose answer stands still: its events restart the time, its bytes do not. An endpoint that sends
// comments, or one byte at a time, would otherwise hold a Turn, and its slot, for as long as it likes. The first event must
// arrive within the same time, and so must the whole of a response that is no event stream.
type watch struct {
	ctx    context.Context //nolint:containedctx // because it is the request's, and its cause tells why a read failed
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

// ended lets go of a request that has failed, and returns why.
func (w *watch) ended(err error) error {
	if errors.Is(context.Cause(w.ctx), errIdle) {
		err = errIdle
	}
	w.end()
	return err
}

// event restarts the time: a part of the answer has arrived.
func (w *watch) event() { w.timer.Reset(w.idle) }

// end lets go of the request.
func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// body is a response body that ends when its time is over, or when too much arrives.
type body struct {
	io.ReadCloser
	*watch
	// most is how many bytes are read, and read how many were.
	most, read int
	// refusal ends where no more is read, as if it had no more.
	refusal bool
}

// Read reads. The end of the body is that of the request: the library does not close the body of a refusal.
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
		err = b.ended(err)
	}
	return n, err
}

// Close closes the body and ends its request.
func (b *body) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// maxRetryAfter bounds what an endpoint may ask for; a longer wait never fits into a Turn.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads how long an endpoint asks to wait: seconds, or a date, which is compared with the endpoint's own.
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
