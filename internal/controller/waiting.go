package controller

import (
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

const (
	// waitWarning is how long a Turn waits for one cause before an Event reports it. A Turn with a short starting
	// deadline gets its Event after half of that deadline, and a bound Turn with a short time limit after half of that.
	waitWarning = time.Minute
	// warningsOfNamespace is the maximum number of these Events in a namespace, for one cause and within warningWindow,
	// because thousands of Turns may wait for one Agent.
	warningsOfNamespace = 10
	// warningWindow is the period of warningsOfNamespace.
	warningWindow = 10 * time.Minute
)

// waitingTurns records the Turns that wait, except those that wait for people or sub-agents: since when each Turn
// waits, and whether an Event has reported the wait. The metrics count these Turns, except bound ones, which have a
// slot, and the Turns whose status the API server rejects. The zero value is ready to use.
//
// A new leader does not know since when Turns have waited. So it measures their waits from its own start, and may
// repeat an Event that the previous leader has emitted.
type waitingTurns struct {
	mu       sync.Mutex
	turns    map[client.ObjectKey]waitingTurn
	gaps     map[client.ObjectKey]agentGap // also of Turns that wait for people or sub-agents
	counts   map[metrics.Wait]int
	warnings map[waitCause]*warningBudget
	// rejections are the Turns of which the API server has accepted no status since it rejected one.
	rejections map[client.ObjectKey]rejection
}

// rejection records that the API server has rejected each status of a Turn since a time. warned is true if it has done
// so for waitWarning. An Event has then reported it, unless the namespace had no Event left.
type rejection struct {
	uid    types.UID
	since  time.Time
	warned bool
}

// waitCause is the namespace of a waiting Turn and the reason of its main condition.
type waitCause struct {
	metrics.Wait
	// bound is true if the Turn is bound to an executor, whose run waits for memory or for a ModelProvider.
	bound bool
}

type waitingTurn struct {
	uid   types.UID
	cause waitCause
	// since is when the Turn was first seen to wait for that cause, and steps is the number of its steps at that time.
	since  time.Time
	steps  int32
	warned bool
}

// agentGap records since when an unbound Turn has been seen without an Agent that it may use.
type agentGap struct {
	uid   types.UID
	agent client.ObjectKey
	since time.Time
}

// longWait is the result of observe.
type longWait struct {
	// warn reports whether to emit the Event, and last whether it is the last Event for its cause in this window.
	warn, last bool
	// since is when the Turn was first seen to wait for its cause.
	since time.Time
	// left is the time until observe must be called again. It is 0 if that is not necessary.
	left time.Duration
}

// warningBudget counts the Events for a cause since the start of a window.
type warningBudget struct {
	since   time.Time
	emitted int
}

// causeOf returns the cause for which a Turn waits. ok is false if the Turn does not wait, is suspended, or waits for
// people or sub-agents.
func causeOf(t *v1alpha1.Turn) (cause waitCause, ok bool) {
	if t.IsFinished() {
		return waitCause{}, false
	}
	cause = waitCause{Wait: metrics.Wait{Namespace: t.Namespace, Reason: t.StateReason()}, bound: t.BoundTo() != ""}
	if cause.bound {
		return cause, turnstatus.RunWaits(t)
	}
	switch cause.Reason {
	case v1alpha1.TurnReasonPending, v1alpha1.TurnReasonWaitingForAgent, v1alpha1.TurnReasonWaitingForSession, v1alpha1.TurnReasonQueued,
		v1alpha1.TurnReasonWaitingForJournalSpace, v1alpha1.TurnReasonWaitingForBudget:
		return cause, true
	}
	return waitCause{}, false
}

// stepsOf returns the number of steps in the status of a Turn.
func stepsOf(t *v1alpha1.Turn) int32 {
	if t.Status.Steps == nil {
		return 0
	}
	return t.Status.Steps.Count
}

// observe records the current state of a Turn. patience is how long the Turn may wait for one cause before an Event
// reports the wait. hasAgent reports whether there is an Agent that it may use. A bound Turn that has made a step since
// begins its wait anew: it is slow, but not stuck.
func (w *waitingTurns) observe(t *v1alpha1.Turn, hasAgent bool, patience time.Duration, now time.Time) longWait {
	key := client.ObjectKeyFromObject(t)
	cause, ok := causeOf(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observeAgent(t, hasAgent, now)
	if !ok {
		w.end(key, now)
		return longWait{}
	}
	known, seen := w.turns[key]
	if !seen || known.uid != t.UID || known.cause != cause {
		w.end(key, now)
		known = waitingTurn{uid: t.UID, cause: cause, since: now, steps: stepsOf(t)}
		w.count(cause, 1)
		metrics.Waits(key.Namespace)
	}
	if steps := stepsOf(t); cause.bound && !known.warned && steps != known.steps {
		known.since, known.steps = now, steps
	}
	defer func() { w.put(key, known) }()
	if known.warned {
		return longWait{}
	}
	if left := patience - now.Sub(known.since); left > 0 {
		return longWait{left: left}
	}
	known.warned = true
	warn, last := w.takeWarning(cause, now)
	return longWait{warn: warn, last: last, since: known.since}
}

// observeAgent records since when a Turn has had no Agent.
func (w *waitingTurns) observeAgent(t *v1alpha1.Turn, hasAgent bool, now time.Time) {
	key := client.ObjectKeyFromObject(t)
	if hasAgent || t.IsFinished() || t.BoundTo() != "" {
		delete(w.gaps, key)
		return
	}
	if known, seen := w.gaps[key]; seen && known.uid == t.UID {
		return
	}
	if w.gaps == nil {
		w.gaps = map[client.ObjectKey]agentGap{}
	}
	w.gaps[key] = agentGap{t.UID, t.AgentKey(), now}
}

// agentCreated notes that an Agent exists again. Turns that wait for people or sub-agents may not be reconciled now.
func (w *waitingTurns) agentCreated(agent client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.gaps, func(_ client.ObjectKey, g agentGap) bool { return g.agent == agent })
}

// withoutAgent returns how long an unbound Turn has been seen without an Agent that it may use.
func (w *waitingTurns) withoutAgent(t *v1alpha1.Turn, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, seen := w.gaps[client.ObjectKeyFromObject(t)]; seen && known.uid == t.UID {
		return now.Sub(known.since)
	}
	return 0
}

// end drops a Turn whose wait has ended, and records the length of the wait in the metrics.
func (w *waitingTurns) end(key client.ObjectKey, now time.Time) {
	if known, seen := w.turns[key]; seen {
		if !known.cause.bound {
			metrics.Waited(key.Namespace, known.cause.Reason, now.Sub(known.since))
		}
		w.drop(key)
	}
}

// forget drops a deleted Turn.
func (w *waitingTurns) forget(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gaps, key)
	delete(w.rejections, key)
	w.drop(key)
}

// rejected notes that the API server has rejected a status of a Turn. warn reports whether to emit an Event, and
// since is the time since which it has accepted none.
func (w *waitingTurns) rejected(t *v1alpha1.Turn, now time.Time) (warn bool, since time.Time) {
	key := client.ObjectKeyFromObject(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	known, seen := w.rejections[key]
	if !seen || known.uid != t.UID {
		known = rejection{uid: t.UID, since: now}
	}
	if !known.warned && now.Sub(known.since) >= waitWarning {
		known.warned = true
		warn, _ = w.takeWarning(waitCause{Wait: metrics.Wait{Namespace: t.Namespace, Reason: v1alpha1.EventStatusRejected}}, now)
	}
	if w.rejections == nil {
		w.rejections = map[client.ObjectKey]rejection{}
	}
	w.rejections[key] = known
	return warn, known.since
}

// accepted notes that the API server has accepted a status of a Turn.
func (w *waitingTurns) accepted(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.rejections, key)
}

func (w *waitingTurns) put(key client.ObjectKey, t waitingTurn) {
	if w.turns == nil {
		w.turns = map[client.ObjectKey]waitingTurn{}
	}
	w.turns[key] = t
}

func (w *waitingTurns) drop(key client.ObjectKey) {
	if known, seen := w.turns[key]; seen {
		delete(w.turns, key)
		w.count(known.cause, -1)
	}
}

// count adds delta to the number of Turns that wait for a cause.
func (w *waitingTurns) count(cause waitCause, delta int) {
	if cause.bound {
		return
	}
	if w.counts == nil {
		w.counts = map[metrics.Wait]int{}
	}
	if w.counts[cause.Wait] += delta; w.counts[cause.Wait] == 0 {
		delete(w.counts, cause.Wait)
	}
}

// countsByCause returns the number of waiting Turns by cause. A Turn that cannot have a condition with the cause of its
// wait, because the API server has rejected each status of it for waitWarning, counts under EventStatusRejected.
func (w *waitingTurns) countsByCause() map[metrics.Wait]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := maps.Clone(w.counts)
	for key, r := range w.rejections {
		// Bound Turns are in turns, too, but count does not count them.
		if known, waits := w.turns[key]; waits && !known.cause.bound || !r.warned {
			continue
		}
		if counts == nil {
			counts = map[metrics.Wait]int{}
		}
		counts[metrics.Wait{Namespace: key.Namespace, Reason: v1alpha1.EventStatusRejected}]++
	}
	return counts
}

// takeWarning takes an Event from the budget of a cause, if one is left. It drops the budgets whose window is over.
func (w *waitingTurns) takeWarning(cause waitCause, now time.Time) (granted, last bool) {
	for c, b := range w.warnings {
		if now.Sub(b.since) >= warningWindow {
			delete(w.warnings, c)
		}
	}
	b := w.warnings[cause]
	if b == nil {
		if w.warnings == nil {
			w.warnings = map[waitCause]*warningBudget{}
		}
		b = &warningBudget{since: now}
		w.warnings[cause] = b
	}
	if b.emitted >= warningsOfNamespace {
		return false, false
	}
	b.emitted++
	return true, b.emitted == warningsOfNamespace
}

// warnLongWait emits an Event for a Turn that has waited long, once for each cause. If the Turn has not waited long
// enough yet, it shortens the requeue so that the Turn is reconciled at that time. result and err are the results of
// the reconciliation that has just ended.
func (r *TurnReconciler) warnLongWait(t *v1alpha1.Turn, agent *v1alpha1.Agent, result ctrl.Result, err error) (ctrl.Result, error) {
	if err != nil {
		return result, err
	}
	patience := min(waitWarning, v1alpha1.StartingDeadline(t.Spec.Limits, limitsOf(agent))/2)
	if t.BoundTo() != "" {
		patience = min(waitWarning, v1alpha1.Timeout(t.Spec.Limits, limitsOf(agent))/2)
	}
	long := r.waiting.observe(t, agent != nil, patience, r.Now())
	if long.left > 0 && (result.RequeueAfter == 0 || long.left < result.RequeueAfter) {
		result.RequeueAfter = long.left
	}
	if long.warn {
		duration, state := r.Now().Sub(long.since), "is still "+t.StateReason()
		if t.BoundTo() != "" {
			state = "makes no progress"
		} else if t.Epoch() == 0 { // a Turn that has run may have waited for people, too, which is no fault
			duration = waitForStart(t, r.Now(), r.ServerClock())
		}
		message := fmt.Sprintf("the turn has waited for %s and %s: %s", duration.Round(time.Second), state,
			meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded).Message)
		if long.last {
			message = fmt.Sprintf("%d turns of this namespace have waited too long in state %s; no more of "+
				"these Events are emitted for %s. This turn: %s",
				warningsOfNamespace, t.StateReason(), warningWindow, message)
		}
		r.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventWaitingLong, "Wait", "%s", message)
	}
	return result, nil
}

// warnRejected emits an Event for a Turn if the API server has rejected each status of it for waitWarning, once. Such a
// Turn neither starts nor ends, and its status cannot say so. A conflict is no rejection, and neither is an outage of
// the API server: afterwards it accepts the status.
func (r *TurnReconciler) warnRejected(t *v1alpha1.Turn, err error) {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || !writeerror.IsRefused(err) {
		return
	}
	now := r.Now()
	if warn, since := r.waiting.rejected(t, now); warn {
		r.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventStatusRejected, "Wait", "%s", fmt.Sprintf(
			"the API server has accepted no status of the turn for %s, so it neither starts nor ends. %s: %s",
			now.Sub(since).Round(time.Second), turnstatus.RejectionRemedy(err), err))
	}
}

func limitsOf(a *v1alpha1.Agent) *v1alpha1.Limits {
	if a == nil {
		return nil
	}
	return a.Spec.Limits
}
