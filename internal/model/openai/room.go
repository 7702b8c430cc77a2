package openai

import (
	"context"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// unreservedReply is the size of a reply, or of one of its events, up to which no memory is reserved, in bytes.
	unreservedReply = 4 << 10
	// replyRoom is the reservation for a reply that is no longer small, in bytes: the longest event and the part of the
	// reply that is kept. Reserve all of it first: waiting for more of it later could deadlock.
	replyRoom = MaxEventBytes + MaxReplyBytes
)

// replyMemory is the memory that a reply holds while it is read, and until the receiver of the reply releases it.
// It is for one goroutine only.
type replyMemory struct {
	account bytebudget.Account
	// small is the reservation of a small reply, and long that of a long one.
	small, long *bytebudget.Reservation
}

// hold reserves the memory for a reply once this number of bytes has arrived. If the reply is long, or memory is short,
// hold waits for the memory of the longest reply. The idle timeout does not run during this wait. An error of the
// reservation is a *model.Error.
func (r *replyMemory) hold(w *watch, bytes int) error {
	if bytes <= unreservedReply || r.long != nil {
		return nil
	}
	if r.small == nil {
		r.small = r.account.Content()
	}
	if r.small.Cover(int64(bytes)) {
		return nil
	}
	w.timer.Stop()
	defer w.event()
	held, err := r.account.Reserve(w.ctx, replyRoom)
	if cause := context.Cause(w.ctx); err != nil && cause != nil {
		return cause
	}
	if err != nil {
		return &model.Error{
			Kind: model.Overloaded,
			Message: "the manager has no memory left for the endpoint's long replies: ask for shorter ones, " +
				"run fewer turns at once, or raise the manager's memory limit (" + err.Error() + ")",
		}
	}
	r.long = held
	r.small.Release()
	return nil
}

// release releases the memory, unless it was handed over.
func (r *replyMemory) release() {
	r.small.Release()
	r.long.Release()
}

// handOver gives the memory to the receiver of the reply. It returns the function that releases the memory, or nil
// if there is none.
func (r *replyMemory) handOver() (release func()) {
	had := r.small
	if r.long.Bytes() > 0 {
		had = r.long
	}
	if had.Bytes() == 0 {
		return nil
	}
	r.small, r.long = nil, nil
	return had.Release
}
