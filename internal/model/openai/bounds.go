package openai

import "fmt"

const (
	// MaxReplyBytes bounds what is kept of one reply: its text, its reasoning and its calls together. The rest of a longer one is read,
	// so that its usage is known, and let go. An endpoint that keeps to the output limit of a model does not come near.
	MaxReplyBytes = 1 << 20
	// MaxStreamBytes bounds what is read of one reply as it is sent: that many bytes in pieces of a token each, which take some
	// hundred bytes around them. It is not held.
	MaxStreamBytes = 256 << 20
	// MaxEventBytes bounds one event of it, which is held: a few endpoints send a whole reply in one.
	MaxEventBytes = 2 << 20
	// maxOther bounds all other bodies, and what a stream has beside its events. They are held.
	maxOther = 1 << 20
)

// tooLong is the error of a response that is longer than is read.
type tooLong struct {
	what string
	most int
}

// Error says what was too long.
func (e tooLong) Error() string {
	return fmt.Sprintf("%s exceeds %d bytes and was cut off", e.what, e.most)
}
