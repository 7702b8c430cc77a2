package controller

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// turnChanged passes the changes that the reconciler acts on. A binding and the progress of a running Turn do not pass,
// but the beginning and the end of a wait of its run do, because an Event reports a long one.
func turnChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Turn)
		after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
		if !ok || !isTurn {
			return false
		}
		return before.UID != after.UID || before.Generation != after.Generation ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			before.IsFinished() != after.IsFinished() ||
			(before.BoundTo() != "" && after.BoundTo() == "") || beginsToWait(before, after) ||
			turnstatus.RunWaits(before) != turnstatus.RunWaits(after)
	}}
}

// beginsToWait reports whether a Turn that is not bound has begun to wait for a change that an event reports. If that
// event came before the status showed the wait, it did not wake the Turn. So the Turn is reconciled once more. A Turn
// that waits for a slot needs no event.
func beginsToWait(before, after *v1alpha1.Turn) bool {
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionSucceeded)
	if is == nil || after.BoundTo() != "" {
		return false
	}
	switch is.Reason {
	case v1alpha1.TurnReasonPending, v1alpha1.TurnReasonWaitingForAgent, v1alpha1.TurnReasonWaitingForJournalSpace,
		v1alpha1.TurnReasonWaitingForBudget:
		was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionSucceeded)
		return was == nil || was.Reason != is.Reason
	}
	return false
}

// createdWithoutSession blocks new Turns of Sessions: the watch that maintains the queues of Sessions enqueues them.
func createdWithoutSession() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		t, ok := e.Object.(*v1alpha1.Turn)
		return ok && t.Spec.SessionRef == nil
	}}
}

// toolServerChanged passes the changes of a ToolServer that an Agent's status reports: its tools, its readiness, and
// whether it was asked for its tools at all. A check with an unchanged result does not pass. A new spec of a server
// whose tools are known passes only if it changes which namespaces may use the server.
func toolServerChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.ToolServer)
			after, isServer := e.ObjectNew.(*v1alpha1.ToolServer)
			if !ok || !isServer {
				return false
			}
			was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
			is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
			return before.UID != after.UID || (was == nil) != (is == nil) || wasAsked(before) != wasAsked(after) ||
				(was != nil && (was.Status != is.Status || was.Reason != is.Reason)) ||
				before.Status.ToolCount != after.Status.ToolCount || !slices.Equal(before.Status.Tools, after.Status.Tools) ||
				!equality.Semantic.DeepEqual(before.Spec.AllowedNamespaces, after.Spec.AllowedNamespaces)
		},
	}
}
