package fairgate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// flows is a gate for streams alone, that lets one in at once.
func flows() *Gate { return &Gate{flows: New(1, 1)} }

// pieces has so many pieces of a stream pass, and says how long that took.
func pieces(ctx context.Context, n int) time.Duration {
	var f Flow
	begun := time.Now()
	for range n {
		f.Wait(ctx)
	}
	return time.Since(begun)
}

func TestAStreamWaitsForEachBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := With(t.Context(), flows(), "a")
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
			"no gate":                  {With(t.Context(), nil, "a"), 100 * batch, 0},
			"a gate for large work":    {With(t.Context(), New(1, 1), "a"), 100 * batch, 0},
			"a context that has ended": {ended, 100 * batch, 0},
		} {
			if got := pieces(tc.ctx, tc.pieces); got != tc.want {
				t.Errorf("%s: %d pieces took %s, want %s", name, tc.pieces, got, tc.want)
			}
		}
	})
}

// TestStreamsOfNamespacesTakeTurns: a hundred streams of one namespace delay that of another by two batches for each of its own.
func TestStreamsOfNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := flows()
		ctx, stop := context.WithCancel(With(t.Context(), gate, "attacker"))
		for range 100 {
			go func() {
				for ctx.Err() == nil {
					pieces(ctx, batch)
				}
			}()
		}
		synctest.Wait()
		if got := pieces(With(t.Context(), gate, "victim"), 10*batch); got > 31*batchTime {
			t.Errorf("ten batches took %s, want no more than two of the attacker before each", got)
		}
		stop()
		synctest.Wait()
		if g := gate.flows; g.free != 1 || len(g.inside) > 0 || len(g.waiting) > 0 {
			t.Errorf("the gate remembers %+v", g)
		}
	})
}
