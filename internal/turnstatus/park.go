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

// Park writes what a parked Turn waits for: decisions about calls, or else Turns of sub-agents.
func Park(t *v1alpha1.Turn, p *loop.Parked, now time.Time) {
	unpark(&t.Status, now)
	for _, a := range p.Approvals[:min(len(p.Approvals), maxAwaited)] {
		t.Status.PendingApprovals = append(t.Status.PendingApprovals, translate.PendingApproval(a))
	}
	Await(t, p.Turns)
	if len(p.Approvals) > 0 {
		t.Status.ParkedTime = new(metav1.NewMicroTime(now))
	}
	reason, message := Awaits(t)
	Wait(t, reason, message, now)
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

// Suspend resets the times of a Turn that was suspended, so that it has its whole time limit when it continues.
// Calls that wait for a decision are listed again then. Their expiry is not renewed; it keeps running while the
// Turn is suspended. The Turns of sub-agents stay listed, as in Unpark.
func Suspend(t *v1alpha1.Turn) {
	s := &t.Status
	s.StartTime, s.ParkedTime, s.ParkedMilliseconds, s.PendingApprovals = nil, nil, 0, nil
	if s.Executor != nil {
		s.Executor.Overdue = false
	}
}

// Await writes the Turns of sub-agents that a run now waits for, in place of the earlier ones.
func Await(t *v1alpha1.Turn, names []string) {
	t.Status.AwaitedTurns = nil
	for _, name := range names {
		if !slices.Contains(t.Status.AwaitedTurns, name) && len(t.Status.AwaitedTurns) < maxAwaited {
			t.Status.AwaitedTurns = append(t.Status.AwaitedTurns, name)
		}
	}
}
