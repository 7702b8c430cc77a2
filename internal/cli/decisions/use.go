package decisions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// pollInterval is the time between two reads of a Turn. A watch would require one more permission.
const pollInterval = 250 * time.Millisecond

// created is a ToolApproval that this command has created, and its call. by is the user who decided.
type created struct {
	name     string
	call     v1alpha1.PendingApproval
	by       string
	decision v1alpha1.ApprovalDecision
}

// awaitUse waits until the Turn has used the decisions, for at most WaitSeconds. It returns an error for the decisions
// that the Turn does not use. If the time ends first, it returns no error: the manager may be down, and the Turn then
// uses the decisions later.
func (c *pendingCalls) awaitUse(ctx context.Context) error {
	if c.WaitSeconds == 0 || len(c.created) == 0 {
		return nil
	}
	t := *c.turn
	left := c.created
	var unused []error
	var unread error
	read := false
	failures := 0 // reads that have failed since the last successful one
	err := wait.PollUntilContextTimeout(ctx, pollInterval, time.Duration(c.WaitSeconds)*time.Second, true,
		func(ctx context.Context) (bool, error) {
			var current v1alpha1.Turn
			unread = c.api.Get(ctx, client.ObjectKeyFromObject(c.turn), &current)
			switch {
			case apierrors.IsNotFound(unread), unread == nil && current.UID != c.turn.UID:
				return true, nil // a deleted Turn uses no decision
			case !read && cluster.IsRefused(unread):
				return false, unread
			case unread != nil:
				failures++
				return false, nil //nolint:nilerr // because the API server may answer again
			}
			t = current
			read, failures = true, 0
			var more []error
			left, more = unusedDecisions(&t, left)
			unused = append(unused, more...)
			return len(left) == 0, nil
		})
	switch {
	case len(unused) > 0:
		return errors.Join(unused...)
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case !wait.Interrupted(err):
		c.Env.Logf("note: it is not known whether the Turn has used the decisions, because you may not read it: %s",
			termsafe.Line(err.Error(), longestReason))
		return nil
	}
	what := "the Turn has not continued"
	if t.BoundTo() != "" {
		what = "the status of the Turn does not show who decided"
	}
	c.Env.Logf("note: %s within %d s; its state is %s: %s", what, c.WaitSeconds, t.StateReason(),
		termsafe.Line(succeededMessage(&t), longestReason))
	if failures > 1 { // a single failure may be the last read, which the timeout interrupts
		c.Env.Logf("note: failed to read the Turn: %s", termsafe.Line(unread.Error(), longestReason))
	}
	return nil
}

// unusedDecisions returns the decisions that the Turn has not used yet, and an error for each one that it does not use.
// A Turn that has only continued may have used another decision about the call, so the record of the call counts. If
// the status lists neither the call nor the request, it has left the call out, and the decision counts as used.
func unusedDecisions(t *v1alpha1.Turn, made []created) (left []created, unused []error) {
	for _, m := range made {
		why := ""
		switch record, isListed := recordOf(t, m.call), isPending(t, m.call); {
		case isListed && isAwaiting(t):
			if why = unusedReason(t, m.name); why == "" {
				left = append(left, m)
			}
		case record != nil && record.DecidedBy != "":
			why = m.otherDecision(record)
		case endReason(t, record) != "":
			why = endReason(t, record)
		case record == nil && !isListed:
		case isAwaiting(t):
			why = "the Turn has requested approval of the call again"
		default: // a suspended Turn lists no request, but uses the decision later
			left = append(left, m)
		}
		if why != "" {
			unused = append(unused, fmt.Errorf("the Turn does not use %s %s: %s", kindToolApproval, m.name, why))
		}
	}
	return left, unused
}

// otherDecision returns an empty string if the record of a call shows this decision. Otherwise it returns which
// decision it shows.
func (m created) otherDecision(record *v1alpha1.ToolCallRecord) string {
	switch {
	case record.DecidedBy != m.by:
		return decidedBy(record)
	case m.decision != v1alpha1.ApprovalDenied, record.Outcome == v1alpha1.ToolCallRefused, record.Outcome == v1alpha1.ToolCallPending:
		return ""
	}
	return fmt.Sprintf("you had approved the call before, and its outcome is %s", record.Outcome)
}

// decidedBy says who decided about a call.
func decidedBy(record *v1alpha1.ToolCallRecord) string {
	return termsafe.Exact(termsafe.Line(record.DecidedBy, output.LongestID)) + " had decided about the call before"
}

// endReason returns the reason for which a call without a decision is not decided any more, or an empty string. record
// is the record of the call, or nil.
func endReason(t *v1alpha1.Turn, record *v1alpha1.ToolCallRecord) string {
	switch {
	case t.IsFinished():
		return fmt.Sprintf("the Turn has ended (%s)", t.StateReason())
	case record != nil && record.Outcome != v1alpha1.ToolCallPending:
		return fmt.Sprintf("no decision was made in time, and the outcome of the call is %s", record.Outcome)
	}
	return ""
}

// recordOf returns the record of a pending call in the status, or nil. The status lists only the newest calls.
func recordOf(t *v1alpha1.Turn, p v1alpha1.PendingApproval) *v1alpha1.ToolCallRecord {
	i := slices.IndexFunc(t.Status.ToolCalls, func(r v1alpha1.ToolCallRecord) bool { return r.Step == p.Step && r.CallID == p.CallID })
	if i < 0 {
		return nil
	}
	return &t.Status.ToolCalls[i]
}

// isPending reports whether the status lists a request for an approval. A run that has begun may have its decision.
func isPending(t *v1alpha1.Turn, p v1alpha1.PendingApproval) bool {
	return slices.ContainsFunc(t.Status.PendingApprovals, func(o v1alpha1.PendingApproval) bool { return requestKey(o) == requestKey(p) })
}

// isAwaiting reports whether a Turn waits for all decisions about the calls that its status lists.
func isAwaiting(t *v1alpha1.Turn) bool { return t.StateReason() == v1alpha1.TurnReasonAwaitingApproval }

// refresh gets the Turn again. A question may have been open for long, and others decide, too.
func (c *pendingCalls) refresh(ctx context.Context) error {
	current, err := cluster.GetTurn(ctx, c.api, c.turn.Namespace, c.turn.Name)
	if err != nil {
		return err
	}
	if current.UID != c.turn.UID {
		return fmt.Errorf("%s %s/%s was deleted in the meantime, and another one has its name now", cluster.TurnKind,
			c.turn.Namespace, c.turn.Name)
	}
	c.turn = current
	return nil
}

// lateReason returns the reason for which it is too late to decide about a call, or an empty string.
func (c *pendingCalls) lateReason(p v1alpha1.PendingApproval) string {
	record, isListed := recordOf(c.turn, p), isPending(c.turn, p)
	switch {
	case isListed && isAwaiting(c.turn):
		return ""
	case record != nil && record.DecidedBy != "":
		return decidedBy(record)
	case endReason(c.turn, record) != "":
		return endReason(c.turn, record)
	case !isListed:
		return fmt.Sprintf("the call is no longer pending, and the state of the Turn is %s", c.turn.StateReason())
	}
	return ""
}

// reportLate returns an error for a call about which it is too late to decide. If the call has the decision of another
// user of this command, reportLate reports that decision, which is no error if it is the same.
func (c *pendingCalls) reportLate(ctx context.Context, p v1alpha1.PendingApproval, why string) error {
	a, record := c.approval(p, 0), recordOf(c.turn, p)
	var before v1alpha1.ToolApproval
	if record != nil && record.DecidedBy != "" && c.api.Get(ctx, client.ObjectKeyFromObject(a), &before) == nil &&
		before.Spec.DecidedBy == record.DecidedBy {
		return c.reportEarlier(ctx, a, c.title(p))
	}
	return fmt.Errorf("%s was not %s: %s", c.title(p), c.Verb.Done, why)
}

// unusedReason returns the reason for which a Turn does not use a ToolApproval, from the message of its condition. It
// returns an empty string if the message does not name this ToolApproval.
func unusedReason(t *v1alpha1.Turn, name string) string {
	for _, group := range unusedGroups(t) {
		if slices.Contains(group.names, name) {
			return group.why
		}
	}
	return ""
}

// leftOutReason returns a reason for which a Turn does not use ToolApprovals that the message of its condition does not
// name. It returns an empty string if the message names all of them.
func leftOutReason(t *v1alpha1.Turn) string {
	for _, group := range unusedGroups(t) {
		if group.more {
			return group.why
		}
	}
	return ""
}

// unusedGroup describes ToolApprovals that a Turn does not use for the same reason. more is set if there are others
// that it does not name.
type unusedGroup struct {
	names []string
	more  bool
	why   string
}

// unusedGroups returns the ToolApprovals that a Turn does not use, from the message of its condition.
func unusedGroups(t *v1alpha1.Turn) []unusedGroup {
	isSeparator := func(r rune) bool { return r == ' ' || r == ',' }
	var groups []unusedGroup
	sentences := strings.Split(succeededMessage(t), "; "+kindToolApproval)
	for _, sentence := range sentences[1:] {
		if strings.HasPrefix(sentence, "s that are not used for other reasons: ") {
			groups = append(groups, unusedGroup{more: true, why: "the message of the Turn leaves out the reason"})
			continue
		}
		for _, verb := range []string{" is not used: ", " are not used: "} {
			if names, why, found := strings.Cut(sentence, verb); found {
				groups = append(groups, unusedGroup{
					strings.FieldsFunc(names, isSeparator), strings.HasSuffix(names, " more"), termsafe.Line(why, longestReason),
				})
				break
			}
		}
	}
	return groups
}

// succeededMessage returns the message of the Turn's condition Succeeded, or an empty string if there is none.
func succeededMessage(t *v1alpha1.Turn) string {
	if state := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); state != nil {
		return state.Message
	}
	return ""
}
