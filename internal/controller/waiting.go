package controller

import (
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// waitWarning is how long a Turn waits for one cause before an Event reports it. A Turn with a short starting
	// deadline gets its Event after half of that deadline.
	waitWarning = time.Minute
	// warningsOfNamespace is the maximum number of these Events in a namespace, for one cause and within warningWindow,
	// because thousands of Turns may wait for one Agent.
	warningsOfNamespace = 10
	// warningWindow is the period of warningsOfNamespace.
	warningWindow = 10 * time.Minute
)

// waitingTurns records the Turns that wait, except those that wait for people or sub-agents: since when each Turn
// waits, and whether an Event has reported the wait. The metrics count these Turns. The zero value is ready to use.
//
// A new leader does not know since when Turns have waited. So it measures their waits from its own start, and may
// repeat an Event that the previous leader has emitted.
type waitingTurns struct {
	mu       sync.Mutex
	turns    map[client.ObjectKey]waitingTurn
	counts   map[metrics.Wait]int
	warnings map[metrics.Wait]*warningBudget
}

type waitingTurn struct {
	uid    types.UID
	reason string
	// since is when the Turn was first seen to wait for that reason.
	since  time.Time
	warned bool
}

// warningBudget counts the Events for a cause since the start of a window.
type warningBudget struct {
	since   time.Time
	emitted int
}

// waitReason returns the reason why a Turn waits. ok is false if the Turn does not wait, is suspended, or waits for
// people or sub-agents.
func waitReason(t *v1alpha1.Turn) (reason string, ok bool) {
	if t.IsFinished() || t.BoundTo() != "" || !t.DeletionTimestamp.IsZero() {
		return "", false
	}
	switch reason := t.StateReason(); reason {
	case v1alpha1.TurnReasonPending, v1alpha1.TurnReasonWaitingForAgent, v1alpha1.TurnReasonWaitingForSession, v1alpha1.TurnReasonQueued,
		v1alpha1.TurnReasonWaitingForJournalSpace, v1alpha1.TurnReasonWaitingForBudget:
		return reason, true
	}
	return "", false
}

// observe records the current state of a Turn. patience is how long the Turn may wait for one cause before an Event
// reports the wait. warn reports whether to emit this Event, and last whether it is the last Event for its cause in
// this window. If warn is false, left is the time until observe must be called again; it is 0 if that is not necessary.
func (w *waitingTurns) observe(t *v1alpha1.Turn, patience time.Duration, now time.Time) (warn, last bool, left time.Duration) {
	key := client.ObjectKeyFromObject(t)
	reason, ok := waitReason(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		w.end(key, now)
		return false, false, 0
	}
	known, seen := w.turns[key]
	if !seen || known.uid != t.UID || known.reason != reason {
		w.end(key, now)
		known = waitingTurn{uid: t.UID, reason: reason, since: now}
		w.count(metrics.Wait{Namespace: t.Namespace, Reason: reason}, 1)
	}
	defer func() { w.put(key, known) }()
	if known.warned {
		return false, false, 0
	}
	if left = patience - now.Sub(known.since); left > 0 {
		return false, false, left
	}
	known.warned = true
	warn, last = w.takeWarning(metrics.Wait{Namespace: t.Namespace, Reason: reason}, now)
	return warn, last, 0
}

// end drops a Turn whose wait has ended, and records the length of the wait in the metrics.
func (w *waitingTurns) end(key client.ObjectKey, now time.Time) {
	if known, seen := w.turns[key]; seen {
		metrics.Waited(key.Namespace, known.reason, now.Sub(known.since))
		w.drop(key)
	}
}

// forget drops a deleted Turn.
func (w *waitingTurns) forget(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(key)
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
		w.count(metrics.Wait{Namespace: key.Namespace, Reason: known.reason}, -1)
	}
}

// count adds delta to the number of Turns that wait for a cause.
func (w *waitingTurns) count(cause metrics.Wait, delta int) {
	if w.counts == nil {
		w.counts = map[metrics.Wait]int{}
	}
	if w.counts[cause] += delta; w.counts[cause] == 0 {
		delete(w.counts, cause)
	}
}

// countsByCause returns the number of waiting Turns by cause.
func (w *waitingTurns) countsByCause() map[metrics.Wait]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts)
}

// takeWarning takes an Event from the budget of a cause, if one is left. It drops the budgets whose window is over.
func (w *waitingTurns) takeWarning(cause metrics.Wait, now time.Time) (granted, last bool) {
	for c, b := range w.warnings {
		if now.Sub(b.since) >= warningWindow {
			delete(w.warnings, c)
		}
	}
	b := w.warnings[cause]
	if b == nil {
		if w.warnings == nil {
			w.warnings = map[metrics.Wait]*warningBudget{}
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
	warn, last, left := r.waiting.observe(t, patience, r.Now())
	if left > 0 && (result.RequeueAfter == 0 || left < result.RequeueAfter) {
		result.RequeueAfter = left
	}
	if warn {
		message := fmt.Sprintf("the turn has waited for %s and is still %s: %s",
			r.Now().Sub(t.WaitingSince()).Round(time.Second), t.StateReason(),
			meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded).Message)
		if last {
			message = fmt.Sprintf("%d turns of this namespace have waited too long in state %s; no more of "+
				"these Events are emitted for %s. This turn: %s",
				warningsOfNamespace, t.StateReason(), warningWindow, message)
		}
		r.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventWaitingLong, "Wait", "%s", translate.Note(message))
	}
	return result, nil
}

func limitsOf(a *v1alpha1.Agent) *v1alpha1.Limits {
	if a == nil {
		return nil
	}
	return a.Spec.Limits
}
