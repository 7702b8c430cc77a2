package executor

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// steps returns a progress with n steps.
func steps(n int) turn.Progress { return turn.Progress{Counts: turn.Counts{Steps: n}} }

// beginProgress begins a progress, and returns it with a function that lists its writes and the time of each since the
// beginning. fail returns the error of the nth write, from 1; if fail is nil, all writes succeed.
func beginProgress(ctx context.Context, fail func(nth int) error) (p *progress, writes func() (steps []int, at []time.Duration)) {
	p = &progress{}
	begin := time.Now()
	var all []int
	var at []time.Duration
	p.begin(ctx, turnWith(), func(_ context.Context, t *v1alpha1.Turn, u statusUpdate) (*v1alpha1.Turn, error) {
		all, at = append(all, u.progress.Counts.Steps), append(at, time.Since(begin))
		if fail != nil {
			if err := fail(len(all)); err != nil {
				return nil, err
			}
		}
		return t, nil
	})
	return p, func() ([]int, []time.Duration) { return all, at }
}

func TestProgressIsWrittenAtIntervals(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// noted are the times at which the run takes a step.
		noted []time.Duration
		// until is the time at which the run ends.
		until time.Duration
		want  []int
		at    []time.Duration
	}{
		"a short run": {
			"its end includes the progress",
			[]time.Duration{1 * time.Second, 4 * time.Second},
			4999 * time.Millisecond, nil, nil,
		},
		"a longer run": {
			"the progress after five seconds",
			[]time.Duration{1 * time.Second, 4 * time.Second},
			30 * time.Second,
			[]int{2},
			[]time.Duration{5 * time.Second},
		},
		"a late step": {
			"the interval of five seconds is over, so the write follows after a delay of one second",
			[]time.Duration{17 * time.Second},
			30 * time.Second,
			[]int{1},
			[]time.Duration{18 * time.Second},
		},
		"a late answer": {
			"the run ends within the delay, and the write of its end includes the progress",
			[]time.Duration{17 * time.Second},
			17500 * time.Millisecond, nil, nil,
		},
		"many steps": {
			"each write has the newest progress; between two writes are at least five seconds",
			[]time.Duration{1 * time.Second, 6 * time.Second, 7 * time.Second, 8 * time.Second, 22 * time.Second, 24 * time.Second},
			40 * time.Second,
			[]int{1, 4, 5, 6},
			[]time.Duration{5 * time.Second, 10 * time.Second, 23 * time.Second, 28 * time.Second},
		},
		"no step": {"there is no progress", nil, time.Hour, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, writes := beginProgress(t.Context(), nil)
				passed := time.Duration(0)
				for i, at := range tc.noted {
					time.Sleep(at - passed)
					passed = at
					p.note(steps(i + 1))
				}
				time.Sleep(tc.until - passed)
				p.stop()
				time.Sleep(time.Minute)
				got, at := writes()
				if len(got) != len(tc.want) {
					t.Fatalf("wrote %v at %v, want %v at %v: %s", got, at, tc.want, tc.at, tc.reason)
				}
				for i := range got {
					if got[i] != tc.want[i] || at[i] != tc.at[i] {
						t.Errorf("wrote %v at %v, want %v at %v: %s", got, at, tc.want, tc.at, tc.reason)
					}
				}
			})
		})
	}
}

func TestProgressAfterAFailedWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   int
	}{
		"API server away": {"it is tried again after the interval, even without new progress", broken, 2},
		"write refused":   {"it would be refused again", refusal, 1},
		"write denied":    {"a denial may pass", denial, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, writes := beginProgress(t.Context(), func(nth int) error {
					if nth == 1 {
						return tc.err
					}
					return nil
				})
				p.note(steps(1))
				time.Sleep(time.Minute)
				p.stop()
				if got, at := writes(); len(got) != tc.want {
					t.Errorf("wrote %v at %v, want %d writes: %s", got, at, tc.want, tc.reason)
				}
			})
		})
	}
}

// TestWaitWhoseWriteResponseIsLost checks that a Turn does not stay Queued if the API server applies the write of the
// wait, the response to that write is lost, and the wait is over before the next write.
func TestWaitWhoseWriteResponseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		e, _ := newExecutor(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
			o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			err := c.SubResource(sub).Update(ctx, o, opts...)
			if writes.Add(1) == 1 && err == nil {
				return broken
			}
			return err
		}}, turnWith())
		r := &run{executor: e, turn: stored(t, e), epoch: 1}
		r.progress.begin(t.Context(), r.turn, r.writeProgress)
		r.progress.setProviderWait("demo")
		time.Sleep(6 * time.Second)
		if reason := stored(t, e).StateReason(); reason != v1alpha1.TurnReasonQueued || writes.Load() != 1 {
			t.Fatalf("the Turn is %s after %d writes, want Queued after 1", reason, writes.Load())
		}
		r.progress.setProviderWait("")
		time.Sleep(time.Minute)
		r.progress.stop()
		if reason := stored(t, e).StateReason(); reason != v1alpha1.TurnReasonRunning {
			t.Errorf("the Turn is %s, want Running: it no longer waits", reason)
		}
	})
}

// TestTheEndDoesNotWaitForProgress checks that a hanging write is cancelled, and that the run continues with the
// Turn as the last successful write left it.
func TestTheEndDoesNotWaitForProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &progress{}
		before := turnWith()
		p.begin(t.Context(), before, func(ctx context.Context, _ *v1alpha1.Turn, _ statusUpdate) (*v1alpha1.Turn, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		p.note(steps(1))
		time.Sleep(time.Hour)
		begin := time.Now()
		if got := p.stop(); got != before || time.Since(begin) > 0 {
			t.Errorf("stopped after %s with %p, want an immediate stop with the Turn as it was", time.Since(begin), got)
		}
	})
}

// TestProgressOfARun checks that the end of a run needs one write, because that write uses the resource version that
// the last write of progress returned.
func TestProgressOfARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conflicts int
		funcs := interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
			o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			err := c.SubResource(sub).Update(ctx, o, opts...)
			if err != nil {
				conflicts++
			}
			return err
		}}
		e, _ := newExecutor(t, funcs, turnWith())
		r := &run{executor: e, turn: stored(t, e), epoch: 1}
		r.progress.begin(t.Context(), r.turn, r.writeProgress)
		r.progress.note(steps(3))
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if s := stored(t, e).Status.Steps; s == nil || s.Count != 3 {
			t.Fatalf("steps %+v, want 3", s)
		}
		r.turn = r.progress.stop()
		r.finish(t.Context(), &turn.Result{Stop: turn.StopCompleted, Counts: turn.Counts{Steps: 4}})
		if got := stored(t, e); !got.IsFinished() || got.Status.Steps.Count != 4 || conflicts != 0 {
			t.Errorf("status %+v after %d conflicts, want a finished Turn of 4 steps, and no conflict", got.Status, conflicts)
		}
	})
}

// TestProgressIsNotWrittenToATurnBoundElsewhere checks that a run does not write to a Turn that no longer
// belongs to it.
func TestProgressIsNotWrittenToATurnBoundElsewhere(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(boundTo("other", 2)))
	r := &run{executor: e, turn: turnWith(func(t *v1alpha1.Turn) { t.ResourceVersion = "1" }), epoch: 1}
	written, err := r.writeProgress(t.Context(), r.turn, statusUpdate{progress: new(steps(1))})
	if written != nil || err != nil || stored(t, e).Status.Steps != nil {
		t.Errorf("wrote %v, error %v; want no write and no error", written, err)
	}
}
