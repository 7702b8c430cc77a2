package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
)

// eventStream sends one answer as server-sent events.
type eventStream struct {
	x       *exchange
	control *http.ResponseController
	// chunk is the envelope of all events.
	chunk completion
	// sent counts the content chunks so far.
	sent int
}

// stream sends the answer as a real server does: the role, the content in chunks, the finish reason, the usage if
// the request asks for it, and [DONE].
func (x *exchange) stream() {
	s := &eventStream{x: x, control: http.NewResponseController(x.w), chunk: x.envelope("chat.completion.chunk")}
	if x.req.StreamOptions.IncludeUsage {
		s.chunk.Usage = json.RawMessage("null")
	}
	x.startEvents()
	role := replyDelta{Role: "assistant"}
	if len(x.answer.calls) == 0 {
		role.Content = new("")
	}
	// Flush the role before any chunk delay, so that the client measures the latency that the rule sets.
	if !s.send(role, nil) || !s.flush() || !s.reasoning() || !s.content() || !s.toolCalls() {
		return
	}
	fault := x.rule.Fault
	if fault.CutAfterChunks != nil { // the rule allows more chunks than the answer has
		x.cut()
	}
	if fault.EndWithoutFinish {
		if s.flush() {
			x.finish(OutcomeUnfinished)
		}
		return
	}
	if s.send(replyDelta{}, &x.answer.finish) && s.usage() && s.flush() {
		x.finish(OutcomeAnswered)
		if _, err := x.w.Write([]byte("data: [DONE]\n\n")); err != nil || s.control.Flush() != nil {
			x.entry.setUndelivered()
		}
	}
}

// startEvents sets the headers of a stream.
func (x *exchange) startEvents() {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.Header().Set("Cache-Control", "no-cache")
}

// reasoning sends the model's reasoning and reports whether the stream continues.
func (s *eventStream) reasoning() bool {
	reply := s.x.rule.Reply
	for piece := range chunks(s.x.answer.reasoning, cmp.Or(reply.ChunkChars, defaultChunkChars)) {
		var thought replyDelta
		thought.setReasoning(reply.ReasoningField, piece)
		if !s.beginChunk() || !s.send(thought, nil) {
			return false
		}
	}
	return true
}

// content sends the text and reports whether the stream continues.
func (s *eventStream) content() bool {
	if s.x.answer.text == nil {
		return true
	}
	for piece := range chunks(*s.x.answer.text, cmp.Or(s.x.rule.Reply.ChunkChars, defaultChunkChars)) {
		if !s.beginChunk() || !s.send(replyDelta{Content: &piece}, nil) {
			return false
		}
	}
	return true
}

// toolCalls sends for each call first its name and then its arguments in pieces, as real servers do. It reports whether
// the stream continues.
func (s *eventStream) toolCalls() bool {
	for i, call := range s.x.answer.calls {
		head := call
		head.Index, head.Function.Arguments = &i, ""
		if !s.beginChunk() || !s.send(replyDelta{ToolCalls: []wireToolCall{head}}, nil) {
			return false
		}
		for piece := range chunks(call.Function.Arguments, cmp.Or(s.x.rule.Reply.ChunkChars, defaultChunkChars)) {
			part := wireToolCall{Index: &i, Function: wireFunction{Arguments: piece}}
			if !s.beginChunk() || !s.send(replyDelta{ToolCalls: []wireToolCall{part}}, nil) {
				return false
			}
		}
	}
	return true
}

// beginChunk must be called before each content chunk. It closes the connection if the rule's cutAfterChunks is
// reached. Otherwise it waits for the chunk delay and reports whether the stream continues.
func (s *eventStream) beginChunk() bool {
	fault := s.x.rule.Fault
	if fault.CutAfterChunks != nil && s.sent >= *fault.CutAfterChunks {
		s.x.cut()
	}
	s.sent++
	if fault.ChunkDelayMilliseconds == 0 {
		return true
	}
	return s.flush() && s.x.pause(fault.ChunkDelayMilliseconds)
}

// usage sends a chunk with the usage and no choices, if the request asks for it. It reports whether the stream
// continues.
func (s *eventStream) usage() bool {
	if !s.x.req.StreamOptions.IncludeUsage {
		return true
	}
	last := s.chunk
	last.Usage = s.x.answer.usage.raw()
	return s.event(last)
}

func (s *eventStream) send(delta replyDelta, finish *FinishReason) bool {
	chunk := s.chunk
	chunk.Choices = []wireChoice{{Delta: &delta, FinishReason: finish}}
	return s.event(chunk)
}

// event writes one event and reports whether the client is still connected. If event returns false, the request is
// finished.
func (s *eventStream) event(chunk completion) bool {
	data, err := json.Marshal(chunk)
	if err != nil {
		panic(err) // the package's own types always encode
	}
	_, err = s.x.w.Write(bytes.Join([][]byte{[]byte("data: "), data, []byte("\n\n")}, nil))
	return s.isConnected(err)
}

func (s *eventStream) flush() bool { return s.isConnected(s.control.Flush()) }

// isConnected reports whether the last write succeeded and the client is connected. If not, it finishes the request.
func (s *eventStream) isConnected(err error) bool {
	if err == nil && s.x.r.Context().Err() == nil {
		return true
	}
	s.x.finish(OutcomeCancelled)
	return false
}
