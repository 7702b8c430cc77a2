package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/span"
)

var (
	errIdle     = errors.New("no part of an answer arrived in time")
	errRedirect = errors.New("the endpoint redirects elsewhere")
)

// exchange is one request and its answer. It is for one goroutine only.
type exchange struct {
	provider *Provider
	// wanted is the requested content type.
	wanted string
	// embeds is true if the answer has vectors.
	embeds bool
	// decoder reads the events of a reply. It is nil for a probe and for vectors.
	decoder Decoder
	// requestID is the ID of the request for the endpoint's logs, or empty.
	requestID string
	// tools are the tools of the request.
	tools []model.Tool
	// outputLimit is the maximum number of tokens of the output that the request states, or 0.
	outputLimit int
	// first bounds the time to the first part of the answer. 0 means no bound.
	first time.Duration
	// out is the HTTP request, and watch ends it after a timeout. Both are nil if the request could not be made.
	out   *http.Request
	watch *watch
	// resp is the response. err says why there is no response, or why the request was not sent.
	resp *http.Response
	err  error
	// status, contentType, date (the header Date) and retryAfter are properties of the response. limitReset is the wait
	// until the limits that are used up are reset, or 0. It is set only if the response has status 429.
	status                 int
	contentType, date      string
	retryAfter, limitReset time.Duration
	// observer follows the answer. It may be nil.
	observer model.Observer
	// facts receives facts about the answer. It may be nil.
	facts *model.Facts
	// payload is the body of the request, or nil.
	payload *payload
	// memory is the memory of the reply.
	memory replyMemory
}

func (p *Provider) newExchange(ctx context.Context, wanted string) *exchange {
	return &exchange{provider: p, wanted: wanted, memory: replyMemory{account: p.cfg.Memory.For(ctx)}}
}

// Content types of answers; jsonObject is also that of request bodies.
const (
	eventStream = "text/event-stream"
	jsonObject  = "application/json"
)

// contentTypeHint returns a hint if the response has another content type than requested, because that points to a
// wrong base URL.
func (x *exchange) contentTypeHint() string {
	if x.contentType == "" || x.contentType == x.wanted {
		return ""
	}
	sent := "another type"
	if slices.Contains([]string{"text/html", "text/plain", jsonObject, eventStream}, x.contentType) {
		sent = x.contentType // any other type could be any text of the endpoint
	}
	return fmt.Sprintf(" (the endpoint sent %s, not %s: check baseURL)", sent, x.wanted)
}

// open makes an HTTP request to a path below the base URL, and starts the timer for the first part of its answer. It
// sends nothing.
func (x *exchange) open(ctx context.Context, method, path string) {
	cfg := &x.provider.cfg
	ctx, cancel := context.WithCancelCause(ctx)
	out, err := http.NewRequestWithContext(ctx, method, cfg.BaseURL+path, http.NoBody)
	if err != nil {
		cancel(nil)
		x.err = Unsendable("%s", x.provider.clean(err.Error()))
		return
	}
	x.out = out
	x.watch = newWatch(ctx, cancel, x.first, cfg.IdleTimeout)
	out.Header.Set("Accept", x.wanted)
	if parent := span.HeaderOf(ctx); parent != "" {
		out.Header.Set(span.Header, parent)
	}
	for _, h := range cfg.Headers {
		out.Header.Set(h.Name, h.Value)
	}
	x.provider.protocol.SetHeaders(out.Header, cfg.APIKey, x.requestID)
	if cfg.BearerToken != "" {
		out.Header.Set("Authorization", "Bearer "+cfg.BearerToken)
	}
	netpolicy.AskPlain(out)
}

// accept returns the body of a successful response, with a bound and the timer, or the error of a refused or failed
// request. Every redirect with a Location is an error, because it could carry the headers, and their secrets, to
// another host.
func (x *exchange) accept(ctx context.Context) (*body, error) {
	if x.err != nil && x.watch != nil {
		return nil, urlError(x.out, x.watch.fail(x.err))
	}
	if x.err != nil {
		return nil, x.err
	}
	resp := x.resp
	x.status = resp.StatusCode
	x.contentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	stated := statedLimits(resp.Header)
	if x.observer != nil {
		x.observer.ObserveLimits(stated)
	}
	x.retryAfter, x.date = retryAfter(resp.Header), resp.Header.Get("Date")
	if resp.StatusCode == http.StatusTooManyRequests {
		x.limitReset = limitReset(stated)
	}
	if proxy := netpolicy.ProxyHost(x.out); proxy != "" && resp.StatusCode == http.StatusProxyAuthRequired {
		x.watch.release()     // the proxy has sent the response: this happens for an endpoint without TLS
		_ = resp.Body.Close() // it is not read
		return nil, x.provider.cfg.Policy.NewProxyError(proxy, x.out.URL.Host, resp.StatusCode)
	}
	refused := resp.StatusCode >= http.StatusBadRequest
	if refused {
		x.watch.noteProgress() // from now on, the idle timeout applies: the body of an error does not take long
	}
	b := &body{ReadCloser: fairgate.Pace(ctx, resp.Body), watch: x.watch, limit: x.bodyLimit(), refusal: refused}
	redirected, plain := redirects(resp), netpolicy.CheckPlain(resp)
	resp.Header, resp.Trailer = nil, nil // they could take hundreds of KiB while the body is read
	switch {
	case redirected:
		_ = b.Close() // it is not read
		return nil, urlError(x.out, errRedirect)
	case plain != nil && !refused:
		_ = b.Close() // it is not read
		return nil, urlError(x.out, plain)
	case refused:
		defer b.Close() //nolint:errcheck // because it was read
		return nil, x.refusal(b, plain == nil)
	}
	return b, nil
}

// refusal returns the error of an HTTP error response. If the body is not readable, the status is enough.
func (x *exchange) refusal(body io.Reader, readable bool) error {
	var data []byte
	if readable {
		data, _ = io.ReadAll(body) // if the body stalls or breaks, the part that has arrived
	}
	return x.errorOf(data, x.status)
}

// bodyLimit returns the number of bytes of the response that are read. An answer is read as a stream, whatever
// content type the endpoint states.
func (x *exchange) bodyLimit() int {
	switch {
	case x.resp.StatusCode >= http.StatusBadRequest:
		return maxRefusal
	case x.wanted == eventStream:
		return cmp.Or(x.provider.cfg.MaxStreamBytes, MaxStreamBytes)
	case x.embeds:
		return maxVectors
	}
	return maxOther
}

// hasOwnEnd reports whether the end of a response differs from a broken connection: it has a length, or a mark of its
// end.
func hasOwnEnd(resp *http.Response) bool {
	return resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0 || resp.ProtoMajor > 1
}

// redirects reports whether a response is a redirect.
func redirects(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return resp.Header.Get("Location") != ""
	}
	return false
}

// urlError returns the error of a request without a usable response, in the form of an http.Client.
func urlError(req *http.Request, err error) error {
	if notTLS, ok := errors.AsType[tls.RecordHeaderError](err); ok && string(notTLS.RecordHeader[:]) == "HTTP/" {
		err = http.ErrSchemeMismatch
	}
	return &url.Error{Op: req.Method, URL: req.URL.Redacted(), Err: err}
}

// watch ends a request whose answer makes no progress. Events restart the timer. Single bytes do not: otherwise an
// endpoint that sends comments, or one byte at a time, could hold a Turn and its slot for ever. The first part of the
// answer has a limit of its own, because a model may think for long before it, and some endpoints send empty events
// immediately. The whole of a response that is not an event stream counts as the first part.
type watch struct {
	ctx    context.Context //nolint:containedctx // because it is the request's, and its cause tells why a read failed
	cancel context.CancelCauseFunc
	timer  *time.Timer
	// idle is the longest time between two parts of an answer without pings; with pings it is pingPatience times as
	// long. limit is the time without a part of an answer after which the request ends.
	idle, limit time.Duration
	// begun is the time of the request. last is the time of the last part of the answer, or zero before the first part.
	begun, last time.Time
}

// pingPatience is the number of idle times that may pass between two parts if pings arrive meanwhile. Some models
// compose one argument of a call for more than five minutes.
const pingPatience = 10

// newWatch starts the timer for the first part of the answer. If first is 0, the timer does not fire before that part.
func newWatch(ctx context.Context, cancel context.CancelCauseFunc, first, idle time.Duration) *watch {
	if first == 0 {
		first = math.MaxInt64
	}
	return &watch{
		ctx: ctx, cancel: cancel, timer: time.AfterFunc(first, func() { cancel(errIdle) }), idle: idle, limit: first,
		begun: time.Now(), //nolint:forbidigo // because a duration is measured, not a time of day
	}
}

// fail releases a failed request and returns the reason of the failure.
func (w *watch) fail(err error) error {
	defer w.release()
	return w.reason(err)
}

// reason returns the reason of a failure.
func (w *watch) reason(err error) error {
	if errors.Is(context.Cause(w.ctx), errIdle) {
		return errIdle
	}
	return err
}

// noteProgress restarts the timer, because a part of the answer has arrived.
func (w *watch) noteProgress() {
	w.last = time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	w.limit = w.idle
	w.restart()
}

// restart restarts the timer with the current limit.
func (w *watch) restart() { w.timer.Reset(w.limit) }

// notePing restarts the timer within an answer, because the endpoint still works. But pings alone must not keep a
// request open for ever.
func (w *watch) notePing() {
	if w.last.IsZero() {
		return
	}
	wait := w.idle
	if left := pingPatience*w.idle - time.Since(w.last); left < wait {
		wait, w.limit = max(left, 0), pingPatience*w.idle
	}
	w.timer.Reset(wait)
}

// release releases the request.
func (w *watch) release() {
	w.timer.Stop()
	w.cancel(nil)
}

// body is a response body that ends when its timer fires or when it exceeds its bound.
type body struct {
	io.ReadCloser
	*watch
	// limit is the number of bytes that may be read. read is the number of bytes that were read.
	limit, read int
	// refusal is true for an error response: its body ends at the bound without an error.
	refusal bool
}

// Read reads from the body. At the end of the body it stops the timer. Only Close ends the request, because the bytes
// that were read may still have to wait for memory.
func (b *body) Read(p []byte) (int, error) {
	if b.read >= b.limit {
		b.timer.Stop()
		if b.refusal {
			return 0, io.EOF
		}
		return 0, tooManyBytes("the answer", b.limit)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.limit-b.read)])
	b.read += n
	if err != nil {
		b.timer.Stop()
		err = b.reason(err)
	}
	return n, err
}

// The bounds of the rest of a body after the end of an answer: its size in bytes, and the time in which it arrives.
const (
	maxRest  = 4 << 10
	restTime = 100 * time.Millisecond
)

// readRest reads the rest of the body after a whole answer, within bounds. Without it, the connection could be used for
// another request only if the end of the body has arrived together with the answer, and proxies would log that the
// client has closed the connection. Most servers end the body a moment after the answer, and some never do.
func (b *body) readRest() {
	b.timer.Reset(restTime)
	_, _ = io.CopyN(io.Discard, b, maxRest) // if it fails, the connection is closed
}

// Close closes the body and ends its request.
func (b *body) Close() error {
	b.release()
	return b.ReadCloser.Close()
}
