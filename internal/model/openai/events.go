package openai

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
)

// events reads an event stream without its comments and without fields other than data. Some endpoints send many of
// these while a model thinks. The library would count them as invalid lines and mix them into the errors that it
// reads.
type events struct {
	io.Closer
	lines *bufio.Reader
	// rest is the unread part of the current line. It is a view into the buffer of lines.
	rest []byte
	// within is true in the middle of a line that is longer than the buffer. drop is true if that line is left out.
	within, drop bool
	// field is true if the line is data or is left out. counted is true if the length of the line counts in other.
	// length is the length of the line so far.
	field, counted bool
	length, other  int
	// between is the number of bytes since the last event that were left out.
	between int
	// watch is notified of each event.
	watch *watch
	// memory is the memory for a long line.
	memory *replyMemory
	// data is true if the line is data. count is the number of data lines so far.
	data  bool
	count int
	err   error
}

func isEvents(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == eventStream
}

func newEvents(stream io.ReadCloser, w *watch, note *response) *events {
	return &events{Closer: stream, lines: bufio.NewReader(stream), watch: w, memory: &note.memory}
}

// Read returns the lines that are kept.
func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		part, err := e.lines.ReadSlice('\n')
		if !e.within {
			e.classify(part)
		}
		if e.within = errors.Is(err, bufio.ErrBufferFull); !e.within {
			e.err = err
		}
		e.countEvent()
		if err := e.checkBounds(part); err != nil {
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

// countEvent counts an event and notifies the watch, once the whole line of the event has arrived.
func (e *events) countEvent() {
	if e.data && !e.within {
		e.count++
		e.between = 0
		e.watch.event()
	}
}

// classify classifies a line by its beginning. An empty line ends an event and belongs to it.
func (e *events) classify(part []byte) {
	ends := e.field && len(bytes.TrimSpace(part)) == 0
	e.drop, e.length = isNoise(part), 0
	e.data = bytes.HasPrefix(part, []byte("data:"))
	e.field = e.drop || e.data
	e.counted = !e.field && !ends
}

// checkBounds bounds the lines that are passed on, because their reader holds them in memory: each data line by itself,
// and all other lines together. It also bounds the lines that are left out, because reading them takes time.
func (e *events) checkBounds(part []byte) error {
	if e.drop {
		if e.between += len(part); e.between > MaxBetweenEvents {
			return malformed("more than %d bytes of comments arrived between two events of the answer: "+
				"configure the endpoint to send fewer", MaxBetweenEvents)
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
		return tooManyBytes("the text outside the events of the answer", maxOther)
	}
	if e.count > MaxEvents {
		return tooLong{"the answer", MaxEvents, "events"}
	}
	return e.memory.hold(e.watch, max(e.length, e.other))
}

func isNoise(line []byte) bool {
	for _, prefix := range []string{":", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(line, []byte(prefix)) {
			return true
		}
	}
	return false
}
