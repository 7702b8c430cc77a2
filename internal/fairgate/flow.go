package fairgate

import (
	"context"
	"time"
)

const (
	// batch is how many pieces of a stream come before it waits for its turn. A model that writes 100 tokens a second waits every second.
	batch = 64
	// batchTime is about how long a processor is busy with a batch: 15 microseconds for each event of a model.
	batchTime = time.Millisecond
)

// Flow paces what arrives in many small pieces, such as the events of an answer. Each piece takes a processor a few microseconds, and a
// namespace with hundreds of answers that come as fast as they can would keep all processors busy. The zero value is ready to use, for one
// stream and by one goroutine.
type Flow struct{ pieces int }

// Wait is called for each piece. For one in 64 it waits until it is the turn of the context's namespace, and then for as long as a processor
// takes for so many; of that, as many waits go on at once as half of the processors. So the streams of all namespaces together take half of
// the processors, and namespaces share that. It does not wait under a context that With has not made, or that has ended.
func (f *Flow) Wait(ctx context.Context) {
	if f.pieces++; f.pieces < batch {
		return
	}
	f.pieces = 0
	t, ok := ctx.Value(ticketKey{}).(ticket)
	if !ok || t.gate == nil || t.gate.flows == nil || t.gate.flows.Enter(ctx, t.namespace) != nil {
		return
	}
	defer t.gate.flows.Leave(t.namespace)
	timer := time.NewTimer(batchTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
