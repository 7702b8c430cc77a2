package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// whenAgentNotReady makes a Turn wait for its agent. One that queues keeps its place in the queue for the moment in which
// a changed agent is looked at; one that may have its prompt already goes on.
func whenAgentNotReady(v view) (decision, bool) {
	checked, why := agentReadiness(v)
	switch {
	case why == "", checked && mayGoOn(v):
		return decision{}, false
	case !checked && v.turn.StateReason() == v1alpha1.TurnReasonQueued:
		return decision{action: hold, after: untilDeadline(v)}, true
	}
	return decision{action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, message: why, after: untilDeadline(v)}, true
}

// agentReadiness says why the agent cannot run Turns, empty if it can, and whether that is known: nobody may have looked at
// its newest spec.
func agentReadiness(v view) (checked bool, why string) {
	return agentReadinessOf(v.agent, agentKey(v.turn))
}

// agentReadinessOf is agentReadiness for an Agent of a name, nil if it does not exist.
func agentReadinessOf(a *v1alpha1.Agent, key client.ObjectKey) (checked bool, why string) {
	if a == nil {
		return true, fmt.Sprintf("Agent %q does not exist in namespace %q", key.Name, key.Namespace)
	}
	c := ready(a.Status.Conditions, a.Generation)
	switch {
	case c == nil:
		return false, fmt.Sprintf("Agent %q is not checked yet", key.Name)
	case c.Status != metav1.ConditionTrue:
		return true, fmt.Sprintf("Agent %q is not ready: %s", key.Name, c.Message)
	}
	return true, ""
}

// mayGoOn says whether a Turn may go on although its agent is not ready: if it was bound before, its journal may have the
// prompt, which no change of a profile alters. Its models must be there, and its profile be looked at, which is a moment.
func mayGoOn(v view) bool {
	if v.agent == nil || v.turn.Epoch() == 0 || lacksPrompt(v.turn) {
		return false
	}
	conditions := v.agent.Status.Conditions
	profile := meta.FindStatusCondition(conditions, v1alpha1.ConditionProfileResolved)
	return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionModelsResolved) && (profile == nil || profile.Reason != v1alpha1.ReasonProfileNotRendered)
}

// lacksPrompt says whether the executor that had the Turn last gave it back because no prompt could be made.
func lacksPrompt(t *v1alpha1.Turn) bool {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionPrepared)
	return c != nil && c.Reason == v1alpha1.TurnReasonNotPrepared
}

// whenConfigMapMissing makes a Turn wait for a ConfigMap that it names itself.
func whenConfigMapMissing(v view) (decision, bool) {
	if v.missing == "" {
		return decision{}, false
	}
	d := decision{action: wait, reason: v1alpha1.TurnReasonPending, message: v.missing, after: untilDeadline(v)}
	if v.recheck > 0 {
		d.after = min(d.after, v.recheck)
	}
	return d, true
}
