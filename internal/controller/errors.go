package controller

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/translate"
)

// staleInterval is how soon an object is reconciled again if its cached version is too old: a write has failed because
// of a newer write, or the cache does not show the last write yet. The event of the newer write may not reconcile the
// object, because most predicates drop changes of labels and annotations.
const staleInterval = 50 * time.Millisecond

// resultAfterWrite returns the result of a reconciliation that has written an object: the planned result, unless the
// write failed. A conflict is not an error: the cache was stale, so the object is reconciled again soon. If the object
// was deleted, that is not an error either.
func resultAfterWrite(planned ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, err
	}
	return planned, nil
}

// minRetryDelay and maxRetryDelay limit the waits between retries of an object whose reconciliation failed.
const (
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = 30 * time.Second
)

// retryOptions makes a controller retry a failed object at least every maxRetryDelay, because the cause may disappear
// without an event. For example, there is no event when a missing permission is granted.
func retryOptions() controller.Options {
	return controller.Options{
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRetryDelay, maxRetryDelay),
	}
}

// fairOptions returns the options of a controller that reconciles several objects in parallel and serves namespaces in
// turn. At most ofNamespace workers handle objects of one namespace, so that no namespace occupies all workers,
// however many objects it has.
func fairOptions(workers, ofNamespace int) controller.Options {
	options := retryOptions()
	options.MaxConcurrentReconciles, options.NewQueue = workers, fairqueue.For(ofNamespace)
	return options
}

// Each reconciliation of a PromptProfile or an Agent renders prompts, which uses a processor, and then waits for a
// write. So a namespace has only one worker at a time for PromptProfiles, and one for Agents.
const (
	renderWorkers            = 4
	renderWorkersOfNamespace = 1
)

// unreadableConfigMap returns the finding for an object whose ConfigMap could not be read.
func unreadableConfigMap(err *translate.UnreadableError) finding {
	return finding{
		reason:  v1alpha1.ReasonConfigMapUnreadable,
		message: fmt.Sprintf("%s: ConfigMap %q cannot be read: %s", err.Field, err.Name, readFailure(err.Err)), failure: err,
	}
}

// readFailure returns why a read failed, as a message that is the same at each attempt, because it becomes part of a
// condition: it contains no ports and no request IDs. The log has the complete error.
func readFailure(err error) string {
	var status apierrors.APIStatus
	switch reason := apierrors.ReasonForError(err); {
	case !errors.As(err, &status):
		return "the API server did not answer"
	case reason == metav1.StatusReasonForbidden:
		return status.Status().Message
	default:
		return fmt.Sprintf("the API server answered %d %s", status.Status().Code, reason)
	}
}
