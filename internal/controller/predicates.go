package controller

import (
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// turnNews lets through what the reconciler acts on, so that the status writes of binding and running wake nobody.
func turnNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Turn)
		after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
		if !ok || !isTurn {
			return false
		}
		return before.UID != after.UID || before.Generation != after.Generation ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			before.IsFinished() != after.IsFinished() ||
			(before.BoundTo() != "" && after.BoundTo() == "")
	}}
}

// agentNews lets through what may let a waiting Turn run.
func agentNews() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Agent)
			after, isAgent := e.ObjectNew.(*v1alpha1.Agent)
			if !ok || !isAgent {
				return false
			}
			was := ready(before.Status.Conditions, before.Generation)
			is := ready(after.Status.Conditions, after.Generation)
			return before.Generation != after.Generation || (was == nil) != (is == nil) ||
				(was != nil && (was.Status != is.Status || was.Message != is.Message))
		},
	}
}
