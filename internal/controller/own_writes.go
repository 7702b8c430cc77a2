package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/scheduler"
)

// ownWrites keeps a reconciler from working on an object that the cache shows as it was before the reconciler's last
// write. Such an object may already have the status that the reconciler finds now, while the API server has another
// one. The reconciler would write nothing, and the event of its own write does not reconcile the object again. The
// zero value is ready to use. ownWrites is safe for concurrent use.
type ownWrites struct {
	expectations scheduler.Expectations
}

// get reads an object from the cache. If ok is false, the object does not exist or is not as new as the last write, and
// result and err are those of the reconciliation.
func (w *ownWrites) get(
	ctx context.Context, c client.Reader, key client.ObjectKey, o client.Object,
) (ok bool, result ctrl.Result, err error) {
	if err := c.Get(ctx, key, o); err != nil {
		if apierrors.IsNotFound(err) {
			w.expectations.Forget(key)
		}
		return false, ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if w.expectations.IsStale(o) {
		return false, ctrl.Result{RequeueAfter: staleInterval}, nil
	}
	return true, ctrl.Result{}, nil
}

// writeStatus writes the status of an object that get has read. It returns whether that succeeded, and the result of
// the reconciliation, which is then if there is no reason to come back sooner.
func (w *ownWrites) writeStatus(
	ctx context.Context, c client.Client, o client.Object, then ctrl.Result,
) (written bool, result ctrl.Result, err error) {
	if err = c.Status().Update(ctx, o); err == nil {
		w.expectations.Expect(o)
	}
	result, failure := resultAfterWrite(then, err)
	return err == nil, result, failure
}
