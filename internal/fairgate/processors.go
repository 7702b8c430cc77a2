package fairgate

import (
	"context"
	"runtime"
	"time"
)

// Large is the number of bytes from which a piece of work must wait for its turn. A processor decodes 16 KiB in about
// 0.3 milliseconds, so thousands of Turns with 60 KiB each can keep all processors busy for seconds. For other work
// that can take longer than that, a caller of AcquireProcessor also passes Large.
const Large = 16 << 10

// Processors lets namespaces take turns at work that keeps a processor busy: see AcquireProcessor and Flow. It is safe
// for concurrent use. If Processors is nil, no work waits.
type Processors struct{ large, streams *Gate }

// HalfOfProcessors returns Processors that use at most half of the machine's processors, but at least one, so that
// small work usually finds a free processor. Because of the rests of AcquireProcessor, large pieces use at most half of
// the time of these processors.
func HalfOfProcessors() *Processors { return NewProcessors(max(runtime.GOMAXPROCS(0)/2, 1)) }

// NewProcessors returns Processors that admit atOnce large pieces of work at the same time, and as many
// batches of streams. atOnce must be at least 1.
func NewProcessors(atOnce int) *Processors {
	return &Processors{large: New(atOnce, atOnce), streams: New(atOnce, atOnce)}
}

type ticketKey struct{}

// ticket holds the Processors and the namespace of a context.
type ticket struct {
	*Processors
	namespace string
}

// With returns a context in which the work of a namespace takes its turn at the processors.
func (p *Processors) With(ctx context.Context, namespace string) context.Context {
	if p == nil {
		return ctx
	}
	return context.WithValue(ctx, ticketKey{}, ticket{p, namespace})
}

// AcquireProcessor waits until it is the turn of the context's namespace to encode, decode or compress the bytes. So if
// the models of one namespace send megabytes, each piece of work of another namespace waits for at most one such piece.
// The caller must call done after the work. done waits for as long as the work took: a container often has only one or
// two processors, which other work and the garbage collector also need. AcquireProcessor does not wait if there are few
// bytes, or if the context was not made by With. Neither it nor done waits if the context has ended, because the last
// writes are still needed. Between AcquireProcessor and done, the caller must not wait for anything: no other work, no
// lock and no network.
func AcquireProcessor(ctx context.Context, bytes int) (done func()) {
	t, ok := ctx.Value(ticketKey{}).(ticket)
	if !ok || bytes < Large || t.large.Enter(ctx, t.namespace) != nil {
		return func() {}
	}
	begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	return func() {
		defer t.large.Leave(t.namespace)
		rest(ctx, time.Since(begun))
	}
}

// rest waits for a duration, or until ctx ends.
func rest(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Fairly returns a function that calls change when it is the turn of the context's namespace: see AcquireProcessor.
// change must not wait for anything.
func Fairly(ctx context.Context, change func(text string) string) func(text string) string {
	return func(text string) string {
		defer AcquireProcessor(ctx, len(text))()
		return change(text)
	}
}
