package executor

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// adopt claims the Turns that were bound to this name before the process started, each with a new epoch, so that
// nothing an earlier process may still do counts. While the API server is away it waits.
func (e *Executor) adopt(ctx, work context.Context) error {
	var turns v1alpha1.TurnList
	if err := e.Client.List(ctx, &turns); err != nil {
		return fmt.Errorf("failed to list turns: %w", err)
	}
	known := make(map[string]bool, len(turns.Items))
	for i := range turns.Items {
		t := &turns.Items[i]
		known[string(t.UID)] = true
		if t.BoundTo() != e.Name {
			continue
		}
		claimed, _ := e.persist(ctx, t, t.Epoch(), func(t *v1alpha1.Turn) { t.Status.Executor.Epoch++ })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if claimed != nil {
			e.Log.Info("Taking up a turn of an earlier process", "turn", client.ObjectKeyFromObject(t), "epoch", claimed.Epoch())
			e.observe(work, claimed)
		}
	}
	if e.SweepStore {
		e.sweep(ctx, known)
	}
	return nil
}

// sweep forgets Turns that were deleted while no process was there to see it. A failure costs disk space only.
func (e *Executor) sweep(ctx context.Context, known map[string]bool) {
	uids, err := e.Store.TurnUIDs(ctx)
	if err != nil {
		e.Log.Error(err, "Failed to list the journals")
		return
	}
	for _, uid := range uids {
		if known[uid] {
			continue
		}
		if err := e.Store.Delete(ctx, uid); err != nil {
			e.Log.Error(err, "Failed to delete the journal of a turn that is gone", "uid", uid)
		}
	}
}
