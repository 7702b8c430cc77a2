package fairgate

import (
	"context"
	"io"
	"time"
)

const (
	// batch is the number of pieces of a stream between two waits. A stream of a model that sends 100 tokens per
	// second waits less than twice per second.
	batch = 64
	// batchTime is about how long a processor needs for a batch: 15 microseconds for each event of a model.
	batchTime = time.Millisecond
	// pieceBytes is the number of bytes that count as a piece of a stream: to receive and copy 256 KiB, a processor
	// needs about as long as for a batch of events.
	pieceBytes = 4 << 10
)

// Flow paces data that arrives in many small pieces, such as the events of a streamed answer. Each piece needs a
// processor for about 15 microseconds, so a namespace with hundreds of fast streams could keep all processors busy. The
// zero value is ready to use, for one stream and one goroutine.
type Flow struct{ pieces int }

// Wait must be called for each piece. For one piece in 64, it waits until it is the turn of the context's namespace,
// and then pauses for the time that a processor needs for 64 pieces. The Processors of the context limit how many
// streams pause in this way at the same time. With HalfOfProcessors, all streams together use at most half of the
// processors, and namespaces share that half. Wait returns immediately if the context was not made by With, or has
// ended.
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
	rest(ctx, batchTime)
}

// Pace returns a reader of a body that paces its bytes as Flow paces pieces. So bodies that arrive as fast as the
// network allows do not keep all processors busy. Like Flow, the reader is for one goroutine.
func Pace(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	if _, ok := ctx.Value(ticketKey{}).(ticket); !ok {
		return body
	}
	return &pacedBody{ReadCloser: body, ctx: ctx}
}

// pacedBody is a body whose bytes are paced.
type pacedBody struct {
	io.ReadCloser
	ctx   context.Context //nolint:containedctx // because the context belongs to the request
	flow  Flow
	bytes int // since the last piece
}

// Read reads bytes, and then waits once for each pieceBytes bytes.
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for b.bytes += n; b.bytes >= pieceBytes; b.bytes -= pieceBytes {
		b.flow.Wait(b.ctx)
	}
	return n, err
}
