package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// holdRecheck is the time after which a queued Turn is reconciled again if its Agent has not been checked yet.
const holdRecheck = 5 * time.Second

// whenAgentNotReady makes a Turn wait for its Agent. There are two exceptions:
//
//  1. While a changed Agent is being checked, a queued Turn keeps its position in the queue.
//  2. A Turn that may already have its prompt continues.
func whenAgentNotReady(v snapshot) (decision, bool) {
	checked, why := agentReadiness(v)
	switch {
	case why == "", checked && mayContinue(v):
		return decision{}, false
	case !checked && isQueued(v.turn):
		// If the Agent becomes ready before the scheduler has deferred the Turn, no event wakes the Turn.
		return decision{action: hold, after: min(untilDeadline(v), holdRecheck)}, true
	}
	d := decision{action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, message: why, after: untilDeadline(v)}
	if v.agent == nil && waitsForReset(v.turn, v.now) { // without an Agent it is unknown which Budgets apply
		d.action = park // which keeps the time limit paused
		d.after = v.turn.Status.AwaitedBudget.RetryTime.Sub(v.now)
	}
	if v.refusedAgent != "" {
		d.wakeWithin(consentRecheck)
	}
	return d, true
}

// agentReadiness returns why the Agent cannot run Turns, or an empty string if it can. checked is false if the
// newest spec of the Agent has not been checked yet.
func agentReadiness(v snapshot) (checked bool, why string) {
	if v.refusedAgent != "" {
		return true, v.refusedAgent
	}
	return agentReadinessOf(v.agent, v.turn.AgentKey(), v.turn.Namespace)
}

// agentReadinessOf is like agentReadiness, for an Agent with this key and a Turn in a namespace. The Agent is nil if it
// does not exist. For a Turn in another namespace than the Agent's, the result does not quote the Agent's condition,
// which may contain names that only the Agent's namespace may know.
func agentReadinessOf(a *v1alpha1.Agent, key client.ObjectKey, turnNamespace string) (checked bool, why string) {
	if a == nil {
		return true, fmt.Sprintf("Agent %q does not exist in namespace %q", key.Name, key.Namespace)
	}
	name := key.Name
	if key.Namespace != turnNamespace {
		name = key.String()
	}
	c := ready(a.Status.Conditions, a.Generation)
	switch {
	case c == nil:
		return false, fmt.Sprintf("Agent %q is not checked yet", name)
	case c.Status != metav1.ConditionTrue && key.Namespace != turnNamespace:
		return true, fmt.Sprintf("Agent %q is not ready (%s)", name, c.Reason)
	case c.Status != metav1.ConditionTrue:
		return true, fmt.Sprintf("Agent %q is not ready: %s", name, c.Message)
	}
	return true, ""
}

// mayContinue reports whether a Turn may continue although its Agent is not ready. If the Turn was bound before, its
// journal may hold the prompt, and a change of the profile does not change that prompt. The Agent must have a usable
// model, and redaction rules that can be used. The Turn also waits while the Agent's profile is being rendered, which
// takes only a moment.
func mayContinue(v snapshot) bool {
	if v.agent == nil || v.turn.Epoch() == 0 || lacksPrompt(v.turn) {
		return false
	}
	conditions := v.agent.Status.Conditions
	if c := ready(conditions, v.agent.Generation); c != nil && c.Reason == v1alpha1.ReasonInvalidRedaction {
		return false
	}
	profile := meta.FindStatusCondition(conditions, v1alpha1.ConditionProfileResolved)
	return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionModelsResolved) &&
		(profile == nil || profile.Reason != v1alpha1.ReasonProfileNotRendered)
}

// lacksPrompt reports whether the last executor handed the Turn back because it could not prepare a prompt.
func lacksPrompt(t *v1alpha1.Turn) bool {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionPrepared)
	return c != nil && c.Reason == v1alpha1.TurnReasonNotPrepared
}

// whenConfigMapMissing makes a Turn wait for a ConfigMap that its own spec names.
func whenConfigMapMissing(v snapshot) (decision, bool) {
	if v.missing == "" {
		return decision{}, false
	}
	d := decision{action: wait, reason: v1alpha1.TurnReasonPending, message: v.missing, after: untilDeadline(v)}
	if v.recheck > 0 {
		d.after = min(d.after, v.recheck)
	}
	return d, true
}
