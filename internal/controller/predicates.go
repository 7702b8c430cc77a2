package controller

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
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

// appearsAlone keeps new Turns of Sessions out: the watch that keeps the queues of Sessions brings them.
func appearsAlone() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		t, ok := e.Object.(*v1alpha1.Turn)
		return ok && t.Spec.SessionRef == nil
	}}
}

// toolServerNews lets through what an Agent says of a ToolServer: what its tools are, whether it is ready, and whether it was asked
// for them at all. A look that found nothing new wakes no Agent, nor does a new spec of a server whose tools are known.
func toolServerNews() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.ToolServer)
			after, isServer := e.ObjectNew.(*v1alpha1.ToolServer)
			if !ok || !isServer {
				return false
			}
			was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
			is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
			return before.UID != after.UID || (was == nil) != (is == nil) || asked(before) != asked(after) ||
				(was != nil && (was.Status != is.Status || was.Reason != is.Reason)) ||
				before.Status.ToolCount != after.Status.ToolCount || !slices.Equal(before.Status.Tools, after.Status.Tools)
		},
	}
}
