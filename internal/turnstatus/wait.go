package turnstatus

import (
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// Wait writes why an unbound Turn cannot be bound yet, and reports whether the status changed.
//  1. If the Turn is bound, its executor is lost. Then it is unbound, and its run may have written more entries to the
//     journal than the status says.
//  2. If the reason is Suspended, the Turn gets its whole time limit again when it continues.
//  3. order is the position of the Turn among the Turns of its Session that were created in the same second. The first
//     write stores it.
func Wait(t *v1alpha1.Turn, reason, message string, order int64, now time.Time) (changed bool) {
	s := &t.Status
	if t.Spec.SessionRef != nil && s.SessionOrder == 0 && order > 0 {
		s.SessionOrder, changed = order, true
	}
	if t.BoundTo() != "" {
		s.Executor.Name, s.Executor.JournalComplete, changed = "", false, true
	}
	if reason == v1alpha1.TurnReasonSuspended && s.StartTime != nil {
		restartClock(s)
		changed = true
	}
	changed = pauseClock(s, false, now) || changed
	return wait(t, reason, message, now) || changed
}

// Release hands a Turn back that cannot continue here for a reason.
func Release(t *v1alpha1.Turn, r Run, reason, message string, now time.Time) {
	r.unbind(t)
	wait(t, reason, message, now)
}

// ReleaseUnprepared hands a Turn back whose prompt cannot be made yet. It records that there is no prompt: otherwise
// the controller would bind the Turn again, because the journal might hold one.
func ReleaseUnprepared(t *v1alpha1.Turn, r Run, reason, message string, now time.Time) {
	Release(t, r, reason, message, now)
	setCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionUnknown, v1alpha1.TurnReasonNotPrepared,
		"the prompt has not been prepared yet", now)
}

// Suspend hands a Turn back that was suspended while it ran. waits is what the Turn has just begun to wait for, or nil;
// only Turns of sub-agents are written.
func Suspend(t *v1alpha1.Turn, r Run, waits *loop.Parked, now time.Time) {
	r.unbind(t)
	restartClock(&t.Status)
	if waits != nil && len(waits.Turns) > 0 {
		await(&t.Status, waits.Turns)
	}
	wait(t, v1alpha1.TurnReasonSuspended, "the turn was suspended; set desiredState to Active to continue", now)
}

// restartClock resets the times of a suspended Turn, so that it has its whole time limit when it continues. Calls that
// wait for a decision are listed again then. Their expiry is not renewed; it keeps running while the Turn is suspended.
// The Turns of sub-agents stay listed, as in Bind.
func restartClock(s *v1alpha1.TurnStatus) {
	s.StartTime, s.ParkedTime, s.ParkedMilliseconds, s.PendingApprovals = nil, nil, 0, nil
	if s.Executor != nil {
		s.Executor.Overdue = false
	}
}

// sizes matches numbers of bytes in a message.
var sizes = regexp.MustCompile(`[0-9]+(\.[0-9]+)? [KMGTP]iB`)

// differInSizes reports whether two messages differ only in their numbers of bytes.
func differInSizes(a, b string) bool {
	return a != b && sizes.ReplaceAllLiteralString(a, "") == sizes.ReplaceAllLiteralString(b, "")
}

// wait writes that a Turn has not ended, and why, and reports whether the status changed. A message that differs
// only in its numbers of bytes is not a change: hundreds of Turns may wait for the same reason, and each would be
// written again whenever the controller looks at one of them.
func wait(t *v1alpha1.Turn, reason, message string, now time.Time) bool {
	message = bounded(message)
	changed := t.Status.ObservedGeneration != t.Generation
	t.Status.ObservedGeneration = t.Generation
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); !changed && c != nil &&
		c.Reason == reason && differInSizes(c.Message, message) {
		message = c.Message
	}
	since := now
	if t.StateReason() == "" && !t.CreationTimestamp.IsZero() {
		since = t.CreationTimestamp.Time // the Turn has waited since then, even if no manager was running
	}
	changed = setCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, message, now) || changed
	if reason == v1alpha1.TurnReasonSuspended {
		return meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionReconciling) || changed
	}
	return setCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, message, since) || changed
}
