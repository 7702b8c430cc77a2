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
)

// sessionNews lets through what the reconciler of Sessions acts on: a new spec, and totals that an executor has written. Its
// own writes, of conditions alone, are neither.
func sessionNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Session)
		after, isSession := e.ObjectNew.(*v1alpha1.Session)
		if !ok || !isSession {
			return false
		}
		return before.UID != after.UID || before.Generation != after.Generation || !equality.Semantic.DeepEqual(totalsOf(before), totalsOf(after))
	}}
}

// totalsOf is the part of a Session's status that executors write.
func totalsOf(s *v1alpha1.Session) v1alpha1.SessionStatus {
	totals := s.Status
	totals.ObservedGeneration, totals.Conditions = 0, nil
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionHistoryComplete); c != nil && c.Status == metav1.ConditionFalse {
		totals.Conditions = []metav1.Condition{*c}
	}
	return totals
}

// sessionOpens lets through what may let the first Turn of a Session go on: another budget, and the end of a Session that was
// being deleted. Nobody waits for one that appears: it is made for its first Turn.
func sessionOpens() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration()
		},
	}
}

// leavesSession lets through that a Turn has ended or is gone.
func leavesSession() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Turn)
			after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
			return ok && isTurn && (before.UID != after.UID || !before.IsFinished() && after.IsFinished())
		},
	}
}

// queueOfSessionNews lets through what concerns other Turns of a Session: that one ends or goes, is suspended, waits for people or goes on, or
// changes its place among those of its second because somebody changed it before it was looked at.
func queueOfSessionNews() predicate.Predicate {
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
			return holdsSession(before) != holdsSession(after) || before.Spec.DesiredState != after.Spec.DesiredState ||
				awaitsPeople(before) != awaitsPeople(after) ||
				(after.Epoch() == 0 && sessionOrder(before) != sessionOrder(after))
		},
	}
}

// reportUnlisted logs that the cache could not list what an event concerns.
func reportUnlisted(ctx context.Context, err error) {
	ctrl.LoggerFrom(ctx).Error(err, "Failed to list the turns that wait")
}
