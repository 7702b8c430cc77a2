package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// whenAgentNotReady makes a Turn wait for its agent. One that queues keeps its place in the queue for the moment in which
// a changed agent is looked at; one that may have its prompt already goes on.
func whenAgentNotReady(v view) (decision, bool) {
	ok, why := agentReadiness(v)
	if ok || mayGoOn(v) {
		return decision{}, false
	}
	d := decision{action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, message: why, after: untilDeadline(v)}
	if v.turn.StateReason() == v1alpha1.TurnReasonQueued && unchecked(v.agent) {
		d = decision{action: nothing, after: d.after}
	}
	return d, true
}

// mayGoOn says whether a Turn that was bound before may go on although its agent's prompt cannot be made: the journal may
// have the prompt, which no change of a profile alters. A Turn whose journal has not was given back to wait for its agent.
func mayGoOn(v view) bool {
	if v.agent == nil || unchecked(v.agent) || v.turn.Epoch() == 0 || v.turn.StateReason() == v1alpha1.TurnReasonWaitingForAgent {
		return false
	}
	return meta.IsStatusConditionTrue(v.agent.Status.Conditions, v1alpha1.ConditionModelsResolved)
}

// whenConfigMapMissing makes a Turn wait for a ConfigMap that it names itself.
func whenConfigMapMissing(v view) (decision, bool) {
	if v.missing == "" {
		return decision{}, false
	}
	return decision{action: wait, reason: v1alpha1.TurnReasonPending, message: v.missing, after: untilDeadline(v)}, true
}

// unchecked is an agent whose newest spec nobody has looked at.
func unchecked(a *v1alpha1.Agent) bool {
	return a != nil && ready(a.Status.Conditions, a.Generation) == nil
}

func agentReadiness(v view) (ok bool, why string) {
	name := v.turn.Spec.AgentRef.Name
	if v.agent == nil {
		return false, fmt.Sprintf("Agent %q does not exist in namespace %q", name, v.turn.Namespace)
	}
	c := ready(v.agent.Status.Conditions, v.agent.Generation)
	switch {
	case c == nil:
		return false, fmt.Sprintf("Agent %q is not checked yet", name)
	case c.Status != metav1.ConditionTrue:
		return false, fmt.Sprintf("Agent %q is not ready: %s", name, c.Message)
	}
	return true, ""
}
