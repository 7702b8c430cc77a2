package mcp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// maxNoticeBytes bounds one event of the stream that no request has asked for. Nothing reserves memory for it, and each ToolServer may
	// have such a stream. What matters there, a change of the tools and pings, has less than 1 KiB.
	maxNoticeBytes = 64 << 10
	// maxResumes bounds how often the stream of an answer is taken up again without anything new.
	maxResumes = 3
	// drainTimeout and drainBytes bound what is read after an answer, so that its connection can be used again.
	// minRetry is how long the standing stream is left alone after it broke, whatever shorter time the server asks for, and
	// minResume the stream of an answer.
	minRetry     = time.Second
	minResume    = 100 * time.Millisecond
	drainTimeout = 250 * time.Millisecond
	drainBytes   = 4 << 10
)

// stream is a stream of events, taken up again where it broke if the server allows that. The SDK is given of it the response
// that is waited for, and nothing else: what servers tell and ask is dealt with here, one message after the other, so that
// nothing piles up.
type stream struct {
	wire    *wire
	ctx     context.Context //nolint:containedctx // because it is the request's
	cancel  context.CancelCauseFunc
	release func() // parts the request from its caller
	header  http.Header
	ex      *exchange
	// call is waited for; a standing stream waits for none.
	call     jsonrpc.ID
	standing bool

	body  io.ReadCloser
	lines *bufio.Reader
	size  int // of the event that is being read, in bytes
	line  []byte
	left  int // bytes that may still be read
	flow  fairgate.Flow

	lastID  string
	retry   time.Duration // that the server asks for; 0 if it does not
	pause   *backoff.ExponentialBackOff
	resumes int
	out     []byte
	done    bool
}

// standing returns the stream of what a server tells without being asked. It connects when it is read, for as long as the
// session lives, and again when it broke.
func (w *wire) standing(req *http.Request) *http.Response {
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(w.life, func() { cancel(ErrClosed) }) //nolint:contextcheck // because the connection may end before the request
	s := &stream{wire: w, ctx: ctx, cancel: cancel, release: func() { stop() }, header: req.Header, standing: true, pause: newPause()}
	resp := reply(req, &http.Response{}, http.StatusOK, eventsType, nil)
	resp.Body, resp.ContentLength = s, -1
	return resp
}

// begin reads from a body, at most so many bytes.
func (s *stream) begin(body io.ReadCloser, limit int) {
	s.body, s.left = body, limit
	s.lines = bufio.NewReader(body)
}

// Read returns what is for the SDK.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		if s.done {
			return 0, io.EOF
		}
		if s.standing {
			s.listen()
		} else {
			s.await()
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// Close ends the stream. After an answer, little and not for long is read before, since the server ends it just then.
func (s *stream) Close() error {
	s.release()
	defer s.cancel(ErrClosed)
	if s.body == nil {
		return nil
	}
	if s.done && !s.standing && len(s.out) == 0 {
		timer := time.AfterFunc(drainTimeout, func() { s.cancel(ErrClosed) })
		_, _ = io.CopyN(io.Discard, s.body, drainBytes) // nothing of it is needed
		timer.Stop()
	}
	return s.body.Close()
}

// await reads one event of the stream of an answer.
func (s *stream) await() {
	data, err := s.event()
	switch {
	case err == nil:
		if s.handle(data); !s.done {
			s.ex.free() // it was no answer
		}
	case errors.Is(err, errTooLong), errors.Is(err, errSlow):
		s.give(err)
	case s.lastID == "" || s.resumes >= maxResumes:
		s.give(errBroken)
	default:
		s.resumes++
		s.resume()
	}
}

// give gives up waiting for an answer.
func (s *stream) give(cause error) {
	s.ex.fail(cause)
	s.done = true
}

// resume takes up the stream of an answer where it broke.
func (s *stream) resume() {
	_ = s.body.Close() // it is broken
	if s.pause == nil {
		s.pause = newPause()
	}
	if !s.sleep() {
		s.give(errBroken)
		return
	}
	resp, err := s.get() //nolint:bodyclose // because the stream closes it
	if err != nil {
		if refusal, refused := errors.AsType[*statusError](err); refused && !passing(refusal.status) || errors.Is(err, errSession) {
			s.give(errBroken)
		}
		s.body = http.NoBody
		s.lines.Reset(s.body)
		return
	}
	s.begin(resp.Body, s.left)
}

// listen reads one event of the standing stream, or connects it. It returns when that is done.
func (s *stream) listen() {
	if s.body == nil {
		s.tune()
		return
	}
	s.left = maxNoticeBytes
	data, err := s.event()
	if err == nil {
		s.handle(data)
		return
	}
	_ = s.body.Close() // it is broken
	s.body = nil
	if !s.sleep() {
		s.done = true
	}
}

// tune connects the standing stream. A server that has none is not asked again.
func (s *stream) tune() {
	resp, err := s.get() //nolint:bodyclose // because the stream closes it
	refusal, refused := errors.AsType[*statusError](err)
	switch {
	case err == nil:
		if s.lines != nil {
			s.wire.onChange() // who knows what was told in between
		}
		s.begin(resp.Body, maxNoticeBytes)
	case errors.Is(err, errSession), refused && !passing(refusal.status):
		<-s.ctx.Done()
		s.done = true
	default:
		s.done = !s.sleep()
	}
}

// passing says whether a refusal of a stream may be none in a while. A server says conflict while it has not noticed yet that the
// stream before is gone.
func passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError
}

// get asks for the stream, from the last event on. A server that answers with something else has refused.
func (s *stream) get() (*http.Response, error) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.wire.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header = s.header.Clone()
	req.Header.Del("Content-Type")
	req.Header.Set("Accept", eventsType)
	if s.lastID != "" {
		req.Header.Set(lastEventIDHeader, s.lastID)
	}
	resp, err := s.wire.do(req)
	if err != nil {
		return nil, err
	}
	err = s.wire.refusal(req, resp)
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && kind != eventsType {
		err = &statusError{status: resp.StatusCode}
	}
	if err != nil {
		_ = resp.Body.Close() // nothing of it is needed
		return nil, err
	}
	return resp, nil
}

// sleep waits before the next attempt, and says whether there is to be one.
func (s *stream) sleep() bool {
	// What the server asks for may be longer than the pause, which grows while no message arrives, and never shorter.
	wait := nextPause(s.pause)
	if s.standing && s.retry > 0 {
		wait = max(wait, s.retry, minRetry)
	}
	if !s.standing && s.retry > 0 {
		wait = max(s.retry, minResume)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}
