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
	err          error
}

func isEvents(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == eventStream
}

func newEvents(stream io.ReadCloser) *events {
	return &events{Closer: stream, lines: bufio.NewReader(stream)}
}

// Read hands on the lines that are kept.
func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		part, err := e.lines.ReadSlice('\n')
		if !e.within {
			e.drop = isNoise(part)
		}
		if e.within = errors.Is(err, bufio.ErrBufferFull); !e.within {
			e.err = err
		}
		if !e.drop {
			e.rest = part
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func isNoise(line []byte) bool {
	for _, prefix := range []string{":", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(line, []byte(prefix)) {
			return true
		}
	}
	return false
}
