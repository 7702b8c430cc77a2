package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/objectbudget"
)

// leftOutInterval is the time after which an object whose content the cache has dropped is reconciled again.
const leftOutInterval = 15 * time.Second

// LeftOut reports objects that the cache holds without their content, because their namespace has no memory left. A nil
// LeftOut reports none.
type LeftOut struct {
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Objects counts the bytes of the objects in the cache, and knows whether an object without its content would fit.
	Objects *objectbudget.Budget
	Now     func() time.Time
}

// isLeftOut reports whether the cache holds an object without its content.
func (l *LeftOut) isLeftOut(o client.Object) bool { return l != nil && objectbudget.IsLeftOut(o) }

// report sets the Ready condition of an object whose content the cache has dropped, with a message that says so, and
// removes the condition Stalled. Once the cache has memory for the object again, each call of report changes the
// message, alternating between two texts: only a change makes the API server send the object again, and only then can
// the cache keep its content. conditions and observed must point to status.conditions and status.observedGeneration of
// o.
func (l *LeftOut) report(
	ctx context.Context, o client.Object, conditions *[]metav1.Condition, observed *int64,
) (ctrl.Result, error) {
	again := ctrl.Result{RequeueAfter: leftOutInterval}
	fits := l.Objects.Fits(o)
	if !fits && objectbudget.IsReported(o) {
		return again, nil
	}
	if err := objectbudget.Read(ctx, l.Live, client.ObjectKeyFromObject(o), o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	found := finding{reason: v1alpha1.ReasonTooManyObjects, message: objectbudget.Message(o.GetNamespace())}
	if c := ready(*conditions, o.GetGeneration()); fits && (c == nil || c.Message == found.message) {
		found.message = "the manager has memory for this object again, and reads it"
	}
	before := append([]metav1.Condition(nil), *conditions...)
	found.setReady(conditions, o.GetGeneration(), l.Now())
	if equality.Semantic.DeepEqual(before, *conditions) && *observed == o.GetGeneration() {
		return again, nil
	}
	*observed = o.GetGeneration()
	return resultAfterWrite(again, l.Client.Status().Update(ctx, o))
}

// specChanged passes changes of the spec, and the updates by which the cache drops the content of an object or gets it
// back.
func specChanged() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, objectbudget.Changed())
}
