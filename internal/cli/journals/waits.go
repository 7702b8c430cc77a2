package journals

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
)

// waitInterval is the time between two reads of the status of a Turn that is followed. A watch would require one more
// permission.
const waitInterval = 3 * time.Second

// logWaits prints why the Turn waits, each time the reason changes, because the journal of a waiting Turn gets no new
// entries. If the user has no permission to get Turns, it prints nothing. A refusal after a successful read comes from
// an API server that has not loaded its roles yet. The caller must call stop.
func (r *Remote) logWaits(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		logged, read := "", false
		for {
			t, err := r.turn(ctx, r.name)
			if !read && cluster.IsRefused(err) {
				return
			}
			if err == nil {
				read = true
				reason := waitOf(t)
				if reason != "" && reason != logged {
					r.env.Logf("%s", reason)
				}
				logged = reason
			}
			select {
			case <-time.After(waitInterval):
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// waitOf returns why a Turn waits, from its status. It returns an empty text for a Turn that runs or has ended.
func waitOf(t *v1alpha1.Turn) string {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	if c == nil || c.Status != metav1.ConditionUnknown || c.Reason == v1alpha1.TurnReasonRunning {
		return ""
	}
	return c.Reason + ": " + c.Message
}
