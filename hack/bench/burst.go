package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// creators is the maximum number of objects that are being created at the same time: enough to keep the API server
// busy.
const creators = 32

// burstResult is the result of Turns that were created at the same time.
type burstResult struct {
	wall       time.Duration   // from the first creation to the last completion
	durations  []time.Duration // status.durationMilliseconds, one per Turn
	latencies  []time.Duration // from a Turn's creation to its completion, as a client sees them
	failed     map[string]int  // Turns that did not succeed, by reason
	byExecutor map[string]int  // Turns by the executor that ran them
	steps      int             // the total of all Turns
	toolCalls  int             // the total of all Turns
}

// burst creates n Turns at the same time and watches them until all have finished.
func (b *bench) burst(ctx context.Context, prefix string, n int) (*burstResult, error) {
	return b.burstOf(ctx, n, func(i int) *v1alpha1.Turn { return newTurn(fmt.Sprintf("%s-%d", prefix, i), b.payload) })
}

// burstOf is like burst, but creates the Turns with newOne.
func (b *bench) burstOf(ctx context.Context, n int, newOne func(int) *v1alpha1.Turn) (*burstResult, error) {
	var mu sync.Mutex
	created := make(map[string]time.Time, n)
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		create, ctx := errgroup.WithContext(ctx)
		create.SetLimit(creators)
		for i := range n {
			create.Go(func() error {
				turn := newOne(i)
				mu.Lock()
				created[turn.Name] = time.Now()
				mu.Unlock()
				if err := b.turns.Post().Namespace(turn.Namespace).Resource("turns").Body(turn).Do(ctx).Error(); err != nil {
					return fmt.Errorf("failed to create Turn %q: %w", turn.Name, err)
				}
				return nil
			})
		}
		return create.Wait()
	})
	result := &burstResult{failed: map[string]int{}, byExecutor: map[string]int{}}
	group.Go(func() error {
		return b.watchFinished(ctx, n, func(turn *v1alpha1.Turn) bool {
			mu.Lock()
			defer mu.Unlock()
			at, mine := created[turn.Name] // the watch also reports the Turns of earlier bursts
			if mine {
				result.add(turn, time.Since(at))
			}
			return mine
		})
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	result.wall = time.Since(start)
	return result, nil
}

// watchFinished calls counts once for each finished Turn, until counts has returned true n times.
func (b *bench) watchFinished(ctx context.Context, n int, counts func(*v1alpha1.Turn) bool) error {
	counted := 0
	seen := make(map[string]bool, n)
	// Leave out the Turns that makeFinished created: reading thousands of them would slow down the measurement.
	list := cache.NewFilteredListWatchFromClient(b.turns, "turns", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = "!" + finishedLabel
	})
	_, err := watchtools.UntilWithSync(ctx, list, &v1alpha1.Turn{}, nil, func(event watch.Event) (bool, error) {
		turn, ok := event.Object.(*v1alpha1.Turn)
		if ok && turn.IsFinished() && !seen[turn.Name] {
			seen[turn.Name] = true
			if counts(turn) {
				counted++
			}
		}
		return counted == n, nil
	})
	if err != nil {
		return fmt.Errorf("gave up waiting for the Turns, %d of %d have finished: %w", counted, n, err)
	}
	return nil
}

func (r *burstResult) add(turn *v1alpha1.Turn, latency time.Duration) {
	r.latencies = append(r.latencies, latency)
	if e := turn.Status.Executor; e != nil {
		r.byExecutor[e.Name]++
	}
	if ms := turn.Status.DurationMilliseconds; ms != nil {
		r.durations = append(r.durations, time.Duration(*ms)*time.Millisecond)
	}
	if s := turn.Status.Steps; s != nil {
		r.steps += int(s.Count)
		r.toolCalls += int(s.ToolCalls)
	}
	if c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionSucceeded); c.Status != metav1.ConditionTrue {
		r.failed[c.Reason]++
	}
}
