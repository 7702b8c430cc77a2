package executor

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// claimsAtOnce is how many Turns are claimed at once at the start: as many as the controller binds at once.
const claimsAtOnce = 8

// adopt claims a Turn that was bound to this name before the process started, with a new epoch, so that nothing an earlier
// process may still do counts. It does not wait for that; adoptions does. While the API server is away the claim is tried
// again. The run begins when the watch shows the claim: so it never begins for a Turn that the watch has seen go. As many claims are
// first tried at once as Turns are bound at once, so that a start does no more at a time than the work after it; a claim that failed is
// in nobody's way.
func (e *Executor) adopt(ctx context.Context, t *v1alpha1.Turn, adoptions *sync.WaitGroup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining {
		return
	}
	if e.claims == nil {
		e.claims = make(chan struct{}, claimsAtOnce)
	}
	claims := e.claims
	e.done[t.UID] = t.Epoch()
	adoptions.Add(1)
	e.all.Go(func() {
		defer adoptions.Done()
		claim := func(t *v1alpha1.Turn) {
			t.Status.Executor.Epoch++
			translate.Abandon(t.Status.Executor)
		}
		claims <- struct{}{}
		claimed, err := e.update(ctx, t, t.Epoch(), claim)
		<-claims
		if err != nil {
			claimed, _ = e.persist(ctx, t, t.Epoch(), claim)
		}
		if claimed != nil {
			e.Log.Info("Taking up a turn of an earlier process", "turn", client.ObjectKeyFromObject(t), "epoch", claimed.Epoch())
		}
	})
}
