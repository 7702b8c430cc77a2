package executor

import (
	"context"
	"sync"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// claimsAtOnce is the number of Turns that are claimed at the same time during the start: half of the writes that
// fairgate.NewWriteGate admits. So Turns that are already claimed can write their statuses, and do not wait behind
// thousands of claims of their namespace.
const claimsAtOnce = 8

// adopt claims a Turn that was bound to this executor's name before the process started. The claim is a new epoch, so
// that writes of an earlier process are refused. adopt does not wait for the claim; adoptions.Wait does.
//
//   - While the API server is unavailable, the claim is tried again.
//   - The run begins when the watch shows the claim, so it never begins for a Turn that the watch no longer shows.
//   - The first attempts share claimsAtOnce slots, so that the start causes no more load than normal work. Repeated
//     attempts use no slot, so a failed claim does not block others.
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
	e.done[t.UID] = endedRun{t.Epoch(), t.ResourceVersion}
	adoptions.Add(1)
	e.all.Go(func() {
		defer adoptions.Done()
		claims <- struct{}{}
		claim := func(t *v1alpha1.Turn) { turnstatus.Adopt(t, e.Now()) }
		claimed, err := e.update(ctx, t, t.Epoch(), claim)
		<-claims
		if err != nil {
			claimed, err = e.persist(ctx, t, t.Epoch(), claim)
		}
		if writeerror.IsRejected(err) {
			e.markUnclaimed(t, err)
		}
		if claimed != nil && claimed.BoundTo() == e.Name {
			e.adopted.Add(1)
			e.logOf(t).V(1).Info("Taking over a turn of an earlier process", "epoch", claimed.Epoch())
		}
	})
}
