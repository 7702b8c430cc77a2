package controller

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// maxSpecBytes bounds the JSON of a spec; the bounds of its fields allow more in all. kubectl apply keeps a second copy of
// the spec in an annotation, so that twice this and the largest status keep a Turn under 256 KiB.
const maxSpecBytes = 96 << 10

// action is what to do about a Turn.
type action string

const (
	// nothing: somebody else acts, or there is nothing left to do.
	nothing action = "nothing"
	// remove: delete the Turn.
	remove action = "remove"
	// observe: write down that the newest spec of a finished Turn was seen.
	observe action = "observe"
	// end: the Turn has ended without a run.
	end action = "end"
	// wait: write down what the Turn waits for.
	wait action = "wait"
	// admit: find a free place and bind the Turn.
	admit action = "admit"
)

// decision is an action and what to say of it.
type decision struct {
	action          action
	reason, message string
	// after is when to look again, 0 if an event will tell.
	after time.Duration
}

// view is all that a decision about a Turn is made from.
type view struct {
	turn *v1alpha1.Turn
	// agent of the Turn, nil if there is none.
	agent *v1alpha1.Agent
	// executorLives is whether the executor that the Turn is bound to holds its Lease.
	executorLives bool
	now           time.Time
}

// policy is one rule: it decides, or leaves the decision to the next one.
type policy func(view) (decision, bool)

// policies in their order: the ends first, the work last.
var policies = []policy{
	whenFinished,
	whenBound,
	whenCancelled,
	whenSuspended,
	whenSpecTooLarge,
	whenStartingDeadlineExceeded,
	whenDeadlineExceeded,
	whenAgentNotReady,
}

// decide says what to do about a Turn. It is pure.
func decide(v view) decision {
	for _, p := range policies {
		if d, ok := p(v); ok {
			return d
		}
	}
	return decision{action: admit, after: untilStartingDeadline(v)}
}

// whenFinished keeps a finished Turn until its time to live is over.
func whenFinished(v view) (decision, bool) {
	if !v.turn.IsFinished() {
		return decision{}, false
	}
	d := decision{action: nothing}
	if expiry, ok := v.turn.ExpiryTime(); ok {
		if !v.now.Before(expiry) {
			return decision{action: remove}, true
		}
		d.after = expiry.Sub(v.now)
	}
	if v.turn.Status.ObservedGeneration != v.turn.Generation {
		d.action = observe
	}
	return d, true
}

// whenBound leaves a Turn to its executor, as long as that lives.
func whenBound(v view) (decision, bool) {
	if v.turn.BoundTo() == "" || !v.executorLives {
		return decision{}, false
	}
	return decision{action: nothing}, true
}

func whenCancelled(v view) (decision, bool) {
	if v.turn.Spec.DesiredState != v1alpha1.DesiredStateCancelled {
		return decision{}, false
	}
	return decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"}, true
}

func whenSuspended(v view) (decision, bool) {
	if v.turn.Spec.DesiredState != v1alpha1.DesiredStateSuspended {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonSuspended,
		message: "the turn is suspended; set desiredState to Active to go on",
	}, true
}

func whenSpecTooLarge(v view) (decision, bool) {
	spec, err := json.Marshal(v.turn.Spec)
	if err != nil || len(spec) <= maxSpecBytes {
		return decision{}, false // what came from the API server marshals
	}
	return decision{action: end, reason: v1alpha1.TurnReasonInvalidSpec, message: fmt.Sprintf(
		"spec is %d bytes of JSON and must be at most %d: shorten message, history or context.facts", len(spec), maxSpecBytes)}, true
}

// whenStartingDeadlineExceeded ends a Turn that has waited too long for its first start.
func whenStartingDeadlineExceeded(v view) (decision, bool) {
	if v.turn.Status.StartTime != nil || untilStartingDeadline(v) > 0 {
		return decision{}, false
	}
	message := fmt.Sprintf("the turn did not start within %s (limits.startingDeadlineSeconds)", startingDeadline(v))
	if c := v.turn.StateReason(); c != "" {
		message += "; it was " + c
	}
	if _, why := agentReadiness(v); why != "" {
		message += ": " + why
	}
	return decision{action: end, reason: v1alpha1.TurnReasonDeadlineExceeded, message: message}, true
}

// whenDeadlineExceeded ends a Turn whose time ran out while no executor had it. A Turn without an agent has the default.
func whenDeadlineExceeded(v view) (decision, bool) {
	if v.turn.Status.StartTime == nil {
		return decision{}, false
	}
	limit := v1alpha1.Timeout(v.turn.Spec.Limits, agentLimits(v))
	// An executor that takes the Turn up late still finds an answer that was paid for in the journal, so it gets as long
	// again before the controller gives the Turn up.
	if v.now.Before(v.turn.Status.StartTime.Add(2 * limit)) {
		return decision{}, false
	}
	return decision{action: end, reason: v1alpha1.TurnReasonDeadlineExceeded, message: fmt.Sprintf(
		"the turn reached its time limit of %s while it waited for an executor", limit)}, true
}

func whenAgentNotReady(v view) (decision, bool) {
	if ok, why := agentReadiness(v); !ok {
		return decision{
			action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, message: why, after: untilStartingDeadline(v),
		}, true
	}
	return decision{}, false
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

func agentLimits(v view) *v1alpha1.Limits {
	if v.agent == nil {
		return nil
	}
	return v.agent.Spec.Limits
}

func startingDeadline(v view) time.Duration {
	return v1alpha1.StartingDeadline(v.turn.Spec.Limits, agentLimits(v))
}

// untilStartingDeadline is how long the Turn may still wait for its first start; 0 for one that has started before.
func untilStartingDeadline(v view) time.Duration {
	if v.turn.Status.StartTime != nil {
		return 0
	}
	return v.turn.WaitingSince().Add(startingDeadline(v)).Sub(v.now)
}
