package openai

import (
	"context"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// freeReply bytes of a reply, or of one event of it, are held without a reservation.
	freeReply = 64 << 10
	// replyRoom is what a longer one reserves before it goes on, in bytes: the longest event, and the reply that is kept. It is all that
	// the reply can need: growing a reservation later could deadlock.
	replyRoom = MaxEventBytes + MaxReplyBytes
)

// room is the memory that a long reply holds while it is read, and until who gets it gives that back. One goroutine uses it.
type room struct {
	account bytebudget.Account
	held    *bytebudget.Reservation
}

// hold reserves what a reply may need once more than freeReply bytes of it are there, and waits for that if need be. Meanwhile the
// answer does not count as standing still. Its error is a *model.Error.
func (r *room) hold(w *watch, bytes int) error {
	if bytes <= freeReply || r.held != nil {
		return nil
	}
	w.timer.Stop()
	defer w.event()
	held, err := r.account.Reserve(w.ctx, replyRoom)
	if cause := context.Cause(w.ctx); err != nil && cause != nil {
		return cause
	}
	if err != nil {
		return &model.Error{Kind: model.Overloaded, Message: "sends long replies, and the manager has no memory left for them: ask for shorter ones, " +
			"run fewer turns at once, or raise the manager's memory limit (" + err.Error() + ")"}
	}
	r.held = held
	return nil
}

// release gives the memory back, unless it was handed over.
func (r *room) release() { r.held.Release() }

// handOver leaves the memory to who has the reply: it returns what gives it back, nil where there is none.
func (r *room) handOver() (release func()) {
	if r.held.Bytes() == 0 {
		return nil
	}
	release, r.held = r.held.Release, nil
	return release
}
