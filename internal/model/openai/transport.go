package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"
)

var (
	errIdle     = errors.New("no byte arrived in time")
	errTooLong  = errors.New("the response is too long")
	errRedirect = errors.New("the endpoint redirects elsewhere")
)

// response is what the transport notes of a response that the library does not hand on.
type response struct {
	// wanted is the content type that was asked for.
	wanted      string
	status      int
	contentType string
	retryAfter  time.Duration
}

type responseKey struct{}

func withResponse(ctx context.Context, r *response) context.Context {
	return context.WithValue(ctx, responseKey{}, r)
}

// The content types that are asked for.
const (
	eventStream = "text/event-stream"
	jsonObject  = "application/json"
)

// unlikely says so if the response was not of the type that was asked for, which points to a wrong base URL.
func (p *Provider) unlikely(r *response) string {
	if r.contentType == "" || r.contentType == r.wanted {
		return ""
	}
	return fmt.Sprintf(" (the endpoint sent %s, not %s: check baseURL)", p.clean(r.contentType), r.wanted)
}

// transport adds headers, puts in the body that is to be sent, ends a request on which nothing arrives, and bounds what is read.
type transport struct {
	base      http.RoundTripper
	headers   []Header
	anonymous bool
	idle      time.Duration
}

// RoundTrip sends one request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(t.idle, func() { cancel(errIdle) })
	out := req.Clone(ctx)
	if t.anonymous {
		out.Header.Del("Authorization") // the library sends an empty bearer token
	}
	for _, h := range t.headers {
		out.Header.Set(h.Name, h.Value)
	}
	if s, ok := req.Context().Value(sendingKey{}).(*sending); ok {
		s.apply(out)
	}
	resp, err := t.base.RoundTrip(out)
	if err != nil {
		timer.Stop()
		cause := context.Cause(ctx)
		cancel(nil)
		if errors.Is(cause, errIdle) {
			return nil, errIdle
		}
		return nil, err
	}
	if note, ok := req.Context().Value(responseKey{}).(*response); ok {
		note.status = resp.StatusCode
		note.contentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
		note.retryAfter = retryAfter(resp.Header)
	}
	b := &body{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, idle: t.idle, left: MaxReplyBytes}
	if resp.Body = b; isEvents(resp.Header) {
		resp.Body = newEvents(b)
	}
	return resp, nil
}

// body is a response body that ends when nothing arrives, or too much.
type body struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // because it is the request's, and its cause tells why a read failed
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
	left   int
}

// Read reads, and starts the idle time anew when bytes arrive.
func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.end()
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	if n > 0 {
		b.timer.Reset(b.idle)
	}
	if err != nil {
		if errors.Is(context.Cause(b.ctx), errIdle) {
			err = errIdle
		}
		b.end()
	}
	return n, err
}

// end lets go of the request. It is called at the end of the body too: the library does not close that of a refusal.
func (b *body) end() {
	b.timer.Stop()
	b.cancel(nil)
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
