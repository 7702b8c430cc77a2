package fairgate

import (
	"context"
	"runtime"
)

// large is from how many bytes on it takes a processor long, about a millisecond, to encode, decode or compress them.
const large = 64 << 10

// Processors returns a gate for what keeps a processor busy: see Large and Flow. It lets in as many as half of the processors, at least one, so that
// what is small always finds one.
func Processors() *Gate {
	n := max(runtime.GOMAXPROCS(0)/2, 1)
	g := New(n, n)
	g.flows = New(n, n)
	return g
}

type ticketKey struct{}

// ticket says by which gate, and for which namespace, large work is let in.
type ticket struct {
	gate      *Gate
	namespace string
}

// With returns a context under which the large work of a namespace passes a gate.
func With(ctx context.Context, g *Gate, namespace string) context.Context {
	return context.WithValue(ctx, ticketKey{}, ticket{g, namespace})
}

// Large waits until it is the turn of the context's namespace to encode, decode or compress so many bytes, and returns what must be called
// when that is done. So a namespace whose models send megabytes does not delay others by more than one such piece. Few bytes do not wait,
// nor does anything under a context that With has not made, or that has ended: what must be written then is written. Between Large and done
// nothing may be waited for: no other piece of work, no lock and no network.
func Large(ctx context.Context, bytes int) (done func()) {
	t, ok := ctx.Value(ticketKey{}).(ticket)
	if !ok || bytes < large || t.gate.Enter(ctx, t.namespace) != nil {
		return func() {}
	}
	return func() { t.gate.Leave(t.namespace) }
}
