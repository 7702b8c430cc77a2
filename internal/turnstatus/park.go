package turnstatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
)

// maxAwaited bounds the calls and Turns that a status lists as awaited; the Turn waits for the rest later. No more
// calls than that are put to people at a time, because a call that no status lists cannot be decided.
const maxAwaited = loop.MaxOpenApprovals

// Park hands a Turn back that waits for decisions about calls, or else for Turns of sub-agents. Its time stops while
// it waits for decisions.
func Park(t *v1alpha1.Turn, r Run, waits *loop.Parked, now time.Time) {
	s := &t.Status
	r.unbind(t)
	unpark(s, now)
	for _, a := range waits.Approvals[:min(len(waits.Approvals), maxAwaited)] {
		s.PendingApprovals = append(s.PendingApprovals, translate.PendingApproval(a))
	}
	await(s, waits.Turns)
	if len(waits.Approvals) > 0 {
		s.ParkedTime = new(metav1.NewMicroTime(now))
	}
	reason, message := Awaits(t)
	wait(t, reason, message, now)
}

// await writes the Turns of sub-agents that a run now waits for, in place of the earlier ones.
func await(s *v1alpha1.TurnStatus, names []string) {
	s.AwaitedTurns = nil
	for _, name := range names {
		if !slices.Contains(s.AwaitedTurns, name) && len(s.AwaitedTurns) < maxAwaited {
			s.AwaitedTurns = append(s.AwaitedTurns, name)
		}
	}
}

// StayParked writes why a Turn stays parked, and reports whether the status changed. paused says whether its time stops.
func StayParked(t *v1alpha1.Turn, reason, message string, paused bool, now time.Time) bool {
	changed := pauseClock(&t.Status, paused, now)
	return wait(t, reason, message, now) || changed
}

// Awaits returns reason and message for a Turn whose status has pendingApprovals or awaitedTurns.
func Awaits(t *v1alpha1.Turn) (reason, message string) {
	if n := len(t.Status.PendingApprovals); n > 0 {
		return v1alpha1.TurnReasonAwaitingApproval, fmt.Sprintf("%s %s approval: run capstan approve %s or capstan deny %s",
			describeCalls(t.Status.PendingApprovals), plural(n, "requires", "require"), t.Name, t.Name)
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

// unpark ends all waits of a Turn, and adds the time of the wait to parkedMilliseconds.
func unpark(s *v1alpha1.TurnStatus, now time.Time) {
	resumeClock(s, now)
	s.PendingApprovals, s.AwaitedTurns = nil, nil
}

// pauseClock stops the time of a Turn, or starts it again, and reports whether the status changed.
func pauseClock(s *v1alpha1.TurnStatus, paused bool, now time.Time) bool {
	if paused == (s.ParkedTime != nil) {
		return false
	}
	if paused {
		s.ParkedTime = new(metav1.NewMicroTime(now))
	} else {
		resumeClock(s, now)
	}
	return true
}

// resumeClock starts the time of a Turn again.
func resumeClock(s *v1alpha1.TurnStatus, now time.Time) {
	s.ParkedMilliseconds, s.ParkedTime = parked(s, now).Milliseconds(), nil
}

// parked returns how long a Turn has waited for decisions, at most the time since its start.
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

// Left returns how much of its time limit a Turn has left; 0 or less means that its time is over. Waits for decisions
// do not count. Left never returns more than the limit, even if a clock was wrong when the Turn started.
func Left(t *v1alpha1.Turn, limit time.Duration, now time.Time) time.Duration {
	if t.Status.StartTime == nil {
		return limit
	}
	return limit - max(0, now.Sub(t.Status.StartTime.Time)-parked(&t.Status, now))
}
