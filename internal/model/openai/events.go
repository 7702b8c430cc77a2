package openai

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
)

// events is an event stream without its comments and without the fields that are not data. Some endpoints send many of
// them while a model thinks, and the library counts them as rubbish and mixes them into the errors that it reads.
type events struct {
	io.Closer
	lines *bufio.Reader
	// rest of the line that is handed on, a view into the buffer of lines.
	rest []byte
	// within is true in the middle of a line longer than the buffer, drop if that line is left out.
	within, drop bool
	// field is true if the line is data, or left out, counted if it is one of those that other is the length of. length is how
	// long it is so far.
	field, counted bool
	length, other  int
	// between is how much came since the last event and was left out.
	between int
	// watch learns of each event.
	watch *watch
	// room is the memory that a long line takes.
	room *room
	// data is true if the line is data, and count is how many of those came.
	data  bool
	count int
	err   error
}

func isEvents(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == eventStream
}

func newEvents(stream io.ReadCloser, w *watch, note *response) *events {
	return &events{Closer: stream, lines: bufio.NewReader(stream), watch: w, room: &note.room}
}

// Read hands on the lines that are kept.
func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		part, err := e.lines.ReadSlice('\n')
		if !e.within {
			e.begin(part)
		}
		if e.within = errors.Is(err, bufio.ErrBufferFull); !e.within {
			e.err = err
		}
		e.arrived()
		if err := e.measure(part); err != nil {
			e.err = err
			return 0, err
		}
		if !e.drop {
			e.rest = part
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// arrived counts an event and tells the watch of it, once the whole of its line is there.
func (e *events) arrived() {
	if e.data && !e.within {
		e.count++
		e.between = 0
		e.watch.event()
	}
}

// begin looks at the beginning of a line. An empty one ends an event and is of it.
func (e *events) begin(part []byte) {
	ends := e.field && len(bytes.TrimSpace(part)) == 0
	e.drop, e.length = isNoise(part), 0
	e.data = bytes.HasPrefix(part, []byte("data:"))
	e.field = e.drop || e.data
	e.counted = !e.field && !ends
}

// measure bounds the lines that are handed on, which their reader holds: one that is data, and all others together. It also bounds
// those that are left out, which are not held and still cost time to read.
func (e *events) measure(part []byte) error {
	if e.drop {
		if e.between += len(part); e.between > MaxBetweenEvents {
			return malformed("more than %d bytes of comments came between two events of the answer: have the endpoint send fewer", MaxBetweenEvents)
		}
		return nil
	}
	if e.length += len(part); e.length > MaxEventBytes {
		return tooManyBytes("an event of the answer", MaxEventBytes)
	}
	if e.counted {
		e.other += len(part)
	}
	if e.other > maxOther {
		return tooManyBytes("what is no event of the answer", maxOther)
	}
	if e.count > MaxEvents {
		return tooLong{"the answer", MaxEvents, "events"}
	}
	return e.room.hold(e.watch, max(e.length, e.other))
}

func isNoise(line []byte) bool {
	for _, prefix := range []string{":", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(line, []byte(prefix)) {
			return true
		}
	}
	return false
}
