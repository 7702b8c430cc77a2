package endpoint

import (
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// MaxReplyBytes bounds the part of one reply that is kept: its text, reasoning and calls together. The rest of
	// a longer reply is read to learn its usage, and dropped. An endpoint that respects the output limit of a model
	// never sends this much.
	MaxReplyBytes = 1 << 20
	// MaxStreamBytes bounds the stream of one reply as it is sent, which is read but not kept. It is enough for the
	// longest reply of any model: 131,072 tokens, each in its own event with 512 bytes around it. Reading an event
	// takes about 15 us of CPU, so a reply takes a few seconds at most.
	MaxStreamBytes = 64 << 20
	// MaxEvents bounds the number of events in a stream.
	MaxEvents = 256 << 10
	// MaxEventBytes bounds one event together with the lines outside events, which are held in memory. A few endpoints
	// send a whole reply in one event.
	MaxEventBytes = 2 << 20
	// MaxBetweenEvents bounds the bytes between two events of an answer that are dropped: comments, pings, and names
	// and IDs of events. Gateways that keep a connection alive send about 30 bytes every 1 to 15 s, so an hour of
	// waiting has at most 110 KB.
	MaxBetweenEvents = 256 << 10
	// maxLineKept bounds the buffer for long events that is kept from one event to the next.
	maxLineKept = 64 << 10
	// maxVectors bounds an answer with vectors, which is held in memory: model.MaxEmbedTexts vectors of
	// model.MaxDimensions elements. Gemini writes each element on its own line, with up to 32 bytes.
	maxVectors = model.MaxEmbedTexts*model.MaxDimensions*32 + 64<<10
	// maxOther bounds all other bodies, and the lines of a stream that belong to no event. They are held in memory.
	maxOther = 1 << 20
	// maxRefusal bounds the body of an HTTP error. No memory is reserved for it, although all running Turns may receive
	// an error at the same time. The longest useful error bodies repeat the request.
	maxRefusal = 16 << 10
)

// tooLong is the error of a response that exceeds a bound.
type tooLong struct {
	what  string
	limit int
	unit  string
}

// tooManyBytes returns the error of a response part with more than limit bytes.
func tooManyBytes(what string, limit int) tooLong { return tooLong{what, limit, "bytes"} }

// Error names the part that was too long.
func (e tooLong) Error() string {
	return fmt.Sprintf("%s exceeds %d %s and was cut off", e.what, e.limit, e.unit)
}
