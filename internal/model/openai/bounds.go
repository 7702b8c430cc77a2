package openai

import "fmt"

const (
	// MaxReplyBytes bounds what is kept of one reply: its text, its reasoning and its calls together. The rest of a longer one is read,
	// so that its usage is known, and let go. An endpoint that keeps to the output limit of a model does not come near.
	MaxReplyBytes = 1 << 20
	// MaxStreamBytes bounds what is read of one reply as it is sent, which is not held: as many tokens as any model
	// gives, each in an event of its own, with 512 bytes around each of 131,072. An event takes some 15 us of CPU to read, so a
	// reply takes a few seconds at most.
	MaxStreamBytes = 64 << 20
	// MaxEvents bounds the events among them.
	MaxEvents = 256 << 10
	// MaxEventBytes bounds one event of it, which is held: a few endpoints send a whole reply in one.
	MaxEventBytes = 2 << 20
	// MaxBetweenEvents bounds what comes between two events of an answer and is left out: comments, names and numbers of events. Gateways
	// that keep a connection alive send some 30 bytes every 1 to 15 s, so that an hour of waiting has 110 KB at most.
	MaxBetweenEvents = 256 << 10
	// maxOther bounds all other bodies, and what a stream has beside its events. They are held.
	maxOther = 1 << 20
	// maxRefusal is how much is read of a refusal. Nothing reserves memory for it, and as many may arrive as Turns run. The longest that say
	// something repeat the request.
	maxRefusal = 16 << 10
)

// tooLong is the error of a response that is longer than is read.
type tooLong struct {
	what string
	most int
	unit string
}

// tooManyBytes is the error of what has more than so many bytes.
func tooManyBytes(what string, most int) tooLong { return tooLong{what, most, "bytes"} }

// Error says what was too long.
func (e tooLong) Error() string {
	return fmt.Sprintf("%s exceeds %d %s and was cut off", e.what, e.most, e.unit)
}
