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
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// pollInterval is the time between two reads of a Turn. A watch would require one more permission.
const pollInterval = 250 * time.Millisecond

// created is a ToolApproval that this command has created, and its call.
type created struct {
	name string
	call v1alpha1.PendingApproval
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
	c.Env.Logf("note: the Turn has not continued within %d s; its state is %s: %s", c.WaitSeconds, t.StateReason(),
		termsafe.Line(succeededMessage(&t), longestReason))
	if failures > 1 { // a single failure may be the last read, which the timeout interrupts
		c.Env.Logf("note: failed to read the Turn: %s", termsafe.Line(unread.Error(), longestReason))
	}
	return nil
}

// unusedDecisions returns the decisions that the Turn has not used yet, and an error for each one that it does not use.
func unusedDecisions(t *v1alpha1.Turn, made []created) (left []created, unused []error) {
	for _, m := range made {
		isPending := t.StateReason() == v1alpha1.TurnReasonAwaitingApproval && slices.ContainsFunc(t.Status.PendingApprovals,
			func(p v1alpha1.PendingApproval) bool { return requestKey(p) == requestKey(m.call) })
		why := unusedReason(t, m.name)
		switch {
		case isPending && why != "":
			unused = append(unused, fmt.Errorf("the Turn does not use %s %s: %s", kindToolApproval, m.name, why))
		case isPending:
			left = append(left, m)
		}
	}
	return left, unused
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
