package controller

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/budgets"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// action is the next step of the reconciler for a Turn.
type action string

const (
	// nothing: there is nothing to do.
	nothing action = "nothing"
	// follow: the Turn is bound, so leave it to its executor.
	follow action = "follow"
	// hold: the Turn cannot continue now, but keeps its position in the queue. Reconcile it again soon.
	hold action = "hold"
	// queue: write to the status why the Turn waits for a slot.
	queue action = "queue"
	// stay: leave the status unchanged. Either it already says that the Turn waits for a slot, or the outcome of the
	// write that binds the Turn is unknown.
	stay action = "stay"
	// remove: delete the Turn.
	remove action = "remove"
	// observe: write status.observedGeneration of a finished Turn whose spec has changed.
	observe action = "observe"
	// end: end the Turn without a run.
	end action = "end"
	// wait: write to the status why the Turn waits, if it waits for anything other than a slot.
	wait action = "wait"
	// schedule: find a free slot and bind the Turn.
	schedule action = "schedule"
	// park: the Turn still waits for people, for the Turns of sub-agents or for the reset of a Budget.
	park action = "park"
	// cancelSubAgents: cancel the Turns of sub-agents, which must end before the Turn does.
	cancelSubAgents action = "cancelSubAgents"
	// cancel: set the Turn's desiredState to Cancelled, because no parent Turn waits for it any more.
	cancel action = "cancel"
	// endFromJournal: bind the Turn to an executor that only writes the Turn's end, with the usage and the result from
	// the journal, and asks no model. If there is no executor, end the Turn without one.
	endFromJournal action = "endFromJournal"
)

// slotUse is the effect of an action on the slot of a Turn, and on its position in the queue for slots.
type slotUse int

const (
	// keepSlot: nothing changes.
	keepSlot slotUse = iota
	// releaseSlot: the Turn needs no slot now. If it has one, the slot goes to the next Turn.
	releaseSlot
	// deferSlot: the Turn waits for a slot and cannot take one at present. If a slot is reserved for it, the slot
	// goes to the next Turn.
	deferSlot
	// confirmSlot: the Turn has the slot of the executor that it is bound to.
	confirmSlot
	// reserveSlot: the Turn needs a slot. assign requests it and returns another action.
	reserveSlot
)

// slot returns the effect of an action on the slot of the Turn.
func (a action) slot() slotUse {
	switch a {
	case nothing, remove, observe, end, wait, park, cancelSubAgents:
		return releaseSlot
	case follow:
		return confirmSlot
	case hold:
		return deferSlot
	case schedule, endFromJournal:
		return reserveSlot
	case queue, stay, cancel: // after cancel, the change of the spec enqueues the Turn
	}
	return keepSlot
}

// decision is an action, with the reason and the message that the status gets.
type decision struct {
	action          action
	reason, message string
	// after is the time until the next reconciliation of the Turn; 0 if an event will start it.
	after time.Duration
}

// snapshot holds all facts that a decision about a Turn depends on.
type snapshot struct {
	turn *v1alpha1.Turn
	// agent is the Agent of the Turn, with its limits within the ceiling; nil if it does not exist. ceiling is nil
	// if there is none.
	agent   *v1alpha1.Agent
	ceiling *v1alpha1.Limits
	// refusedAgent says why the Agent of another namespace may not be used. If refusedAgent is not empty, agent is nil.
	refusedAgent string
	// withoutAgent is how long the Turn has been seen to wait while agent was nil. It is 0 if agent is not nil.
	withoutAgent time.Duration
	// executorAlive reports whether the executor that the Turn is bound to may still be running.
	executorAlive bool
	// startupLeft is how long executors may still need to appear after this process began to lead.
	startupLeft time.Duration
	// missing says which ConfigMap the Turn waits for; it is empty if none is missing. recheck is the time until the
	// reconciler looks for the ConfigMap again; it is 0 if an event will report the ConfigMap.
	missing string
	recheck time.Duration
	// refused says why the Turn's attachments cannot be used. It is empty if they can be used.
	refused string
	// ahead is the Turn directly ahead of this one in its Session; nil if there is none. It belongs to the cache and
	// must not be changed.
	ahead *v1alpha1.Turn
	// awaited is the progress of everything that a parked Turn waits for.
	awaited waitProgress
	// orphaned is true for the Turn of a sub-agent if no parent Turn waits for it any more.
	orphaned bool
	// session is the Session that the Turn is about to enter. It is nil until all other policies let the Turn run.
	session *v1alpha1.Session
	// journals is the effect of the journal quotas on the Turn's namespace.
	journals quota.Verdict
	// budgets is the effect of the Budgets on the Turn.
	budgets budgets.Verdict
	// now is the time of Capstan, and server the time by the API server's clock as it is now: see age.
	now, server time.Time
}

// policy is one rule. It returns a decision, or false to leave the decision to the next policy.
type policy func(snapshot) (decision, bool)

// policies holds the policies in the order in which decide asks them. If no policy makes a decision, the Turn is
// scheduled.
var policies = []policy{
	whenFinished,
	whenOrphaned,
	whenBound,
	whenSubAgentsRunning,
	whenCancelled,
	whenSuspended,
	whenTooLarge,
	whenForeignAgentUncalled,
	whenStartingDeadlineExceeded,
	whenDeadlineExceeded,
	whenParked,
	whenEpochsUsedUp,
	whenSessionBusy,
	whenParkedForBudget,
	whenAgentNotReady,
	whenAttachmentsRefused,
	whenConfigMapMissing,
	whenBudgetExceeded,
	whenJournalsFull,
}

// decide returns the decision of the first policy that makes one. It has no side effects.
func decide(v snapshot) decision {
	for _, p := range policies {
		if d, ok := p(v); ok {
			return d
		}
	}
	return decision{action: schedule, after: untilDeadline(v)}
}

// whenFinished keeps a finished Turn until its time to live is over. It does nothing about a Turn that was deleted and
// that only a finalizer keeps.
func whenFinished(v snapshot) (decision, bool) {
	if !v.turn.IsFinished() {
		return decision{}, false
	}
	d := decision{action: nothing}
	if !v.turn.DeletionTimestamp.IsZero() {
		return d, true
	}
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

// whenBound leaves a Turn to its executor as long as the executor is alive.
func whenBound(v snapshot) (decision, bool) {
	return decision{action: follow}, v.isRunning()
}

// isRunning reports whether the Turn is bound to an executor that may still be running.
func (v snapshot) isRunning() bool { return v.turn.BoundTo() != "" && v.executorAlive }

// whenCancelled ends a cancelled Turn that is not running. A Turn that was deleted, but that a finalizer keeps, ends in
// the same way, so that nothing waits for it: neither its parent nor the next Turn of its Session.
func whenCancelled(v snapshot) (decision, bool) {
	if !v.turn.IsCancelled() {
		return decision{}, false
	}
	how, when := "cancelled", "before it ran"
	if !v.turn.DeletionTimestamp.IsZero() {
		how = "deleted"
	}
	if v.turn.Epoch() > 0 {
		when = "while it was not running"
	}
	message := fmt.Sprintf("the turn was %s %s", how, when)
	return decision{action: endAction(v), reason: v1alpha1.TurnReasonCancelled, message: message}, true
}

// endAction returns the action that ends a Turn. If the Turn has run, its journal holds all requests and their cost,
// even if its Agent, profile or models no longer exist. If the Turn has no prompt yet, it has sent no requests. A Turn
// without a next epoch cannot be bound to an executor; the rest of its usage is then taken from its journal later.
func endAction(v snapshot) action {
	if v.turn.Epoch() > 0 && !lacksPrompt(v.turn) && !v.turn.EpochsUsedUp() {
		return endFromJournal
	}
	return end
}

func whenSuspended(v snapshot) (decision, bool) {
	if v.turn.Spec.DesiredState != v1alpha1.DesiredStateSuspended {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonSuspended,
		message: "the turn is suspended; set desiredState to Active to continue",
	}, true
}

// whenTooLarge ends a Turn that is too large for its result to fit into the object.
func whenTooLarge(v snapshot) (decision, bool) {
	err := checkSize(v.turn)
	if err == nil {
		return decision{}, false
	}
	return decision{action: end, reason: v1alpha1.TurnReasonInvalidSpec, message: err.Error()}, true
}

// whenForeignAgentUncalled ends a Turn whose Agent is in another namespace, unless a Turn has called this Agent as a
// sub-agent. The schema and the policy for requesters already refuse most of these Turns. A Turn that has run before
// gets no executor for its end: the executor, which only ends Turns that were cancelled or are out of time, would
// continue it, and no limit on slots applies to such a binding.
func whenForeignAgentUncalled(v snapshot) (decision, bool) {
	if _, called := translate.Parent(v.turn); called || !v.turn.IsOfForeignAgent() {
		return decision{}, false
	}
	return decision{
		action: end, reason: v1alpha1.TurnReasonInvalidSpec,
		message: "spec.agentRef.namespace must be absent: only the Turn of a sub-agent may have an Agent of another namespace",
	}, true
}

// whenEpochsUsedUp ends a Turn that cannot be bound again. Only a person who edits the status makes a Turn reach the
// highest epoch. Without this end, the API server would refuse each binding, and the Turn would never end.
func whenEpochsUsedUp(v snapshot) (decision, bool) {
	if !v.turn.EpochsUsedUp() {
		return decision{}, false
	}
	return decision{action: end, reason: v1alpha1.TurnReasonInterrupted, message: fmt.Sprintf(
		"no executor can take the turn again, because status.executor.epoch has its highest value (%d), which only an edit of "+
			"the status can set: create a new Turn", int64(v1alpha1.MaxEpoch))}, true
}

// whenStartingDeadlineExceeded ends a Turn that has waited too long for its start: its first start, or the start
// after a suspension or after a wait for a Budget.
func whenStartingDeadlineExceeded(v snapshot) (decision, bool) {
	if v.turn.Status.StartTime != nil || untilDeadline(v) > 0 {
		return decision{}, false
	}
	limit := v1alpha1.StartingDeadline(v.turn.Spec.Limits, agentLimits(v))
	return decision{action: endAction(v), reason: v1alpha1.TurnReasonDeadlineExceeded, message: fmt.Sprintf(
		"the turn did not start within %s (limits.startingDeadlineSeconds)%s", limit, waitDescription(v))}, true
}

// waitDescription returns what a Turn was waiting for, as the end of a message. The condition Succeeded has the last
// known cause, which the end of the Turn replaces. The message of a suspension is no cause.
func waitDescription(v snapshot) string {
	message, why := "", ""
	if c := meta.FindStatusCondition(v.turn.Status.Conditions, v1alpha1.ConditionSucceeded); c != nil && c.Reason != "" {
		message = "; it was " + c.Reason
		if c.Reason != v1alpha1.TurnReasonSuspended {
			why = c.Message
		}
	}
	_, notReady := agentReadiness(v)
	if why = cmp.Or(why, sessionBusyReason(v), notReady, v.missing); why != "" {
		message += ": " + why
	}
	return message
}

// whenDeadlineExceeded ends a Turn whose time ran out while it was not bound.
func whenDeadlineExceeded(v snapshot) (decision, bool) {
	if v.turn.Status.StartTime == nil || untilDeadline(v) > 0 {
		return decision{}, false
	}
	limit := v1alpha1.Timeout(v.turn.Spec.Limits, agentLimits(v))
	return decision{action: endAction(v), reason: v1alpha1.TurnReasonDeadlineExceeded, message: fmt.Sprintf(
		"the turn reached its time limit of %s while no executor ran it%s", limit, waitDescription(v))}, true
}

func agentLimits(v snapshot) *v1alpha1.Limits {
	if v.agent == nil {
		return translate.WithinCeiling(&v1alpha1.Agent{}, v.turn, v.ceiling).Spec.Limits
	}
	return v.agent.Spec.Limits // snapshot has bounded them by the ceiling
}

// untilDeadline returns how long the Turn may still wait for an executor: to start, or to continue if it has started.
//
// Without an Agent the default limits apply, but they count from the time at which the Turn was first seen without it.
// Otherwise an Agent that is deleted and created again would end all Turns that have waited longer than the defaults,
// although its own limits allow it.
func untilDeadline(v snapshot) time.Duration {
	own := cmp.Or(v.turn.Spec.Limits, &v1alpha1.Limits{})
	if v.turn.Status.StartTime != nil {
		limit := v1alpha1.Timeout(own, agentLimits(v))
		return v.leftWithoutAgent(turnstatus.TimeLeft(v.turn, limit, v.clock()), limit, own.TimeoutSeconds)
	}
	limit := v1alpha1.StartingDeadline(own, agentLimits(v))
	left := limit
	if v.turn.StateReason() != v1alpha1.TurnReasonSuspended { // otherwise this reconciliation ends its suspension
		// Object times are truncated to whole seconds; a Turn must not end earlier than its limit.
		left += time.Second - max(0, waitForStart(v.turn, v.now, v.server))
	}
	return v.leftWithoutAgent(left, limit, own.StartingDeadlineSeconds)
}

// leftWithoutAgent returns the time that is left of a limit: left, or more if there is no Agent. own is the limit that
// the Turn itself sets, or nil.
func (v snapshot) leftWithoutAgent(left, limit time.Duration, own *int32) time.Duration {
	if v.agent != nil || own != nil {
		return left
	}
	return max(left, limit-v.withoutAgent)
}

// executorGrace returns how long a Turn whose time is over still waits for an executor, because its journal may hold an
// answer that was paid for. In total, the Turn waits as long as its time limit, or its starting deadline if it has not
// started. It waits longer if this process has just begun to lead: the other time may have passed while no process ran.
// A Turn that never ran has no journal, and does not wait.
func (v snapshot) executorGrace() time.Duration {
	if v.turn.Epoch() == 0 {
		return 0
	}
	limit := v1alpha1.Timeout(v.turn.Spec.Limits, agentLimits(v))
	if v.turn.Status.StartTime == nil {
		limit = v1alpha1.StartingDeadline(v.turn.Spec.Limits, agentLimits(v))
	}
	return max(limit+untilDeadline(v), v.startupLeft)
}
