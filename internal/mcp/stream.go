package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// maxStandingEvent is the maximum size of an event in the standing stream. Each ToolServer may have such a stream,
	// and no memory is reserved for its events. So an event of more than unreservedBytes is read but not kept. The
	// important events, changes of the tools and pings, have less than 1 KiB.
	maxStandingEvent = 64 << 10
	// maxFailedResumes is how many attempts in a row to resume the stream of a response may fail. Only the time limit
	// of the request limits successful attempts: a server may close the stream again and again until it has the
	// response (SEP-1699, in the protocol since version 2025-11-25). The clients of the reference SDKs resume it each
	// time.
	maxFailedResumes = 3
	// minRetry is the minimum pause before the standing stream is opened again if the server asks for a pause.
	// minResume is the same for the stream of a response. It becomes minRetry after quickResumes attempts without a new
	// message and without an event that has a new ID.
	minRetry     = time.Second
	minResume    = 100 * time.Millisecond
	quickResumes = 3
	// drainTimeout and drainBytes limit what is read after a response so that its connection can be reused.
	drainTimeout = 250 * time.Millisecond
	drainBytes   = 4 << 10
)

// stream is a stream of events. It is resumed after a break if the server supports that. The SDK gets only the response
// that it waits for. The stream handles the notifications and requests of the server, one after another, so that they
// do not pile up.
type stream struct {
	wire    *wire
	ctx     context.Context //nolint:containedctx // because the context belongs to the request
	cancel  context.CancelCauseFunc
	release func() // detaches the request from its caller
	header  http.Header
	ex      *exchange
	// call is the ID of the request whose response the stream contains. A standing stream has none.
	call     jsonrpc.ID
	standing bool
	// listen is the message that opens a standing stream in newer versions of the protocol. If it is nil, a GET opens
	// the stream.
	listen []byte
	// accepted is true if the server has ever accepted listen. refused is true if it has answered listen with an error,
	// and has never accepted it.
	accepted, refused bool
	attempts          int // number of attempts to open the standing stream

	body  io.ReadCloser
	lines *bufio.Reader
	size  int // size of the current event in bytes
	// oversized is true from the moment when an event is too large to be kept: any large event of the standing stream,
	// and an event with a skipped message.
	oversized bool
	// skipped is the envelope of a message of the current event that is not kept, or nil.
	skipped *envelope
	line    []byte
	left    int // number of bytes that may still be read
	flow    fairgate.Flow

	lastID  string        // of the last event that arrived completely
	retry   time.Duration // requested by the server; 0 if it has not requested any
	pause   *backoff.ExponentialBackOff
	resumes int    // number of attempts to resume the stream since the last message or event with a new ID
	failed  int    // number of attempts that have failed since the last successful one
	ignored bool   // an event of the response's stream was ignored because it is not a message of the protocol
	out     []byte // data for the SDK that Read has not returned yet
	done    bool
}

// openStandingStream returns the stream of messages that the server sends on its own: see stream.listen. The stream
// connects on the first read, and again after its connection breaks, until the session ends. So no caller waits for a
// server that does not respond.
func (w *wire) openStandingStream(req *http.Request, listen []byte) *http.Response {
	// The SDK's context of the request lacks the namespace of the client, which must take its turn.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(w.life))
	//nolint:contextcheck // because the context belongs to the request
	stopRequest := context.AfterFunc(req.Context(), func() { cancel(context.Cause(req.Context())) })
	//nolint:contextcheck // because the connection may end before the request
	stopLife := context.AfterFunc(w.life, func() { cancel(ErrClosed) })
	s := &stream{
		wire: w, ctx: ctx, cancel: cancel, release: func() { stopRequest(); stopLife() },
		header: req.Header, standing: true, listen: listen, pause: newPause(),
	}
	resp := reply(req, &http.Response{}, http.StatusOK, eventsType, nil)
	resp.Body, resp.ContentLength = s, -1
	return resp
}

// begin starts to read at most limit bytes from a body.
func (s *stream) begin(body io.ReadCloser, limit int) {
	s.body, s.left = fairgate.Pace(s.ctx, body), limit
	s.lines = bufio.NewReader(s.body)
}

// Read returns data for the SDK.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		if s.done {
			return 0, io.EOF
		}
		if s.standing {
			s.readStanding()
		} else {
			s.readResponse()
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// Close ends the stream. After a response, Close first reads up to drainBytes for up to drainTimeout: the server then
// ends the stream, so that the connection can be reused.
func (s *stream) Close() error {
	s.release()
	defer s.cancel(ErrClosed)
	if s.body == nil {
		return nil
	}
	if s.done && !s.standing && len(s.out) == 0 {
		timer := time.AfterFunc(drainTimeout, func() { s.cancel(ErrClosed) })
		_, _ = io.CopyN(io.Discard, s.body, drainBytes) // only the end of the stream matters
		timer.Stop()
	}
	return s.body.Close()
}

// readResponse reads one event of the stream of a response.
func (s *stream) readResponse() {
	data, err := s.event()
	switch {
	case err == nil:
		if s.handle(data); !s.done {
			s.ex.free() // the event was not the response
		}
	case errors.Is(err, errTooLong), errors.Is(err, errSlow), errors.Is(err, bytebudget.ErrNoSpace):
		s.abort(err)
	case s.lastID == "" && s.ignored && errors.Is(err, io.EOF): // an ignored event may have been the response
		s.abort(errProtocol)
	case s.lastID == "" || s.failed >= maxFailedResumes:
		s.abort(errBroken)
	default:
		s.resumes++
		s.resume()
	}
}

// abort stops waiting for a response.
func (s *stream) abort(cause error) {
	s.ex.fail(cause)
	s.done = true
}

// resume resumes the stream of a response after a break.
func (s *stream) resume() {
	_ = s.body.Close() // the body is broken
	if s.pause == nil {
		s.pause = newPause()
	}
	if !s.sleep() {
		s.abort(errBroken)
		return
	}
	resp, err := s.get() //nolint:bodyclose // because the stream closes it
	if err != nil {
		if refusal, refused := errors.AsType[*statusError](err); refused && !isTemporary(refusal.status) || errors.Is(err, errSession) {
			s.abort(errBroken)
		}
		s.failed++
		s.body = http.NoBody
		s.lines.Reset(s.body)
		return
	}
	s.failed = 0
	s.pause.Reset()
	s.begin(resp.Body, s.left)
}

// readStanding reads one event of the standing stream, or connects the stream.
func (s *stream) readStanding() {
	if s.body == nil {
		s.openStream()
		return
	}
	s.left = maxStandingEvent
	data, err := s.event()
	if err == nil {
		s.handle(data)
	}
	if err == nil && !s.refused {
		return
	}
	_ = s.body.Close() // the body is broken or useless
	s.body = nil
	if s.refused {
		s.awaitEnd()
	} else if !s.sleep() {
		s.done = true
	}
}

// awaitEnd waits until the session ends, because the server has no standing stream.
func (s *stream) awaitEnd() {
	<-s.ctx.Done()
	s.done = true
}

// openStream connects the standing stream. If the server has no such stream, openStream waits until the
// session ends.
func (s *stream) openStream() {
	if s.attempts++; s.attempts > 1 && s.listen != nil {
		// A server may refuse an ID until it has noticed that the stream of the earlier request with this ID has ended.
		s.listen = withID(s.listen, fmt.Sprintf("listen-%d", s.attempts))
	}
	resp, err := s.get() //nolint:bodyclose // because the stream closes it
	refusal, refused := errors.AsType[*statusError](err)
	switch {
	case err == nil:
		if s.attempts > 1 {
			s.wire.onChange() // changes may have been missed
		}
		s.begin(resp.Body, maxStandingEvent)
	case errors.Is(err, errSession), refused && !isTemporary(refusal.status):
		s.awaitEnd()
	default:
		s.done = !s.sleep()
	}
}

// withID returns a message with another ID, which is a text or a number.
func withID(message []byte, id any) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(message, &members) != nil {
		return message
	}
	raw, err := json.Marshal(id)
	if err != nil {
		return message
	}
	members["id"] = raw
	changed, err := json.Marshal(members)
	if err != nil {
		return message
	}
	return changed
}

// isTemporary reports whether the refusal of a stream may be temporary. A server replies with Conflict until it notices
// that the previous stream has ended.
func isTemporary(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError
}

// get requests the stream, starting after the last event if a GET opens it. A reply with another content type counts as
// a refusal. So does status 404 for a standing stream that was never open: only later, this status means that the
// session is over.
func (s *stream) get() (*http.Response, error) {
	method := http.MethodGet
	if s.listen != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(s.ctx, method, s.wire.url, bytes.NewReader(s.listen))
	if err != nil {
		return nil, err
	}
	req.Header = s.header.Clone()
	if s.listen == nil {
		req.Header.Del("Content-Type")
		req.Header.Set("Accept", eventsType)
		if s.lastID != "" {
			req.Header.Set(lastEventIDHeader, s.lastID)
		}
	}
	resp, err := s.wire.do(req)
	if err != nil {
		return nil, err
	}
	if s.standing && s.lines == nil && resp.StatusCode == http.StatusNotFound {
		err = &statusError{status: resp.StatusCode} // the server may serve only POST, and the session is valid
	} else {
		err = s.wire.refusal(req, resp)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && kind != eventsType {
		err = &statusError{status: resp.StatusCode}
	}
	if err != nil {
		_ = resp.Body.Close() // the body is not needed
		return nil, err
	}
	return resp, nil
}

// sleep waits before the next attempt. It returns false if the stream ends before that attempt.
func (s *stream) sleep() bool {
	// The pause grows while no message arrives. If the server asks for a pause, too, the longer of the two applies to
	// the standing stream, and only the server's pause applies to the stream of a response.
	wait := nextPause(s.pause)
	if s.standing && s.retry > 0 {
		wait = max(wait, s.retry, minRetry)
	}
	if !s.standing && s.retry > 0 {
		wait = max(s.retry, minResume)
	}
	if !s.standing && s.resumes > quickResumes {
		wait = max(wait, minRetry)
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
