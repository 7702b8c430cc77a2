package executor

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

const (
	// unreservedConversation is the number of bytes that a conversation may have without a reservation. The limit of
	// concurrent Turns limits the sum of these bytes.
	unreservedConversation = 8 << 10
	// perByte is the memory that each byte of a conversation needs: one byte for itself, and two in the body of a
	// request while that is made.
	perByte = 3
	// maxStepRoom is the maximum number of bytes that a Turn which waited may add in its next step without another
	// wait. A smaller conversation may double.
	maxStepRoom = 1 << 20
	// callBytes is the memory of a tool call beside others, in bytes: its connection, three goroutines and their
	// garbage. 6,300 such calls take 29 KiB each, and the garbage collector lets that grow by half.
	callBytes = 48 << 10
)

// conversation is the memory of a run's conversation.
type conversation struct {
	// held is the reservation, or nil if there was none yet.
	held *bytebudget.Reservation
	// read is true once the journal is read. Until then the conversation grows to the size that it had before.
	read bool
	// peak is the largest reservation that the run has wanted so far.
	peak int64
	// room is true from the end of a wait until the run has read the journal again and begun its next step.
	room bool
}

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

// hold reserves the memory for a conversation of the given size, and releases what is reserved beyond that. A
// conversation may take half of the memory that one namespace can have.
func (r *run) hold(bytes int64) error {
	account, m := r.memoryAccount(), &r.memory
	most, want := account.MaxReservation(), max(0, bytes-unreservedConversation)*perByte
	switch {
	case most == 0, want == 0 && m.held == nil:
		return nil
	case want > most/2:
		return &turn.TooLargeError{Message: fmt.Sprintf(
			"the conversation has %d KiB, and a turn may hold at most %d KiB of the manager's memory: ask for shorter "+
				"replies and results, have the agent summarise older messages (context.compaction), or raise the manager's memory limit",
			bytes>>10, (most/2/perByte+unreservedConversation)>>10)}
	case want <= m.held.Bytes() && (!m.read || m.room):
		m.room = m.room && !m.read
		return nil
	case m.held == nil:
		m.held, _ = account.TryReserve(0) // it cannot fail
	}
	m.peak = max(m.peak, want)
	if err := m.held.Resize(want); err != nil {
		room := min(bytes, maxStepRoom) * perByte
		return &shortError{min(max(want+room, m.peak), most), fmt.Errorf("failed to hold a conversation of %d bytes: %w", bytes, err)}
	}
	return nil
}

// reserveCall reserves the memory of a tool call beside others. It returns nil if there is none.
func (r *run) reserveCall() (release func()) {
	held, err := r.memoryAccount().TryReserve(callBytes)
	if err != nil {
		return nil
	}
	return held.Release
}

// reserveRead waits until it has the memory to read an output of this size from the store: as stored, and
// decompressed.
func (r *run) reserveRead(ctx context.Context, bytes int64) (release func(), err error) {
	release, err = r.executor.reserveResult(ctx, r.namespace, bytes)
	if err != nil && ctx.Err() == nil {
		return nil, &tool.Error{
			Class: tool.Unavailable, Err: err,
			Message: "the manager has no memory left for large outputs: read it later",
		}
	}
	return release, err
}

// reserveResult waits until it has the memory to read this number of bytes of a namespace from the store: as stored,
// and decompressed.
func (e *Executor) reserveResult(ctx context.Context, namespace string, bytes int64) (release func(), err error) {
	account := e.Memory.Account(namespace, bytebudget.Results)
	small := account.Content()
	if small.Cover(2 * bytes) {
		return small.Release, nil
	}
	held, err := account.Reserve(ctx, min(2*bytes, account.MaxReservation()))
	if ctx.Err() != nil {
		held.Release()
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return held.Release, nil
}

// keep keeps the memory of the newest reply, which is in the journal, and releases the memory of the previous one.
// release is nil if there is no reply, or once the conversation counts it. While the memory is kept, no request is
// sent or waits for its provider, and no call is made: a run that waits for memory of that kind must hold none, and no
// other run that holds some may wait for it.
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
// loop.ErrInterrupted if the run must stop meanwhile. The status is written at intervals and never by awaitMemory: a
// write may wait for minutes, and a run that has the memory must use it.
func (r *run) awaitMemory(ctx context.Context, short *shortError) error {
	r.memory.held.Release()
	waiting, stop := r.untilInterrupt(ctx)
	defer stop()
	r.progress.awaits(turnstatus.RunWait{Memory: true})
	defer r.progress.awaits(turnstatus.RunWait{})
	held, err := r.memoryAccount().Reserve(waiting, short.want)
	if err != nil {
		return err
	}
	r.memory.held, r.memory.room = held, true
	return nil
}
