package executor

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// adopt claims a Turn that was bound to this name before the process started, with a new epoch, so that nothing an earlier
// process may still do counts. It does not wait for that; adoptions does. While the API server is away the claim is tried
// again. The run begins when the watch shows the claim: so it never begins for a Turn that the watch has seen go.
func (e *Executor) adopt(ctx context.Context, t *v1alpha1.Turn, adoptions *sync.WaitGroup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining {
		return
	}
	e.done[t.UID] = t.Epoch()
	adoptions.Add(1)
	e.all.Go(func() {
		defer adoptions.Done()
		claimed, _ := e.persist(ctx, t, t.Epoch(), func(t *v1alpha1.Turn) {
			t.Status.Executor.Epoch++
			translate.Abandon(t.Status.Executor)
		})
		if claimed != nil {
			e.Log.Info("Taking up a turn of an earlier process", "turn", client.ObjectKeyFromObject(t), "epoch", claimed.Epoch())
		}
	})
}
