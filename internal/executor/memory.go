package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

const (
	// unreservedConversation is the number of bytes that a conversation may have without a reservation. The limit on
	// concurrent Turns bounds the sum of these bytes.
	unreservedConversation = 8 << 10
	// perByte is the number of bytes of memory to reserve for each byte of a conversation: one for the conversation
	// itself, and two for the body of a request while it is made.
	perByte = 3
	// maxStepGrowth bounds the memory that a Turn reserves for its next step when it waits for memory. The reservation
	// allows the conversation to double, or to grow by maxStepGrowth bytes if it is larger than that.
	maxStepGrowth = 1 << 20
	// callBytes is the number of bytes of memory to reserve for each further tool call that a Turn makes at the same
	// time. In a measurement, 6,300 calls took 29 KiB each for their connections and goroutines. The garbage collector
	// lets this memory grow by a half.
	callBytes = 48 << 10
)

// conversation is the memory of a run's conversation.
type conversation struct {
	// held is the reservation. It is nil until the run needs one.
	held *bytebudget.Reservation
	// read is true once this attempt has read the journal. While the journal is read, the conversation grows from
	// nothing to the size that it had before.
	read bool
	// need is the number of bytes that the conversation needs, and children is the number of bytes that the journals of
	// sub-agents' Turns need while the run reads them.
	need, children int64
	// peak is the largest reservation that the run has needed so far.
	peak int64
	// hasRoom is true from the end of a wait for memory until the run has read the journal again and begun its next
	// step. In that time, held may be larger than the conversation, and hold must not make it smaller.
	hasRoom bool
	// unreserved is true if the Turn only has to end and may do so although there is no memory for its conversation:
	// see enterUnreserved.
	unreserved bool
}

// memoryShortageError means that the run cannot reserve the memory for its conversation now. The run must release all
// its memory, and wait until it can reserve the memory that it needs: see awaitMemory.
type memoryShortageError struct {
	// want is the number of bytes that the run needs.
	want int64
	err  error
}

// Error returns the message of the cause.
func (e *memoryShortageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *memoryShortageError) Unwrap() error { return e.err }

// hold changes the reservation to the memory that a conversation of the given size needs. A conversation may use at
// most half of the memory that one namespace can reserve.
func (r *run) hold(bytes int64) error {
	account, m := r.memoryAccount(), &r.memory
	most, want := account.MaxReservation(), max(0, bytes-unreservedConversation)*perByte
	m.need = min(want, most/2)
	switch {
	case most == 0, want == 0 && m.held == nil:
		return nil
	case want > most/2:
		return &turn.TooLargeError{Message: fmt.Sprintf(
			"the conversation has %d KiB, and the manager's memory allows at most %d KiB for a turn: ask for shorter replies "+
				"and results, have the agent summarise older messages (context.compaction), or raise the manager's memory limit",
			bytes>>10, (most/2/perByte+unreservedConversation)>>10)}
	case want <= m.held.Bytes() && (!m.read || m.hasRoom):
		m.hasRoom = m.hasRoom && !m.read
		return nil
	case m.held == nil:
		m.held, _ = account.TryReserve(0) // a reservation of 0 bytes cannot fail
	}
	m.peak = max(m.peak, want)
	if err := m.held.Resize(want); err != nil {
		if m.unreserved {
			return nil
		}
		growth := min(bytes, maxStepGrowth) * perByte
		return &memoryShortageError{
			min(max(want+growth, m.peak), most),
			fmt.Errorf("failed to reserve memory for a conversation of %d bytes: %w", bytes, err),
		}
	}
	return nil
}

// reserveChild reserves the memory to read the journal of a sub-agent's deleted Turn while the run ends. The memory is
// a part of the reservation of the run, so a run that has waited for it has it in its next attempt. A run that may end
// without memory needs none.
func (r *run) reserveChild(ctx context.Context, _, uid string) (release func(), err error) {
	account, m := r.memoryAccount(), &r.memory
	bytes, err := journalMemory(ctx, r.executor.Engine.Journal, account, uid)
	if err != nil || bytes == 0 {
		return func() {}, err
	}
	if m.held == nil {
		m.held, _ = account.TryReserve(0) // a reservation of 0 bytes cannot fail
	}
	want := min(m.need+m.children+bytes, account.MaxReservation())
	m.peak = max(m.peak, want)
	if want > m.held.Bytes() {
		if err := m.held.Resize(want); err != nil && !m.unreserved {
			return nil, &memoryShortageError{m.peak, fmt.Errorf("failed to reserve memory for the journal of a sub-agent's turn: %w", err)}
		}
	}
	m.children += bytes
	return func() {
		m.children -= bytes
		_ = m.held.Resize(min(m.held.Bytes(), m.need+m.children)) // a smaller size is always possible
	}, nil
}

// releaseMemory releases the memory of the run, which must not read or change its conversation any more.
func (r *run) releaseMemory() {
	r.keepReply(nil)
	r.memory.held.Release()
	r.leaveUnreserved()
}

// reserveCall reserves the memory for a tool call while other calls of the Turn are running. It returns nil if there is
// not enough memory.
func (r *run) reserveCall() (release func()) {
	held, err := r.memoryAccount().TryReserve(callBytes)
	if err != nil {
		return nil
	}
	return held.Release
}

// reserveRead waits until it has reserved the memory to read an output of this size from the store, for the stored and
// for the decompressed bytes.
func (r *run) reserveRead(ctx context.Context, bytes int64) (release func(), err error) {
	release, err = r.executor.reserveResult(ctx, r.namespace, bytes)
	if err != nil && ctx.Err() == nil {
		return nil, &tool.Error{
			Class: tool.Unavailable, Err: err,
			Message: "the manager has no memory left for large outputs: read this output later",
		}
	}
	return release, err
}

// reserveResult waits until it has reserved the memory to read this number of bytes of a namespace from the store, for
// the stored and for the decompressed bytes.
func (e *Executor) reserveResult(ctx context.Context, namespace string, bytes int64) (release func(), err error) {
	account := e.Memory.Account(namespace, bytebudget.Results)
	small := account.GrowingReservation()
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

// reserveIn returns reserveResult for a namespace.
func (e *Executor) reserveIn(namespace string) turn.Reserve {
	return func(ctx context.Context, bytes int64) (release func(), err error) {
		return e.reserveResult(ctx, namespace, bytes)
	}
}

// keepReply keeps the memory of the newest reply, which is already in the journal, and releases the memory of the
// previous reply. release releases the memory of the newest reply. It is nil if there is no such reply, or if the
// reservation of the conversation includes the reply.
//
// While a run keeps the memory of a reply, it must not send a request, wait for a provider, or make a call. All of
// these may wait for the memory of replies and results, and runs that keep such memory while they wait for it could
// deadlock.
func (r *run) keepReply(release func()) {
	if r.releaseReply != nil {
		r.releaseReply()
	}
	r.releaseReply = release
}

func (r *run) memoryAccount() bytebudget.Account {
	return r.executor.Memory.Account(r.namespace, bytebudget.Conversations)
}

// errMustEnd is the cause of a wait that ended because the Turn was cancelled or its time is over.
var errMustEnd = errors.New("the turn must end")

// awaitMemory releases the memory of the run, and waits until it can reserve the memory that the run needs. If the Turn
// is cancelled, or its time is over, the Turn need not wait for memory any longer to end. awaitMemory returns
// loop.ErrInterrupted if the run must stop during the wait.
//
// awaitMemory does not write the status itself. It only sets the state that the next periodic write shows, because a
// write may take minutes, and a run with a reservation must not leave it unused for so long.
func (r *run) awaitMemory(ctx context.Context, short *memoryShortageError) error {
	r.memory.held.Release()
	waiting, stop := r.untilInterrupt(ctx)
	defer stop()
	r.progress.setWait(turnstatus.RunWait{Memory: true})
	defer r.progress.setWait(turnstatus.RunWait{})
	held, err := r.reserveUntilEnd(waiting, short.want)
	if errors.Is(err, errMustEnd) {
		return r.enterUnreserved(waiting)
	}
	if err != nil {
		return err
	}
	r.memory.held, r.memory.hasRoom = held, true
	return nil
}

// reserveUntilEnd waits until it has reserved the bytes. If the Turn must end before that, it returns errMustEnd. While
// too many Turns of the namespace wait in the queue for memory, it waits for a place in the queue.
func (r *run) reserveUntilEnd(ctx context.Context, bytes int64) (*bytebudget.Reservation, error) {
	ctx, stop := context.WithDeadlineCause(ctx, r.timeOver, errMustEnd)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(r.cancelled, func() { end(errMustEnd) })() //nolint:contextcheck // because it is a signal
	var full *backoff.ExponentialBackOff
	for {
		held, err := r.memoryAccount().Reserve(ctx, bytes)
		if !errors.Is(err, bytebudget.ErrQueueFull) {
			return held, err
		}
		if full == nil {
			full = newRetryBackOff()
		}
		timer := time.NewTimer(full.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// enterUnreserved waits until the Turn may end without memory for its conversation. The gate Unreserved bounds the
// memory that is used in this way.
func (r *run) enterUnreserved(ctx context.Context) error {
	gate := r.executor.Unreserved
	if err := gate.Enter(ctx, r.namespace); err != nil {
		return err
	}
	r.memory.held, r.memory.unreserved = nil, true
	return nil
}

// leaveUnreserved leaves the gate Unreserved, if the run has entered it.
func (r *run) leaveUnreserved() {
	if r.memory.unreserved {
		r.memory.unreserved = false
		r.executor.Unreserved.Leave(r.namespace)
	}
}
