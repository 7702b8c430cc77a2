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
	// freeConversation bytes of a conversation are held without a reservation: the limit of concurrent Turns counts them.
	freeConversation = 64 << 10
	// perByte is what a byte of a conversation takes: itself, and twice in the body of a request while that is made.
	perByte = 3
	// stepRoom is what one more step may add, in bytes: a Turn that had to wait gets that far at least.
	stepRoom = 1 << 20
	// untilTold is how long a Turn waits for memory before its status says so.
	untilTold = time.Second
)

// shortError is a run that may not hold its conversation now. It gives its memory back, and waits with nothing.
type shortError struct {
	want int64
	err  error
}

// Error says why.
func (e *shortError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *shortError) Unwrap() error { return e.err }

// hold reserves what a conversation of so many bytes takes. A conversation may take half of what one namespace can have.
func (r *run) hold(bytes int64) error {
	account := r.memoryAccount()
	most := account.Most()
	if bytes <= freeConversation || most == 0 {
		return nil
	}
	want := (bytes - freeConversation) * perByte
	if want > most/2 {
		return &turn.TooLargeError{Message: fmt.Sprintf("the conversation has %d KiB, and a turn may hold at most %d KiB of the manager's memory: ask for shorter "+
			"replies and results, have the agent summarise older messages (context.compaction), or raise the manager's memory limit",
			bytes>>10, (most/2/perByte+freeConversation)>>10)}
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
	return &shortError{min(want+stepRoom*perByte, most), fmt.Errorf("failed to hold a conversation of %d bytes: %w", bytes, bytebudget.ErrShort)}
}

// keep keeps the memory of a reply that is in the journal, and gives back that of the one before; release is nil for none. No request
// is sent and no call made meanwhile: who waits for memory of that kind must hold none.
func (r *run) keep(release func()) {
	if r.reply != nil {
		r.reply()
	}
	r.reply = release
}

func (r *run) memoryAccount() bytebudget.Account {
	return r.executor.Memory.Account(r.namespace, bytebudget.Conversations)
}

// awaitMemory gives back what the run holds, and waits for what it needs. It returns loop.ErrInterrupted if the run is to stop meanwhile.
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
	soon, cancel := context.WithTimeout(waiting, untilTold)
	defer cancel()
	held, err := r.memoryAccount().Reserve(soon, short.want)
	if errors.Is(err, context.DeadlineExceeded) {
		r.tellState(waiting, fmt.Sprintf("bound to executor %q, and waits for memory: the conversations of the namespace hold their share of it", r.executor.Name))
		if held, err = r.memoryAccount().Reserve(waiting, short.want); err == nil {
			r.tellState(waiting, fmt.Sprintf("bound to executor %q", r.executor.Name))
		}
	}
	if err != nil {
		return err
	}
	r.memory = held
	return nil
}

// tellState writes what a running Turn is about into its status. A write that fails is not repeated: the next one says more.
func (r *run) tellState(ctx context.Context, message string) {
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
