package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// event reads one event and returns its message, or nil if the event has none or its message is skipped. An incomplete
// event is not returned, and its ID does not count, so that a resumed stream begins with this event.
func (s *stream) event() ([]byte, error) {
	var data []byte
	message, id := true, s.lastID
	s.size, s.oversized, s.skipped = 0, false, nil
	s.flow.Wait(s.ctx)
	for {
		line, err := s.readLine(data == nil)
		if errors.Is(err, errTooLong) {
			s.lastID = id // a standing stream must not begin with this event again
		}
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if id != s.lastID {
				s.lastID, s.resumes = id, 0
			}
			if !message || s.oversized {
				data = nil
			}
			return data, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if data != nil {
				data = append(data, ' ') // in JSON, a space means the same as a line break
			}
			if data == nil && len(value) > unreservedBytes {
				data, s.line = value, nil // not copied, because it is large
				continue
			}
			data = append(data, value...)
		case "event":
			// An empty type counts as "message": html.spec.whatwg.org/multipage/server-sent-events.html. Some servers
			// send a response that is an error in an event of the type "error" (python-sdk#1514).
			message = len(value) == 0 || string(value) == "message" || string(value) == "error" && !s.standing
		case "id":
			id = string(value[:min(len(value), 1024)])
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				s.retry = min(max(time.Duration(ms)*time.Millisecond, time.Millisecond), maxBackoff)
			}
		}
	}
}

// readLine reads a line and returns it without its end. isFirst reports whether the event has no data so far.
func (s *stream) readLine(isFirst bool) ([]byte, error) {
	if cap(s.line) > unreservedBytes { // its reservation may have been released
		s.line = nil
	}
	s.line = s.line[:0]
	for {
		part, err := s.lines.ReadSlice('\n')
		if s.left -= len(part); s.left < 0 {
			return nil, errTooLong
		}
		isLarge := s.size+len(part) > unreservedBytes
		if isLarge && s.size <= unreservedBytes { // the limit is reached now
			if s.oversized = s.standing; !s.standing && isFirst {
				s.skipped = s.peek(append(s.line, part...)) // at most two buffers of the reader
				s.oversized = s.skipped != nil
			}
		}
		s.size += len(part)
		if isLarge && !s.oversized {
			if _, err := s.ex.reserve(s.ctx, s.wire, int64(s.size), MaxResponseBytes, s.cancel); err != nil {
				return nil, err
			}
			s.ex.countReceived(len(part))
		}
		switch {
		case !s.oversized:
			s.line = append(s.line, part...)
		case len(s.line) == 0 && err == nil && bytes.HasPrefix(part, []byte("id:")): // where to resume the stream
			s.line = append(s.line, part...)
		case s.skipped != nil && len(s.line) > 0: // the beginning of a skipped message, which is not used
			s.line = append(s.line[:0], ':')
		case len(s.line) == 0 && len(bytes.TrimRight(part, "\r\n")) > 0:
			s.line = append(s.line, ':') // the line is skipped like a comment
		}
		if err == nil {
			return bytes.TrimRight(s.line, "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, s.readError(err)
		}
	}
}

// peek returns the envelope of a message by the beginning of its event, if the message is not the response that the
// stream is for. It returns nil if the beginning does not show this. So a server that sends large notifications, such
// as logs, needs neither memory nor the work of decoding them.
func (s *stream) peek(line []byte) *envelope {
	value, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return nil
	}
	var m envelope
	members := json.NewDecoder(bytes.NewReader(value))
	if begin, err := members.Token(); err != nil || begin != json.Delim('{') {
		return nil
	}
	for {
		name, err := members.Token()
		if err != nil {
			return nil
		}
		if name != "jsonrpc" && name != "method" && name != "id" {
			if m.id.IsValid() && !isSameID(m.id, s.call) { // the response to another request
				return &m
			}
			return nil
		}
		value, err := members.Token()
		if err != nil {
			return nil
		}
		switch name {
		case "method":
			if m.Method, ok = value.(string); !ok {
				return nil
			}
		case "id":
			if m.id, err = jsonrpc.MakeID(value); err != nil {
				return nil
			}
		}
		if strings.HasPrefix(m.Method, "notifications/") || m.Method != "" && m.id.IsValid() {
			return &m
		}
	}
}

// handle processes one message.
func (s *stream) handle(data []byte) {
	if s.skipped != nil {
		s.handleOther(s.skipped)
		return
	}
	if len(data) == 0 {
		return
	}
	m, err := decodeEnvelope(s.ctx, data)
	switch {
	case !s.standing && (err != nil || m.isErrorWithoutID()) && s.wire.deniesSession(s.header, data):
		s.abort(&sessionError{detail: string(data)})
		return
	case err != nil && !s.standing && m.isMeantFor(s.call):
		s.abort(err)
		return
	case err != nil:
		// Some servers send heartbeats as data (PhilflowIO/dav-mcp#31). The clients of the reference SDKs ignore such
		// events, too. The limits of the response's size and time apply.
		s.ignored = true
		return
	case !s.standing && m.answers(s.call):
		s.release()
		s.ex.keep(data, m.isErrorWithoutID())
		s.out = slices.Concat([]byte("data: "), s.ex.stub(s.call, &m, data), []byte("\n\n"))
		s.done = true
		return
	}
	s.handleOther(&m)
}

// handleOther processes a message that is not the response of the stream.
func (s *stream) handleOther(m *envelope) {
	if s.listen != nil && (m.Method == "" || m.Method == "notifications/subscriptions/acknowledged") {
		// the begin or the end of the stream, after which the pause must grow
		s.accepted = s.accepted || m.Method != ""
		s.refused = !s.accepted && m.Error == hasValue
		return
	}
	if m.isErrorWithoutID() {
		return // it belongs to no request, and must not shorten the pause of a standing stream
	}
	s.resumes = 0
	if s.pause != nil {
		s.pause.Reset()
	}
	switch {
	case m.Method == "": // the response to another request
	case m.id.IsValid():
		s.replyTo(m)
	case m.Method == "notifications/tools/list_changed":
		s.wire.onChange()
	}
}

// replyTo replies to a request of the server: to a ping as the protocol says, to any other request with an error.
func (s *stream) replyTo(m *envelope) {
	answer := &jsonrpc.Response{ID: m.id, Result: json.RawMessage("{}")}
	if m.Method != "ping" {
		answer.Result = nil
		answer.Error = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this client serves no requests"}
	}
	body, err := jsonrpc.EncodeMessage(answer)
	if err != nil {
		return
	}
	ctx, cancel := s.wire.withTimeout(s.ctx, messageTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.wire.url, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header = s.header.Clone()
	req.Header.Del(lastEventIDHeader)
	req.Header.Set("Content-Type", jsonType)
	req.Header.Set("Accept", jsonType+", "+eventsType)
	if resp, err := s.wire.client.Do(req); err == nil {
		_ = resp.Body.Close() // nothing here depends on the outcome
	}
}
