package fairgate

import (
	"context"
	"runtime"
)

// large is the number of bytes from which work on them takes turns. A processor decodes as many bytes in about 0.3
// milliseconds, so thousands of Turns with 60 KiB each can keep all processors busy for seconds.
const large = 16 << 10

// Processors lets namespaces take turns at work that keeps a processor busy: see AcquireProcessor and Flow. It is safe
// for concurrent use. With nil Processors, no work waits.
type Processors struct{ large, streams *Gate }

// HalfOfProcessors returns Processors that use at most half of the machine's processors, but at least one, so that
// small work always finds a free one.
func HalfOfProcessors() *Processors { return NewProcessors(max(runtime.GOMAXPROCS(0)/2, 1)) }

// NewProcessors returns Processors that admit atOnce large pieces of work at the same time, and as many
// batches of streams. atOnce must be at least 1.
func NewProcessors(atOnce int) *Processors {
	return &Processors{large: New(atOnce, atOnce), streams: New(atOnce, atOnce)}
}

type ticketKey struct{}

// ticket has the Processors and the namespace for work.
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

// AcquireProcessor waits until it is the turn of the context's namespace to encode, decode or compress the bytes.
// So a namespace whose models send megabytes delays others by no more than one such piece. The caller must call done
// after the work. Small work does not wait. Work does not wait either under a context that was not made by With, or
// that has ended, because writes are then still needed. Between AcquireProcessor and done, the caller must not wait
// for anything: no other work, no lock and no network.
func AcquireProcessor(ctx context.Context, bytes int) (done func()) {
	t, ok := ctx.Value(ticketKey{}).(ticket)
	if !ok || bytes < large || t.large.Enter(ctx, t.namespace) != nil {
		return func() {}
	}
	return func() { t.large.Leave(t.namespace) }
}

// Fairly returns a function that changes a large text when it is the turn of the context's namespace: see
// AcquireProcessor. change must not wait for anything.
func Fairly(ctx context.Context, change func(text string) string) func(text string) string {
	return func(text string) string {
		defer AcquireProcessor(ctx, len(text))()
		return change(text)
	}
}
