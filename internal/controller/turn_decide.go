package controller

import (
	"cmp"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/translate"
)

// action is what to do about a Turn.
type action string

const (
	// nothing: there is nothing left to do.
	nothing action = "nothing"
	// follow: the executor that the Turn is bound to acts.
	follow action = "follow"
	// hold: the Turn cannot go on at present, and is looked at again soon. It keeps its position in the queue.
	hold action = "hold"
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
	// park: the Turn goes on waiting for people or for the Turns of sub-agents.
	park action = "park"
	// gather: ask for the ends of the Turns of sub-agents, which come before that of the Turn.
	gather action = "gather"
	// cancel: ask for the end of the Turn.
	cancel action = "cancel"
	// settle: bind the Turn to an executor to be ended there, from its journal; end it where there is no executor.
	settle action = "settle"
)

// slotUse is what an action means for the slot of a Turn, and for its wait for one.
type slotUse int

const (
	// keepSlot: nothing changes.
	keepSlot slotUse = iota
	// releaseSlot: the Turn needs no slot now. One that it has goes to the next.
	releaseSlot
	// deferSlot: the Turn waits for a slot and cannot take one at present. One that is reserved for it goes to the next.
	deferSlot
	// confirmSlot: the Turn has the slot of the executor that it is bound to.
	confirmSlot
	// reserveSlot: the action asks for a slot, and says itself what becomes of it.
	reserveSlot
)

// slot says what an action means for the slot of the Turn.
func (a action) slot() slotUse {
	switch a {
	case nothing, remove, observe, end, wait, park, gather:
		return releaseSlot
	case follow:
		return confirmSlot
	case hold:
		return deferSlot
	case admit, settle:
		return reserveSlot
	case cancel: // the change of the spec brings the Turn back
	}
	return keepSlot
}

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
	// agent of the Turn, its limits within the ceiling, nil if there is none; ceiling is nil for none.
	agent   *v1alpha1.Agent
	ceiling *v1alpha1.Limits
	// executorLives is whether the executor that the Turn is bound to holds its Lease.
	executorLives bool
	// missing says which ConfigMap the Turn waits for, empty if there is none; recheck is when to look for it again, 0 if an
	// event will tell.
	missing string
	recheck time.Duration
	// mates are unfinished Turns of the Turn's Session, with the one just ahead of it if there is one. They are the cache's.
	mates []v1alpha1.Turn
	// waits is what has become of what a parked Turn waits for.
	waits waits
	// abandoned is true for the Turn of a sub-agent for which nobody waits any more.
	abandoned bool
	// session of a Turn that is about to enter it, nil before.
	session *v1alpha1.Session
	// journals is what the quotas of the journals mean for the Turn's namespace.
	journals quota.Verdict
	now      time.Time
}

// policy is one rule: it decides, or leaves the decision to the next one.
type policy func(view) (decision, bool)

// policies in their order: the ends first, the work last.
var policies = []policy{
	whenFinished,
	whenAbandoned,
	whenBound,
	whenSubAgentsWork,
	whenCancelled,
	whenSuspended,
	whenSpecTooLarge,
	whenStartingDeadlineExceeded,
	whenDeadlineExceeded,
	whenAwaiting,
	whenSessionBusy,
	whenAgentNotReady,
	whenConfigMapMissing,
	whenJournalsFull,
}

// decide says what to do about a Turn. It is pure.
func decide(v view) decision {
	for _, p := range policies {
		if d, ok := p(v); ok {
			return d
		}
	}
	return decision{action: admit, after: untilDeadline(v)}
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
	return decision{action: follow}, true
}

func whenCancelled(v view) (decision, bool) {
	if v.turn.Spec.DesiredState != v1alpha1.DesiredStateCancelled {
		return decision{}, false
	}
	message := "the turn was cancelled before it ran"
	if v.turn.Epoch() > 0 {
		message = "the turn was cancelled while it was not running"
	}
	return decision{action: ending(v), reason: v1alpha1.TurnReasonCancelled, message: message}, true
}

// ending is how to end a Turn: one that has run has a journal, which knows what was asked and paid for, whatever has become
// of its agent, its profile and its models. Nothing was asked without a prompt.
func ending(v view) action {
	if v.turn.Epoch() > 0 && !lacksPrompt(v.turn) {
		return settle
	}
	return end
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
	err := checkSize(v.turn)
	if err == nil {
		return decision{}, false
	}
	return decision{action: end, reason: v1alpha1.TurnReasonInvalidSpec, message: err.Error()}, true
}

// whenStartingDeadlineExceeded ends a Turn that has waited too long for its start, the first one or the one after a suspension.
func whenStartingDeadlineExceeded(v view) (decision, bool) {
	if v.turn.Status.StartTime != nil || untilDeadline(v) > 0 {
		return decision{}, false
	}
	limit := v1alpha1.StartingDeadline(v.turn.Spec.Limits, agentLimits(v))
	return decision{action: ending(v), reason: v1alpha1.TurnReasonDeadlineExceeded, message: fmt.Sprintf(
		"the turn did not start within %s (limits.startingDeadlineSeconds)%s", limit, waited(v))}, true
}

// waited says what a Turn waited for.
func waited(v view) string {
	message := ""
	if c := v.turn.StateReason(); c != "" {
		message = "; it was " + c
	}
	_, why := agentReadiness(v)
	if why = cmp.Or(sessionBusy(v), why, v.missing); why != "" {
		message += ": " + why
	}
	return message
}

// whenDeadlineExceeded ends a Turn whose time ran out while no executor had it. A Turn without an agent has the default.
func whenDeadlineExceeded(v view) (decision, bool) {
	if v.turn.Status.StartTime == nil || untilDeadline(v) > 0 {
		return decision{}, false
	}
	limit := v1alpha1.Timeout(v.turn.Spec.Limits, agentLimits(v))
	return decision{action: ending(v), reason: v1alpha1.TurnReasonDeadlineExceeded, message: fmt.Sprintf(
		"the turn reached its time limit of %s while no executor ran it%s", limit, waited(v))}, true
}

func agentLimits(v view) *v1alpha1.Limits {
	if v.agent == nil {
		return translate.Bounded(&v1alpha1.Agent{}, v.turn, v.ceiling).Spec.Limits
	}
	return v.agent.Spec.Limits // the view has it within the ceiling
}

// untilDeadline is how long the Turn may still be without an executor: until it starts, or goes on.
func untilDeadline(v view) time.Duration {
	if v.turn.Status.StartTime != nil {
		return translate.Left(v.turn, v1alpha1.Timeout(v.turn.Spec.Limits, agentLimits(v)), v.now)
	}
	limit := v1alpha1.StartingDeadline(v.turn.Spec.Limits, agentLimits(v))
	// Times of objects are cut to whole seconds; a Turn must not be ended earlier than it asked for.
	since := v.turn.WaitingSince().Add(time.Second)
	if v.turn.StateReason() == v1alpha1.TurnReasonSuspended {
		since = v.now // its suspension ends with this look at it
	}
	return min(since.Add(limit).Sub(v.now), limit+time.Second)
}

// untilGivenUp is how long a Turn whose time is over still waits for an executor: as long again as its time limit, or its starting
// deadline, because the journal may hold an answer that was paid for. A Turn that never ran has no journal.
func (v view) untilGivenUp() time.Duration {
	switch {
	case v.turn.Epoch() == 0:
		return 0
	case v.turn.Status.StartTime == nil:
		return v1alpha1.StartingDeadline(v.turn.Spec.Limits, agentLimits(v)) + untilDeadline(v)
	}
	return v1alpha1.Timeout(v.turn.Spec.Limits, agentLimits(v)) + untilDeadline(v)
}
