package translate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// maxAwaited bounds the calls and Turns that a status lists as awaited; the Turn waits for the rest later. No more
// calls than that are put to people at a time, because a call that no status lists cannot be decided.
const maxAwaited = loop.MaxOpenApprovals

// Park writes what a parked Turn waits for: decisions about calls, or else Turns of sub-agents.
func Park(t *v1alpha1.Turn, p *loop.Parked, now time.Time) {
	unpark(&t.Status, now)
	for _, a := range p.Approvals[:min(len(p.Approvals), maxAwaited)] {
		t.Status.PendingApprovals = append(t.Status.PendingApprovals, pendingApproval(a))
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

// pendingApproval returns a request for approval in the form of a status. No field that a decision names is cut, so
// two requests never look alike. The expiry is rounded up to a whole second: at that time the call has expired for
// certain.
func pendingApproval(a loop.Approval) v1alpha1.PendingApproval {
	return v1alpha1.PendingApproval{
		RequestID: a.Request, Step: toInt32(a.Step), CallID: a.CallID, Name: a.Name, ToolServerUID: a.ToolServerUID,
		SchemaHash:    a.SchemaHash,
		ArgumentsHash: a.ArgumentsHash,
		RequestTime:   metav1.NewTime(a.Requested.Truncate(time.Second)),
		ExpiryTime:    metav1.NewTime(a.Expires.Add(time.Second - 1).Truncate(time.Second)),
	}
}

// Unpark ends the wait of a Turn. Two lists of the status stay:
//  1. The pending calls: the run accepts a decision only about a call that the status lists.
//  2. The awaited Turns of sub-agents: by this list the next run knows that they were created, even if one has
//     been deleted since.
func Unpark(t *v1alpha1.Turn, now time.Time) {
	pending, awaited := t.Status.PendingApprovals, t.Status.AwaitedTurns
	unpark(&t.Status, now)
	t.Status.PendingApprovals, t.Status.AwaitedTurns = pending, awaited
}

// PauseClock stops the time of a Turn, or starts it again, and reports whether the status changed.
func PauseClock(t *v1alpha1.Turn, paused bool, now time.Time) bool {
	if paused == (t.Status.ParkedTime != nil) {
		return false
	}
	if !paused {
		t.Status.ParkedMilliseconds, t.Status.ParkedTime = parked(&t.Status, now).Milliseconds(), nil
		return true
	}
	t.Status.ParkedTime = new(metav1.NewMicroTime(now))
	return true
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

// Parked returns how long a Turn has waited for decisions, at most the time since its start. The Turn's deadline is
// later by this time.
func Parked(t *v1alpha1.Turn, now time.Time) time.Duration { return parked(&t.Status, now) }

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

// Left returns how much of its time limit a Turn has left; 0 or less means that its time is over. It never returns
// more than the limit, even if a clock was wrong when the Turn started.
func Left(t *v1alpha1.Turn, limit time.Duration, now time.Time) time.Duration {
	if t.Status.StartTime == nil {
		return limit
	}
	return limit - max(0, now.Sub(t.Status.StartTime.Time)-Parked(t, now))
}

// Start writes the start time of a Turn that has none. It also replaces a start time in the future, which a wrong
// clock has written: otherwise the Turn would have more time than its limit.
func Start(t *v1alpha1.Turn, now time.Time) {
	if start := t.Status.StartTime; start == nil || start.After(now) {
		t.Status.StartTime = new(metav1.NewMicroTime(now))
	}
}

// unpark ends all waits of a Turn, and adds the time of the wait to parkedMilliseconds.
func unpark(s *v1alpha1.TurnStatus, now time.Time) {
	s.ParkedMilliseconds, s.ParkedTime = parked(s, now).Milliseconds(), nil
	s.PendingApprovals, s.AwaitedTurns = nil, nil
}

// Decides reports whether a ToolApproval decides about a pending call of a Turn: it must name every fact that the
// status lists about the call. The requestID is random, so a ToolApproval that names it was created after the
// request. A ToolApproval that is older than the Turn is refused: its author cannot have read the requestID there.
func Decides(a *v1alpha1.ToolApproval, t *v1alpha1.Turn, p v1alpha1.PendingApproval) bool {
	s := a.Spec
	return a.Namespace == t.Namespace && s.TurnRef.Name == t.Name && s.TurnUID == string(t.UID) &&
		p.RequestID != "" && s.RequestID == p.RequestID && s.Step == p.Step && s.CallID == p.CallID && s.ToolName == p.Name &&
		s.ToolServerUID == p.ToolServerUID && s.SchemaHash == p.SchemaHash && s.ArgumentsHash == p.ArgumentsHash &&
		!a.CreationTimestamp.Time.Before(t.CreationTimestamp.Time)
}

// About returns the ToolApprovals that decide about a request of a Turn and were created in time. It returns none
// if the Turn's status does not list the request.
func About(approvals []v1alpha1.ToolApproval, t *v1alpha1.Turn, a loop.Approval) []v1alpha1.ToolApproval {
	if !Lists(t, a) {
		return nil
	}
	var about []v1alpha1.ToolApproval
	for i := range approvals {
		if c := &approvals[i]; Decides(c, t, pendingApproval(a)) && !c.CreationTimestamp.After(a.Expires) {
			about = append(about, *c)
		}
	}
	return about
}

// Lists reports whether the status of a Turn lists a request, with every fact that a decision names.
func Lists(t *v1alpha1.Turn, a loop.Approval) bool {
	wanted := pendingApproval(a)
	return slices.ContainsFunc(t.Status.PendingApprovals, func(p v1alpha1.PendingApproval) bool {
		wanted.RequestTime, wanted.ExpiryTime = p.RequestTime, p.ExpiryTime
		return p == wanted
	})
}

// Decision returns the decision about a request, or nil if none was made in time. The first of several decisions
// counts. Of decisions in the same second a denial counts, because their order is unknown.
func Decision(approvals []v1alpha1.ToolApproval, t *v1alpha1.Turn, a loop.Approval) *loop.Decision {
	var first *v1alpha1.ToolApproval
	about := About(approvals, t, a)
	for i := range about {
		if c := &about[i]; first == nil || earlier(c, first) {
			first = c
		}
	}
	if first == nil {
		return nil
	}
	d := a.Decided(first.Spec.Decision == v1alpha1.ApprovalApproved)
	d.By, d.Reason = first.Spec.DecidedBy, first.Spec.Reason
	return d
}

func earlier(a, b *v1alpha1.ToolApproval) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	if denied := a.Spec.Decision == v1alpha1.ApprovalDenied; denied != (b.Spec.Decision == v1alpha1.ApprovalDenied) {
		return denied
	}
	return a.UID < b.UID
}
