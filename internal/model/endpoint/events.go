package endpoint

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// endMark is the data of the event that ends a stream.
const endMark = "[DONE]"

// byteOrderMark may be at the beginning of a stream, and of any other body.
const byteOrderMark = "\ufeff"

// trimmed returns a body without a byte order mark and without white space around it.
func trimmed(body []byte) []byte {
	return bytes.TrimSpace(bytes.TrimPrefix(body, []byte(byteOrderMark)))
}

// events reads the events of a stream. It drops comments and fields other than data, of which some endpoints send many
// while a model thinks. Most events have one data line.
type events struct {
	lines *bufio.Reader
	// line is the current line, if it is longer than the buffer of lines.
	line []byte
	// parts are the data lines that have arrived of an event with several data lines.
	parts []byte
	// blank is true if the current line is blank.
	blank bool
	// other is the text of lines that belong to no event. Some endpoints send an error without an event.
	other []byte
	// begun is true after the first line, and done after the event that ends the stream. cut is true if the stream
	// ended within an event.
	begun, done, cut bool
	// within is true in the middle of an event, which a blank line ends. Other blank lines count as other text.
	within bool
	// count is the number of events so far, and between is the number of bytes that were dropped since the last event.
	count, between int
	// watch is notified of each ping.
	watch *watch
	// memory is the memory of the reply.
	memory *replyMemory
}

func newEvents(stream io.Reader, w *watch, memory *replyMemory) *events {
	return &events{lines: bufio.NewReader(stream), watch: w, memory: memory}
}

// next returns the data of the next event, which is valid until the next call, and io.EOF at the end of the stream.
// kept is the number of bytes that the reply keeps of earlier events.
func (e *events) next(kept int) ([]byte, error) {
	if e.parts = e.parts[:0]; cap(e.parts) > maxLineKept {
		e.parts = nil
	}
	for {
		line, err := e.read(kept)
		data := e.join(bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data:"))))
		if errors.Is(err, io.EOF) && len(e.parts) > 0 {
			data = e.parts
		}
		switch {
		case string(data) == endMark: // even without a line break, as some gateways end their streams
			e.done = true
			return nil, io.EOF
		case err != nil && (!errors.Is(err, io.EOF) || !json.Valid(data)):
			e.cut = len(data) > 0
			return nil, err // a line without a line break may be cut off; it is used only if it is valid JSON
		case len(data) == 0:
			continue
		case isPing(data):
			if err := e.checkBounds(line, true, false, kept); err != nil {
				return nil, err
			}
			e.watch.notePing()
			continue
		}
		e.between = 0
		if e.count++; e.count > MaxEvents {
			return nil, tooLong{"the answer", MaxEvents, "events"}
		}
		return data, nil
	}
}

// join returns the data of an event once all its lines have arrived, and nothing before. data is the data of the
// current line. Only data that begins an object or a list and does not end it is continued by the lines that follow.
func (e *events) join(data []byte) []byte {
	isOpen := len(data) > 0 && (data[0] == '{' || data[0] == '[') && !bytes.ContainsAny(data[len(data)-1:], "}]")
	switch {
	case len(e.parts) == 0 && !isOpen:
		return data
	case string(data) == endMark:
		e.done = true
		return e.parts
	case e.blank:
		return e.parts
	case len(data) > 0:
		e.parts = append(append(e.parts, data...), '\n')
	}
	return nil
}

// read returns the next line, or nothing if the line has no data.
func (e *events) read(kept int) ([]byte, error) {
	if e.line = e.line[:0]; cap(e.line) > maxLineKept {
		e.line = nil
	}
	part, err := e.lines.ReadSlice('\n')
	if !e.begun {
		e.begun, part = true, bytes.TrimPrefix(part, []byte(byteOrderMark))
	}
	isData, noise := bytes.HasPrefix(part, []byte("data:")), isNoise(part)
	e.blank = len(bytes.TrimSpace(part)) == 0
	noise, e.within = noise || e.within && e.blank, isData || noise
	for {
		isPartial := errors.Is(err, bufio.ErrBufferFull)
		if err := e.checkBounds(part, noise, isData, kept); err != nil {
			return nil, err
		}
		switch {
		case isData && !isPartial && len(e.line) == 0:
			return part, err
		case isData:
			e.line = append(e.line, part...)
		case !noise:
			e.other = append(e.other, part...)
		}
		if !isPartial {
			return e.line, err
		}
		part, err = e.lines.ReadSlice('\n')
	}
}

// checkBounds checks the bounds before the next part of a line is added, and reserves memory for the part. It bounds an
// event together with the text outside events, that text alone, and the dropped lines between two events, because
// reading them takes time.
func (e *events) checkBounds(part []byte, noise, isData bool, kept int) error {
	switch {
	case noise:
		if e.between += len(part); e.between > MaxBetweenEvents {
			return Malformed("more than %d bytes of comments arrived between two events of the answer: "+
				"configure the endpoint to send fewer", MaxBetweenEvents)
		}
		return nil
	case isData && len(e.line)+len(e.parts)+len(part)+len(e.other) > MaxEventBytes:
		return tooManyBytes("an event of the answer", MaxEventBytes)
	case !isData && len(e.other)+len(part) > maxOther:
		return tooManyBytes("the text outside the events of the answer", maxOther)
	}
	return e.memory.hold(e.watch, len(part), len(e.line)+len(e.parts)+len(e.other)+len(part)+kept)
}

// isPing reports whether the data of an event only shows that the endpoint still works. Some endpoints send such events
// instead of comments, and some gateways send the comments themselves as data.
func isPing(data []byte) bool {
	const longest = 128
	var event struct {
		Type string `json:"type"`
	}
	if data[0] == ':' {
		return true
	}
	return len(data) < longest && bytes.Contains(data, []byte(`"ping"`)) && json.Unmarshal(data, &event) == nil && event.Type == "ping"
}

// isNoise reports whether a line is a comment, or a field other than data.
func isNoise(line []byte) bool {
	for _, prefix := range []string{":", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(line, []byte(prefix)) {
			return true
		}
	}
	return false
}
