package fairgate

import (
	"context"
	"time"
)

const (
	// batch is the number of pieces of a stream between two waits. A stream of a model that sends 100 tokens per
	// second waits less than twice per second.
	batch = 64
	// batchTime is about how long a processor needs for a batch: 15 microseconds for each event of a model.
	batchTime = time.Millisecond
)

// Flow paces data that arrives in many small pieces, such as the events of an answer. Each piece needs a processor
// for a few microseconds, so a namespace with hundreds of fast answers could keep all processors busy. The zero
// value is ready for use, for one stream and one goroutine.
type Flow struct{ pieces int }

// Wait must be called for each piece. For one piece in 64, it waits until it is the turn of the context's
// namespace, and then for as long as a processor needs for 64 pieces. At most half as many of the latter waits run
// at once as there are processors. So all streams together use half of the processors, and namespaces share that
// half. Wait does not wait under a context that was not made by With, or that has ended.
func (f *Flow) Wait(ctx context.Context) {
	if f.pieces++; f.pieces < batch {
		return
	}
	f.pieces = 0
	t, ok := ctx.Value(ticketKey{}).(ticket)
	if !ok || t.streams.Enter(ctx, t.namespace) != nil {
		return
	}
	defer t.streams.Leave(t.namespace)
	timer := time.NewTimer(batchTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
