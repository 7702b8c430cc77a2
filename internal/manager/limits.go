package manager

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// countInterval is the time between two counts of the executors that share limits.
const countInterval = 2 * time.Second

// addLimits keeps the limits of ModelProviders up to date: their specs, and the number of executors that share them and
// the quotas of journals. If the store is not shared, only one executor works at a time, so executors are not counted.
func (p *parts) addLimits(ctx context.Context) error {
	informer, err := p.manager.GetCache().GetInformer(ctx, &v1alpha1.ModelProvider{})
	if err != nil {
		return fmt.Errorf("failed to watch ModelProviders: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, after any) {
		// The cache may have left out the spec of an object.
		if changed, ok := after.(*v1alpha1.ModelProvider); ok && !objectbudget.IsLeftOut(changed) {
			p.providers.Changed(changed)
		}
	}}); err != nil {
		return fmt.Errorf("failed to follow changes of ModelProviders: %w", err)
	}
	if !p.shared {
		return nil
	}
	count := &executorCount{leases: p.manager.GetCache(), namespace: p.options.Namespace, now: p.localNow}
	return p.manager.Add(everywhere{manager.RunnableFunc(func(ctx context.Context) error {
		ticker := time.NewTicker(countInterval)
		defer ticker.Stop()
		for {
			n, err := count.alive(ctx)
			if err == nil {
				p.providers.SetExecutors(n)
				p.meter.SetExecutors(n)
			} else if ctx.Err() == nil {
				p.log.Error(err, "Failed to count the executors that share the limits of ModelProviders and the quotas of journals")
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
		}
	})})
}

// executorCount counts the executors that may get Turns, by the Leases in the cache. Leases expire by the same rules as
// for the controller. It is not safe for concurrent use.
type executorCount struct {
	leases    client.Reader
	namespace string
	now       func() time.Time
	seen      scheduler.Leases
	// existing are the names of the Leases that the last call of alive has found.
	existing sets.Set[string]
}

// alive returns the number of executors that are alive and may get Turns, but at least 1. It forgets the Leases that
// were deleted since the last call: each Pod has a new name and so a new Lease.
func (c *executorCount) alive(ctx context.Context) (int, error) {
	var all coordinationv1.LeaseList
	if err := c.leases.List(ctx, &all, client.InNamespace(c.namespace)); err != nil {
		return 0, fmt.Errorf("failed to list the leases of executors: %w", err)
	}
	executors := executor.LeasesOfExecutors(all.Items)
	now, n := c.now(), 0
	c.seen.Start(executors, now)
	found := sets.New[string]()
	for i := range executors {
		lease := &executors[i]
		found.Insert(lease.Name)
		if _, mayGetTurns := c.seen.Check(lease, now); mayGetTurns && scheduler.ExecutorOf(lease).Capacity > 0 {
			n++
		}
	}
	for name := range c.existing.Difference(found) {
		c.seen.Forget(name)
	}
	c.existing = found
	return max(1, n), nil
}
