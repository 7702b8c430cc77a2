package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// unreservedReply is the size of a reply, or of one of its events, up to which no memory is reserved, in bytes.
	unreservedReply = 4 << 10
	// replyRoom is the reservation for a reply that is no longer small, in bytes: the longest event and the part of the
	// reply that is kept. Reserve all of it first: waiting for more of it later could deadlock.
	replyRoom = MaxEventBytes + MaxReplyBytes
	// While others wait for memory, replyPace bytes of a long reply must arrive per second. The reply may be up to
	// replySlack behind that pace. A model that sends 20 tokens a second, each in its own event, keeps this pace.
	replyPace  = 4 << 10
	replySlack = time.Minute
)

// replyMemory is the memory that a reply holds while it is read, and until the receiver of the reply releases it.
// It is for one goroutine only.
type replyMemory struct {
	account bytebudget.Account
	// small is the reservation of a small reply, and long is the reservation of a long reply.
	small, long *bytebudget.Reservation
	// checked is the time of the last check of the pace, and behind is how far the reply was behind the pace then.
	checked time.Time
	behind  time.Duration
}

// hold makes sure that memory is reserved for this number of bytes of the reply, including the part that has just
// arrived. If the reply is long, or memory is short, hold waits for the memory of the longest reply. The idle timeout
// does not run during this wait. The error for a failed reservation, or for a slow reply, is a *model.Error.
func (r *replyMemory) hold(w *watch, part, bytes int) error {
	if r.long != nil {
		return r.share(part, bytes)
	}
	if bytes <= unreservedReply {
		return nil
	}
	if r.small == nil {
		r.small = r.account.GrowingReservation()
	}
	if r.small.Cover(int64(bytes)) {
		return nil
	}
	w.timer.Stop()
	defer w.restart()
	held, err := r.account.Reserve(w.ctx, replyRoom)
	if cause := context.Cause(w.ctx); err != nil && cause != nil {
		return cause
	}
	if errors.Is(err, bytebudget.ErrNoSpace) {
		return &model.Error{
			Kind: model.Overloaded, MayBeBilled: true, Message: err.Error(),
			Err: errors.Join(model.ErrOwnMemory, model.ErrNoSpace),
		}
	}
	if err != nil {
		return &model.Error{
			Kind: model.Overloaded, MayBeBilled: true,
			Message: "the manager has no memory left for the endpoint's long replies: ask for shorter ones, " +
				"run fewer turns at the same time, or raise the manager's memory limit (" + err.Error() + ")",
			Err: model.ErrOwnMemory,
		}
	}
	r.long = held
	r.small.Release()
	return nil
}

// share keeps the reservation of a long reply from blocking others while they wait for memory. If the reply is still
// small, and the memory of a small reply is available, share exchanges the reservation for a small one. Otherwise the
// reply must keep the pace. If it is too slow, share fails.
func (r *replyMemory) share(part, bytes int) error {
	contended := r.account.Contended()
	if contended && r.small.Cover(int64(bytes)) {
		r.long.Release()
		r.long, contended = nil, false
	}
	if !contended {
		r.checked, r.behind = time.Time{}, 0
		return nil
	}
	now := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	if !r.checked.IsZero() {
		r.behind = max(0, r.behind+now.Sub(r.checked)-time.Duration(part)*time.Second/replyPace)
	}
	if r.checked = now; r.behind <= replySlack {
		return nil
	}
	return &model.Error{
		Kind: model.Timeout, MayBeBilled: true,
		Message: fmt.Sprintf("the endpoint sent a long reply at less than %d KiB a second while others waited for its memory: "+
			"ask for shorter replies, use a faster endpoint, or raise the manager's memory limit", replyPace>>10),
		Err: model.ErrOwnMemory,
	}
}

// release releases the memory, unless it was handed over.
func (r *replyMemory) release() {
	r.small.Release()
	r.long.Release()
}

// handOver gives the memory to the receiver of the reply. It returns the function that releases the memory, or nil
// if no memory is reserved.
func (r *replyMemory) handOver() (release func()) {
	reservation := r.small
	if r.long != nil {
		reservation = r.long
	}
	if reservation.Bytes() == 0 {
		return nil
	}
	r.small, r.long = nil, nil
	return reservation.Release
}
