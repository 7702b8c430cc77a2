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
	// waitWarning is for how long a Turn waits for one cause before an Event says so. A Turn with a short starting deadline has its
	// Event after half of that.
	waitWarning = time.Minute
	// warningsOfNamespace bounds these Events: thousands of Turns may wait for one Agent.
	warningsOfNamespace = 10
	// warningWindow is the time in which a namespace has that many of them for one cause.
	warningWindow = 10 * time.Minute
)

// waitingTurns are the Turns that wait for something but people and sub-agents: since when, and whether an Event has said so. They count in
// the metrics. The zero value has none.
//
// A leader that takes over knows no such Turn: it waits as long as its predecessor did before it warns, and may warn once more.
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

// warningBudget is how many Events were emitted for a cause since a moment.
type warningBudget struct {
	since   time.Time
	emitted int
}

// waitsFor returns why a Turn waits, if a wait for that is worth a warning.
func waitsFor(t *v1alpha1.Turn) (reason string, ok bool) {
	if t.IsFinished() || t.BoundTo() != "" || !t.DeletionTimestamp.IsZero() {
		return "", false
	}
	switch reason := t.StateReason(); reason {
	case v1alpha1.TurnReasonPending, v1alpha1.TurnReasonWaitingForAgent, v1alpha1.TurnReasonWaitingForSession, v1alpha1.TurnReasonQueued,
		v1alpha1.TurnReasonWaitingForJournalSpace:
		return reason, true
	}
	return "", false
}

// see notes a Turn as it is now. It reports whether an Event is to say that the Turn waits, and whether that is the last one for its
// cause for a while; else left is when to look again, 0 if there is no need to.
func (w *waitingTurns) see(t *v1alpha1.Turn, patience time.Duration, now time.Time) (warn, last bool, left time.Duration) {
	key := client.ObjectKeyFromObject(t)
	reason, ok := waitsFor(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		w.drop(key)
		return false, false, 0
	}
	known, seen := w.turns[key]
	if !seen || known.uid != t.UID || known.reason != reason {
		w.drop(key)
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
	warn, last = w.take(metrics.Wait{Namespace: t.Namespace, Reason: reason}, now)
	return warn, last, 0
}

// forget notes that a Turn is gone.
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

// count adds to the number of Turns that wait for a cause.
func (w *waitingTurns) count(cause metrics.Wait, by int) {
	if w.counts == nil {
		w.counts = map[metrics.Wait]int{}
	}
	if w.counts[cause] += by; w.counts[cause] == 0 {
		delete(w.counts, cause)
	}
}

// counted returns how many Turns wait, by cause.
func (w *waitingTurns) counted() map[metrics.Wait]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts)
}

// take takes an Event from the budget of a cause, if there is one left. Budgets whose time is over are dropped.
func (w *waitingTurns) take(cause metrics.Wait, now time.Time) (granted, last bool) {
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

// noteWait emits the Event of a Turn that has waited for long, once for each cause, and sees to it that the Turn is looked at when that time
// has come. result and err are those of the look at the Turn that has just ended.
func (r *TurnReconciler) noteWait(t *v1alpha1.Turn, agent *v1alpha1.Agent, result ctrl.Result, err error) (ctrl.Result, error) {
	if err != nil {
		return result, err
	}
	patience := min(waitWarning, v1alpha1.StartingDeadline(t.Spec.Limits, limitsOf(agent))/2)
	warn, last, left := r.waiting.see(t, patience, r.Now())
	if left > 0 && (result.RequeueAfter == 0 || left < result.RequeueAfter) {
		result.RequeueAfter = left
	}
	if warn {
		said := fmt.Sprintf("the turn has waited for %s and is still %s: %s", r.Now().Sub(t.WaitingSince()).Round(time.Second), t.StateReason(),
			meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded).Message)
		if last {
			said = fmt.Sprintf("%d turns of this namespace have waited too long as %s; for %s no more of them get an Event. This one: %s",
				warningsOfNamespace, t.StateReason(), warningWindow, said)
		}
		r.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventWaitingLong, "Wait", "%s", translate.Note(said))
	}
	return result, nil
}

func limitsOf(a *v1alpha1.Agent) *v1alpha1.Limits {
	if a == nil {
		return nil
	}
	return a.Spec.Limits
}
