package turnstatus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Wait writes why a Turn that no executor runs must wait, and reports whether the status changed.
//  1. If the status still names an executor, this executor is lost. Wait removes its name, and sets journalComplete to
//     false, because the lost run may have written more entries to the journal than the status says.
//  2. If the reason is Suspended, the Turn gets its whole time limit again when it continues. The status names no
//     awaited Budget any more: the next run asks the Budget again, and parks the Turn after a refusal.
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
	if reason == v1alpha1.TurnReasonSuspended && s.AwaitedBudget != nil {
		s.AwaitedBudget, changed = nil, true
	}
	changed = pauseClock(s, nil, now) || changed
	return setUnfinished(t, reason, message, now) || changed
}

// Release hands back a Turn that its executor cannot continue.
func Release(t *v1alpha1.Turn, r Run, reason, message string, now time.Time) {
	r.unbind(t)
	setUnfinished(t, reason, message, now)
}

// ReleaseUnprepared hands back a Turn whose prompt cannot be made yet. It records that there is no prompt: otherwise
// the controller would bind the Turn again, because its journal might have a prompt. It must not be called for a Turn
// that may have a prompt: the controller would apply the checks of a new Turn, and would end the Turn without its
// journal.
func ReleaseUnprepared(t *v1alpha1.Turn, r Run, reason, message string, now time.Time) {
	Release(t, r, reason, message, now)
	setCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionUnknown, v1alpha1.TurnReasonNotPrepared,
		"the prompt has not been prepared yet", now)
}

// Park hands back a Turn that waits for decisions about calls, for Turns of sub-agents, or for a Budget. Its time stops
// while it waits for decisions, or for the reset of a Budget. If it waits for a Budget and has not sent a request, its
// starting deadline applies again.
func Park(t *v1alpha1.Turn, r Run, waits *loop.Parked, now time.Time) {
	s := &t.Status
	r.unbind(t)
	unpark(s, now)
	for _, a := range waits.Approvals[:min(len(waits.Approvals), maxAwaited)] {
		s.PendingApprovals = append(s.PendingApprovals, translate.PendingApproval(a))
	}
	await(s, waits.Turns)
	b := waits.Budget
	if b != nil {
		s.AwaitedBudget = translate.AwaitedBudget(b)
	}
	if len(waits.Approvals) > 0 || b != nil && !b.Contended && b.Started {
		s.ParkedTime = new(metav1.NewMicroTime(now))
	}
	if b != nil && !b.Started {
		restartClock(s)
	}
	reason, message := WaitReason(t)
	setUnfinished(t, reason, message, now)
}

// StayParked writes why a Turn stays parked, and reports whether the status changed. The time of the Turn has not run
// since pausedSince. If pausedSince is nil, the time runs.
func StayParked(t *v1alpha1.Turn, reason, message string, pausedSince *metav1.MicroTime, now time.Time) bool {
	changed := pauseClock(&t.Status, pausedSince, now)
	return setUnfinished(t, reason, message, now) || changed
}

// Suspend hands back a Turn that was suspended while it ran. newWait is nil, or says what the Turn has just begun to
// wait for. Suspend writes only the Turns of sub-agents from it.
func Suspend(t *v1alpha1.Turn, r Run, newWait *loop.Parked, now time.Time) {
	r.unbind(t)
	restartClock(&t.Status)
	if newWait != nil && len(newWait.Turns) > 0 {
		await(&t.Status, newWait.Turns)
	}
	setUnfinished(t, v1alpha1.TurnReasonSuspended, "the turn was suspended; set desiredState to Active to continue", now)
}

// sizes matches numbers of bytes in a message.
var sizes = regexp.MustCompile(`[0-9]+(\.[0-9]+)? [KMGTP]iB`)

// differInSizes reports whether two messages differ only in their numbers of bytes.
func differInSizes(a, b string) bool {
	return a != b && sizes.ReplaceAllLiteralString(a, "") == sizes.ReplaceAllLiteralString(b, "")
}

// setUnfinished writes that a Turn has not ended, and why, and reports whether the status changed. A message that
// differs only in its numbers of bytes is not a change: hundreds of Turns may wait for the same reason, and each
// evaluation of such a Turn would write its status again.
func setUnfinished(t *v1alpha1.Turn, reason, message string, now time.Time) bool {
	message = shortened(message)
	changed := Observe(t)
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); !changed && c != nil &&
		c.Reason == reason && differInSizes(c.Message, message) {
		message = c.Message
	}
	since := now
	if t.StateReason() == "" && !t.CreationTimestamp.IsZero() {
		since = t.CreationTimestamp.Time // the Turn has waited since its creation, even if no manager was running
	}
	changed = setCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, message, now) || changed
	if reason == v1alpha1.TurnReasonSuspended {
		return meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionReconciling) || changed
	}
	return setCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, message, since) || changed
}

// maxAwaited limits the calls and Turns that a status lists as awaited. The Turn waits for further ones later. A call
// that the status does not list cannot be decided, so people never decide about more calls at the same time.
const maxAwaited = loop.MaxOpenApprovals

// await writes the Turns of sub-agents for which a run now waits. They replace the Turns of the earlier wait.
func await(s *v1alpha1.TurnStatus, names []string) {
	s.AwaitedTurns = nil
	for _, name := range names {
		if !slices.Contains(s.AwaitedTurns, name) && len(s.AwaitedTurns) < maxAwaited {
			s.AwaitedTurns = append(s.AwaitedTurns, name)
		}
	}
}

// WaitReason returns reason and message for a Turn whose status has pendingApprovals, awaitedTurns or awaitedBudget.
func WaitReason(t *v1alpha1.Turn) (reason, message string) {
	if b := t.Status.AwaitedBudget; b != nil && len(t.Status.PendingApprovals)+len(t.Status.AwaitedTurns) == 0 {
		return v1alpha1.TurnReasonWaitingForBudget, b.Message
	}
	if n := len(t.Status.PendingApprovals); n > 0 {
		return v1alpha1.TurnReasonAwaitingApproval, fmt.Sprintf("%s %s approval: %s",
			describeCalls(t.Status.PendingApprovals), plural(n, "requires", "require"), translate.HowToDecide(t))
	}
	names := strings.Join(t.Status.AwaitedTurns, ", ")
	if len(t.Status.AwaitedTurns) == 1 {
		return v1alpha1.TurnReasonWaitingForSubAgent, fmt.Sprintf("the Turn %s of a sub-agent has not ended", names)
	}
	return v1alpha1.TurnReasonWaitingForSubAgent, fmt.Sprintf("the Turns %s of sub-agents have not ended", names)
}

// describeCalls names the tools of calls, each once, without the arguments.
func describeCalls(pending []v1alpha1.PendingApproval) string {
	var names []string
	for _, p := range pending {
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	if len(pending) == 1 {
		return "a call of tool " + names[0]
	}
	return fmt.Sprintf("%d calls of %s %s", len(pending), plural(len(names), "tool", "tools"), strings.Join(names, ", "))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// restartClock resets the times of a Turn that is suspended, or that waits for a Budget and has not sent a request yet,
// so that the Turn has its whole time limit when it continues. It removes the pending calls, which are listed again
// when the Turn continues. A suspension does not extend their expiry. The Turns of sub-agents stay listed, as in Bind.
func restartClock(s *v1alpha1.TurnStatus) {
	s.StartTime, s.ParkedTime, s.ParkedMilliseconds, s.PendingApprovals = nil, nil, 0, nil
	if s.Executor != nil {
		s.Executor.Overdue = false
	}
}

// unpark ends all waits of a Turn, and adds the time of the wait to parkedMilliseconds.
func unpark(s *v1alpha1.TurnStatus, now time.Time) {
	resumeClock(s, now)
	s.PendingApprovals, s.AwaitedTurns, s.AwaitedBudget = nil, nil, nil
}

// pauseClock stops the time of a Turn from the time since on, or starts it again if since is nil, and reports whether
// the status changed.
func pauseClock(s *v1alpha1.TurnStatus, since *metav1.MicroTime, now time.Time) bool {
	if (since != nil) == (s.ParkedTime != nil) {
		return false
	}
	if since != nil {
		s.ParkedTime = since.DeepCopy()
	} else {
		resumeClock(s, now)
	}
	return true
}

// resumeClock starts the time of a Turn again.
func resumeClock(s *v1alpha1.TurnStatus, now time.Time) {
	s.ParkedMilliseconds, s.ParkedTime = parked(s, now).Milliseconds(), nil
}

// parked returns how long a Turn has waited for decisions and for resets of Budgets, at most the time since its start.
func parked(s *v1alpha1.TurnStatus, now time.Time) time.Duration {
	total := time.Duration(s.ParkedMilliseconds) * time.Millisecond
	if s.ParkedTime != nil {
		total += max(0, now.Sub(s.ParkedTime.Time))
	}
	if s.StartTime != nil {
		total = min(total, max(0, now.Sub(s.StartTime.Time)))
	}
	return total
}

// TimeLeft returns how much of its time limit a Turn has left; 0 or less means that its time is over. Waits for
// decisions and for resets of Budgets do not count. TimeLeft never returns more than the limit, even if a clock was
// wrong when the Turn started.
func TimeLeft(t *v1alpha1.Turn, limit time.Duration, now time.Time) time.Duration {
	if t.Status.StartTime == nil {
		return limit
	}
	return limit - max(0, now.Sub(limitedSince(t))-parked(&t.Status, now))
}

// limitedSince returns the time from which the time limit of a Turn that has started counts. The Turn of a sub-agent
// has a part of the time of its caller, which also runs while this Turn waits for its start. So its time limit counts
// from the beginning of that wait: otherwise, the caller would reach its own deadline first.
func limitedSince(t *v1alpha1.Turn) time.Time {
	start := t.Status.StartTime.Time
	if _, called := translate.Caller(t); !called {
		return start
	}
	// Object times are truncated to whole seconds; a Turn must not end earlier than its limit.
	since := t.WaitingSince().Add(time.Second)
	// A Turn that has waited longer than its starting deadline does not start. If it has started, its creation time is
	// that of an API server whose clock was set back, and the wait is unknown.
	if wait := start.Sub(since); wait <= 0 || wait > v1alpha1.StartingDeadline(t.Spec.Limits) {
		return start
	}
	return since
}
