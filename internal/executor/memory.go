package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// unreservedConversation is the number of bytes that a conversation may have without a reservation. The limit of
	// concurrent Turns bounds their sum.
	unreservedConversation = 8 << 10
	// perByte is the memory that each byte of a conversation needs: one byte for itself, and two in the body of a
	// request while that is made.
	perByte = 3
	// stepRoom is the number of bytes that one more step may add. A Turn that had to wait for memory has room for
	// at least this step.
	stepRoom = 1 << 20
	// reportWaitAfter is how long a Turn waits for memory before its status says so.
	reportWaitAfter = time.Second
)

// shortError means that the run cannot get the memory for its conversation now. It gives all its memory back before
// it waits.
type shortError struct {
	want int64
	err  error
}

// Error returns the message of the cause.
func (e *shortError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *shortError) Unwrap() error { return e.err }

// hold reserves the memory for a conversation of the given size. A conversation may take half of the memory that
// one namespace can have.
func (r *run) hold(bytes int64) error {
	account := r.memoryAccount()
	most := account.Most()
	if bytes <= unreservedConversation || most == 0 {
		return nil
	}
	want := (bytes - unreservedConversation) * perByte
	if want > most/2 {
		return &turn.TooLargeError{Message: fmt.Sprintf(
			"the conversation has %d KiB, and a turn may hold at most %d KiB of the manager's memory: ask for shorter "+
				"replies and results, have the agent summarise older messages (context.compaction), or raise the manager's memory limit",
			bytes>>10, (most/2/perByte+unreservedConversation)>>10)}
	}
	switch had := r.memory.Bytes(); {
	case want <= had:
		return nil
	case had > 0:
		if r.memory.Resize(want) == nil {
			return nil
		}
	default:
		if held, err := account.Try(want); err == nil {
			r.memory = held
			return nil
		}
	}
	return &shortError{
		min(want+stepRoom*perByte, most),
		fmt.Errorf("failed to hold a conversation of %d bytes: %w", bytes, bytebudget.ErrShort),
	}
}

// keep keeps the memory of the newest reply, which is in the journal, and releases the memory of the previous one.
// release is nil if there is no reply, or once the conversation counts it. While the memory is kept, no request is
// sent and no call is made: a run that waits for memory of that kind must hold none.
func (r *run) keep(release func()) {
	if r.reply != nil {
		r.reply()
	}
	r.reply = release
}

func (r *run) memoryAccount() bytebudget.Account {
	return r.executor.Memory.Account(r.namespace, bytebudget.Conversations)
}

// awaitMemory releases the memory of the run, and waits until it can reserve what the run needs. It returns
// loop.ErrInterrupted if the run must stop meanwhile.
func (r *run) awaitMemory(ctx context.Context, short *shortError) error {
	r.memory.Release()
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-r.interrupt:
			stop(loop.ErrInterrupted)
		case <-waiting.Done():
		}
	}()
	soon, cancel := context.WithTimeout(waiting, reportWaitAfter)
	defer cancel()
	held, err := r.memoryAccount().Reserve(soon, short.want)
	if errors.Is(err, context.DeadlineExceeded) {
		r.reportState(waiting, fmt.Sprintf("bound to executor %q, and waiting for memory: the conversations of "+
			"the namespace use their whole share", r.executor.Name))
		if held, err = r.memoryAccount().Reserve(waiting, short.want); err == nil {
			r.reportState(waiting, fmt.Sprintf("bound to executor %q", r.executor.Name))
		}
	}
	if err != nil {
		return err
	}
	r.memory = held
	return nil
}

// reportState writes the current activity of a running Turn into its status. A failed write is not repeated, because
// the next write has newer information.
func (r *run) reportState(ctx context.Context, message string) {
	now := r.executor.Now()
	written, err := r.executor.update(ctx, r.turn, r.epoch, func(t *v1alpha1.Turn) {
		translate.Wait(t, v1alpha1.TurnReasonRunning, message, now)
	})
	switch {
	case written != nil:
		r.turn = written
		r.progress.wrote(written)
	case err != nil && !errors.Is(err, context.Canceled):
		r.executor.Log.Error(err, "Failed to write that a turn waits for memory", "turn", r.key())
	}
}
