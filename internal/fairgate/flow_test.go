package fairgate

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pieces calls Wait for n pieces of a stream, and returns the time that this took.
func pieces(ctx context.Context, n int) time.Duration {
	var f Flow
	begun := time.Now()
	for range n {
		f.Wait(ctx)
	}
	return time.Since(begun)
}

func TestStreamWaitsForEachBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := NewProcessors(1).With(t.Context(), "a")
		ended, end := context.WithCancel(ctx)
		end()
		for name, tc := range map[string]struct {
			ctx    context.Context
			pieces int
			want   time.Duration
		}{
			"short":                    {ctx, batch - 1, 0},
			"one batch":                {ctx, batch, batchTime},
			"many":                     {ctx, 100 * batch, 100 * batchTime},
			"no namespace":             {t.Context(), 100 * batch, 0},
			"no processors":            {(*Processors)(nil).With(t.Context(), "a"), 100 * batch, 0},
			"a context that has ended": {ended, 100 * batch, 0},
		} {
			if got := pieces(tc.ctx, tc.pieces); got != tc.want {
				t.Errorf("%s: %d pieces took %s, want %s", name, tc.pieces, got, tc.want)
			}
		}
	})
}

// TestStreamsOfNamespacesTakeTurns checks that a hundred streams of one namespace delay each batch of another
// namespace's stream by at most two batches.
func TestStreamsOfNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := NewProcessors(1)
		ctx, stop := context.WithCancel(processors.With(t.Context(), "attacker"))
		for range 100 {
			go func() {
				for ctx.Err() == nil {
					pieces(ctx, batch)
				}
			}()
		}
		synctest.Wait()
		if got := pieces(processors.With(t.Context(), "victim"), 10*batch); got > 31*batchTime {
			t.Errorf("ten batches took %s, want at most %s: no more than two batches of the attacker before each", got, 31*batchTime)
		}
		stop()
		synctest.Wait()
		if g := processors.streams; g.free != 1 || len(g.inside) > 0 || len(g.waiting) > 0 {
			t.Errorf("after all streams have ended, the gate has the state %+v", g)
		}
	})
}

func TestBodyIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := NewProcessors(1).With(t.Context(), "a")
		for name, tc := range map[string]struct {
			ctx   context.Context
			bytes int
			want  time.Duration
		}{
			"short":        {ctx, batch*pieceBytes - 1, 0},
			"one batch":    {ctx, batch * pieceBytes, batchTime},
			"many":         {ctx, 10*batch*pieceBytes + 1, 10 * batchTime},
			"no namespace": {t.Context(), 10 * batch * pieceBytes, 0},
		} {
			begun := time.Now()
			body := Pace(tc.ctx, io.NopCloser(strings.NewReader(strings.Repeat("x", tc.bytes))))
			if data, err := io.ReadAll(body); err != nil || len(data) != tc.bytes {
				t.Errorf("%s: read %d bytes, %v; want %d", name, len(data), err, tc.bytes)
			}
			if got := time.Since(begun); got != tc.want {
				t.Errorf("%s: %d bytes took %s, want %s", name, tc.bytes, got, tc.want)
			}
		}
	})
}
