package controller

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// sessionChanged passes the changes that the reconciler of Sessions acts on: a new spec, and a status that an executor
// has written. The reconciler's own writes do not pass.
func sessionChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Session)
		after, isSession := e.ObjectNew.(*v1alpha1.Session)
		if !ok || !isSession {
			return false
		}
		return before.UID != after.UID || before.Generation != after.Generation ||
			!equality.Semantic.DeepEqual(totalsOf(before), totalsOf(after))
	}}
}

// totalsOf returns the part of a Session's status that executors write: the totals, and the condition HistoryComplete
// if it is False.
func totalsOf(s *v1alpha1.Session) v1alpha1.SessionStatus {
	totals := s.Status
	totals.ObservedGeneration, totals.Conditions = 0, nil
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionHistoryComplete); c != nil &&
		c.Status == metav1.ConditionFalse {
		totals.Conditions = []metav1.Condition{*c}
	}
	return totals
}

// sessionMayOpen passes the changes that may let the first Turn of a Session continue: a new spec, such as a higher
// budget, and the end of a Session that was being deleted. A new Session does not pass: its first Turn creates it and
// does not wait for it.
func sessionMayOpen() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration()
		},
	}
}

// turnLeft passes the events by which a Turn leaves its Session: its end and its deletion.
func turnLeft() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Turn)
			after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
			return ok && isTurn && (before.UID != after.UID || !before.IsFinished() && after.IsFinished())
		},
	}
}

// sessionQueueChanged passes the changes of a Turn that affect other Turns of its Session:
//
//  1. The Turn ends, is deleted, cancelled, suspended or resumed.
//  2. The Turn starts or stops waiting for people.
//  3. The position of the Turn among the Turns created in the same second changes, because another client changed the
//     Turn before its first reconciliation.
func sessionQueueChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Turn)
			after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
			if !ok || !isTurn {
				return false
			}
			if before.UID != after.UID {
				return true
			}
			if after.Spec.SessionRef == nil {
				return false
			}
			return scheduler.BlocksSession(before) != scheduler.BlocksSession(after) ||
				before.Spec.DesiredState != after.Spec.DesiredState ||
				awaitsPeople(before) != awaitsPeople(after) ||
				(after.Epoch() == 0 && scheduler.SessionOrder(before) != scheduler.SessionOrder(after))
		},
	}
}

// logListFailure logs that the Turns that an event affects could not be listed.
func logListFailure(ctx context.Context, err error) {
	ctrl.LoggerFrom(ctx).Error(err, "Failed to list the turns that wait")
}
