package executor

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// adopt claims the Turns that were bound to this name before the process started, each with a new epoch, so that
// nothing an earlier process may still do counts. While the API server is away it waits. The sweep of the store goes on
// beside it: a slow database keeps no Turn waiting.
func (e *Executor) adopt(ctx, work context.Context) error {
	var turns v1alpha1.TurnList
	if err := e.Client.List(ctx, &turns); err != nil {
		return fmt.Errorf("failed to list turns: %w", err)
	}
	for i := range turns.Items {
		t := &turns.Items[i]
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
		e.all.Go(func() { e.sweep(ctx) })
	}
	return nil
}

// sweepPage is how many Turns the sweep asks the API server for at once.
const sweepPage = 500

// sweep forgets Turns that were deleted while no process was there to see it. A failure costs disk space only.
//
// Other executors may share the store and begin journals meanwhile. So the journals are listed before the Turns: a journal
// that is in the list has a Turn that is older, and whoever lists the Turns afterwards finds it. The cache may be behind,
// so that only the API server's word makes a journal an orphan.
func (e *Executor) sweep(ctx context.Context) {
	orphans, err := e.orphans(ctx)
	if err != nil {
		if ctx.Err() == nil { // else it was cut short by the stop; the next start sweeps
			e.Log.Error(err, "Failed to look for journals of turns that are gone")
		}
		return
	}
	for uid := range orphans {
		if ctx.Err() != nil {
			return
		}
		if err := e.Store.Delete(ctx, uid); err != nil {
			e.Log.Error(err, "Failed to delete the journal of a turn that is gone", "uid", uid)
		}
	}
}

// orphans are the UIDs of the journals whose Turn is gone.
func (e *Executor) orphans(ctx context.Context) (sets.Set[string], error) {
	uids, err := e.Store.TurnUIDs(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to list the journals: %w", err)
	}
	left := sets.New(uids...)
	var cached v1alpha1.TurnList
	if err := e.Client.List(ctx, &cached); err != nil {
		return nil, fmt.Errorf("failed to list turns: %w", err)
	}
	for i := range cached.Items {
		left.Delete(string(cached.Items[i].UID))
	}
	for next := ""; left.Len() > 0; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TurnList"))
		if err := e.Reader.List(ctx, page, client.Limit(sweepPage), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("failed to list turns from the API server: %w", err)
		}
		for i := range page.Items {
			left.Delete(string(page.Items[i].UID))
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	return left, nil
}
