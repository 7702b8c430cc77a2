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

// The bounds of the waits between two looks at an object of which a look failed.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 30 * time.Second
)

// retries makes a controller look again at what failed at least every retryMost: a missing right, for one, is granted
// without an event.
func retries() controller.Options {
	return controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryMost)}
}

// inTurn are the options of a controller that looks at several objects side by side and serves namespaces in turn: of one
// namespace it has fewer under way than there are workers. So no namespace takes all workers, however many objects it has.
func inTurn(workers, ofNamespace int) controller.Options {
	options := retries()
	options.MaxConcurrentReconciles, options.NewQueue = workers, fairqueue.For(ofNamespace)
	return options
}

// Prompts are rendered for each look at a PromptProfile or an Agent, which takes the processor and then waits for one write. Of one
// namespace one is rendered at a time.
const (
	renderingsAtOnce      = 4
	renderingsOfNamespace = 1
)

// unreadable is the finding of an object whose ConfigMap could not be read.
func unreadable(err *translate.UnreadableError) finding {
	return finding{
		reason:  v1alpha1.ReasonConfigMapUnreadable,
		message: fmt.Sprintf("%s: ConfigMap %q cannot be read: %s", err.Field, err.Name, whyUnread(err.Err)), failure: err,
	}
}

// whyUnread says why a read failed, in words that are the same at each attempt: conditions hold no ports and no ids of
// requests. The log has all of it.
func whyUnread(err error) string {
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
