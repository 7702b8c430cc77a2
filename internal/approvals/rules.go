package approvals

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// RequesterCheck returns why the requester of a Turn that was created at this time may be forged, as a message of one
// line. The message is empty if the API server has checked the requester. An error is temporary: the caller may try
// again. A RequesterCheck must be safe for concurrent use.
type RequesterCheck func(ctx context.Context, created time.Time) (why string, err error)

// TrustRequesters is the RequesterCheck that accepts every requester. It is for clusters where something other than
// the policy checks them.
func TrustRequesters(context.Context, time.Time) (why string, err error) { return "", nil }

// Checks are the checks that Counted makes.
type Checks struct {
	// Author returns the decisions whose authors the API server has verified. Requester returns why the requester of a
	// Turn may be forged. If Requester is nil, each requester may be forged.
	Author    Check
	Requester RequesterCheck
}

// Counted selects the ToolApprovals that count from those about the calls of a Turn, and keeps their order. A
// ToolApproval counts if the API server has verified its author, and the Agent of the Turn lets this author decide. why
// is a message of one line about the other ToolApprovals. It is empty if all count. reader gets the Turns above the
// Turn of a sub-agent.
func Counted(
	ctx context.Context, checks Checks, reader client.Reader, agent *v1alpha1.Agent, t *v1alpha1.Turn, made []v1alpha1.ToolApproval,
) (counted []v1alpha1.ToolApproval, why string, err error) {
	checked, why, err := checks.Author(ctx, made)
	if err != nil || len(checked) == 0 {
		return nil, why, err
	}
	rules, err := RulesOf(ctx, checks.Requester, reader, agent, t)
	if err != nil {
		return nil, "", err
	}
	counted, refused := rules.Apply(checked)
	if why != "" && refused != "" {
		why += "; "
	}
	return counted, why + refused, nil
}

// Rules say whose decisions about the calls of one Turn count.
type Rules struct {
	// Agent is the name of the Turn's Agent, for messages; NAMESPACE/NAME if it is in another namespace.
	Agent string
	// Approval is the spec.approval of the Agent; nil if all decisions count.
	Approval *v1alpha1.AgentApproval
	// Requester is the requester of the Turn; empty if the Turn has none.
	Requester string
	// Unchecked says why the requester may be forged. It is empty if the API server has checked the requester.
	Unchecked string
}

// maxDepth is the maximum number of Turns above a Turn: the greatest depth of a sub-agent.
const maxDepth = 8

// RulesOf returns the rules for a Turn and its Agent. If agent is nil, there are no rules, because a Turn makes no call
// without its Agent. The requester of a sub-agent's Turn counts as checked only if the requester of each Turn above it
// was checked, too. RulesOf gets these Turns from reader.
func RulesOf(
	ctx context.Context, check RequesterCheck, reader client.Reader, agent *v1alpha1.Agent, t *v1alpha1.Turn,
) (Rules, error) {
	r := Rules{Requester: t.Requester()}
	if agent == nil || agent.Spec.Approval == nil {
		return r, nil
	}
	r.Agent, r.Approval = t.AgentName(), agent.Spec.Approval
	if !r.Approval.ForbidRequester || r.Requester == "" {
		return r, nil
	}
	var err error
	r.Unchecked, err = Unchecked(ctx, check, reader, t)
	return r, err
}

// Unchecked returns why the requester of a Turn may be forged. The message is empty if the API server has checked the
// requester of the Turn and of each Turn above it, which Unchecked gets from reader. If check is nil, each requester
// may be forged. The owner reference to the calling Turn can be changed or removed, but the depth is immutable, so
// Unchecked follows the owner references only as far as they agree with the depths. A Turn without a depth is no Turn
// of a sub-agent, whichever owner references it has.
func Unchecked(ctx context.Context, check RequesterCheck, reader client.Reader, t *v1alpha1.Turn) (why string, err error) {
	if check == nil {
		return "Capstan does not check requesters", nil
	}
	for range maxDepth + 1 {
		if why, err = check(ctx, t.CreationTimestamp.Time); err != nil || why != "" {
			return why, err
		}
		depth := ptr.Deref(t.Spec.Depth, 0)
		if depth == 0 {
			return "", nil
		}
		owner, ok := translate.Parent(t)
		if !ok {
			return "the Turn that called this one is not known, so its requester is not known either", nil
		}
		parent := new(v1alpha1.Turn)
		err = reader.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: owner.Name}, parent)
		switch {
		case apierrors.IsNotFound(err) || err == nil && parent.UID != owner.UID:
			return "the Turn that called this one was deleted, so its requester is not known", nil
		case err != nil:
			return "", fmt.Errorf("failed to get the turn %q, which called turn %q: %w", owner.Name, t.Name, err)
		case ptr.Deref(parent.Spec.Depth, 0) != depth-1:
			return "the depth of this Turn shows that another Turn called it, so its requester is not known", nil
		case parent.Requester() != t.Requester():
			return "the Turn that called this one has another requester", nil
		}
		t = parent
	}
	return "too many Turns have called each other to find its requester", nil
}

// Apply returns the ToolApprovals that count, in the given order. why is a message of one line about the other
// ToolApprovals. It is empty if all count.
func (r Rules) Apply(made []v1alpha1.ToolApproval) (counted []v1alpha1.ToolApproval, why string) {
	if r.Approval == nil {
		return made, ""
	}
	refused := map[string][]v1alpha1.ToolApproval{}
	var unusable []v1alpha1.ToolApproval
	for i := range made {
		reason := r.Refusal(&made[i].Spec)
		if reason == "" {
			counted = append(counted, made[i])
			continue
		}
		unusable = append(unusable, made[i])
		refused[reason] = append(refused[reason], made[i])
	}
	slices.SortFunc(unusable, newestFirst) // a message does not depend on the order of the ToolApprovals
	var texts []string
	left := 0 // ToolApprovals whose reasons the message leaves out
	for i := range unusable {
		reason := r.Refusal(&unusable[i].Spec)
		switch group := refused[reason]; {
		case group == nil: // the message has this reason
		case len(texts) == maxNamed:
			left++
		default:
			texts = append(texts, unused(group, reason))
			refused[reason] = nil
		}
	}
	if left > 0 {
		texts = append(texts, fmt.Sprintf("ToolApprovals that are not used for other reasons: %d", left))
	}
	return counted, strings.Join(texts, "; ")
}

// Refusal returns why a decision does not count, with the users who may decide. It is empty if the decision counts.
func (r Rules) Refusal(d *v1alpha1.ToolApprovalSpec) string {
	if r.Approval == nil {
		return ""
	}
	if a := r.Approval.Approvers; a != nil && !slices.Contains(a.Users, d.DecidedBy) &&
		!slices.ContainsFunc(d.DecidedByGroups, func(g string) bool { return slices.Contains(a.Groups, g) }) {
		return fmt.Sprintf("%q is not an approver of Agent %q: %s may decide", d.DecidedBy, r.Agent, r.who())
	}
	if !r.Approval.ForbidRequester || d.Decision != v1alpha1.ApprovalApproved {
		return ""
	}
	const rule = "Agent %q forbids requesters to approve their own calls (approval.forbidRequester)"
	switch {
	case r.Requester == "":
		return fmt.Sprintf(rule+", and this Turn has no requester (spec.requestedBy): create a new Turn with one", r.Agent)
	case r.Requester == d.DecidedBy:
		return fmt.Sprintf(rule+", and %q is the requester of this Turn; %s must decide", r.Agent, r.Requester, r.who())
	case r.Unchecked != "":
		return fmt.Sprintf(rule+", and %s", r.Agent, r.Unchecked)
	}
	return ""
}

// who names the users who may decide, in a short form.
func (r Rules) who() string {
	a := r.Approval.Approvers
	if a == nil {
		return "another approver"
	}
	var texts []string
	for _, list := range []struct {
		one, many string
		names     []string
	}{{"user", "users", a.Users}, {"member of group", "members of groups", a.Groups}} {
		if len(list.names) == 0 {
			continue
		}
		what := list.one
		if len(list.names) > 1 {
			what = list.many
		}
		shown := make([]string, 0, maxNamed)
		for _, name := range list.names[:min(len(list.names), maxNamed)] {
			shown = append(shown, fmt.Sprintf("%q", name))
		}
		text := what + " " + strings.Join(shown, ", ")
		if n := len(list.names) - maxNamed; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		texts = append(texts, text)
	}
	text := strings.Join(texts, " or a ")
	if r.Approval.ForbidRequester {
		text += " (not the requester)"
	}
	return text
}
