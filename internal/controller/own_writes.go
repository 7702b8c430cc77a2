package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/scheduler"
)

// ownWrites keeps a reconciler from working on an object whose cached version is older than the reconciler's last
// write. The status in this old version may equal the status that the reconciler computes now, although the API server
// has another status. The reconciler would then write nothing, and the event of its last write does not reconcile the
// object again. The zero value is ready to use. ownWrites is safe for concurrent use.
type ownWrites struct {
	expectations scheduler.Expectations
}

// get reads an object from the cache. If ok is false, the object does not exist or is older than the last write, and
// the reconciliation must return result and err.
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

// writeStatus writes the status of an object that get has read. It returns whether the write succeeded, and the result
// and the error that the reconciliation must return. The result is the planned result, unless the object must be
// reconciled sooner.
func (w *ownWrites) writeStatus(
	ctx context.Context, c client.Client, o client.Object, planned ctrl.Result,
) (written bool, result ctrl.Result, err error) {
	if err = c.Status().Update(ctx, o); err == nil {
		w.expectations.Expect(o)
	}
	result, failure := resultAfterWrite(planned, err)
	return err == nil, result, failure
}
