package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// staleInterval is how soon an object is looked at again whose write lost against a newer one. The event of that newer
// one may not do: most predicates drop a change of labels or annotations.
const staleInterval = 50 * time.Millisecond

// written is what a reconciliation that wrote returns. A write that lost is no error: the cache was behind. Nor is one
// whose object is gone.
func written(then ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, err
	}
	return then, nil
}
