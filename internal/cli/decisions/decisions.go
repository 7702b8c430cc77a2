package decisions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// pendingCalls are calls of one Turn about which the user decides.
type pendingCalls struct {
	*Options
	api   client.Client
	turn  *v1alpha1.Turn
	calls []v1alpha1.PendingApproval
	// who is the name of the user, according to the API server. groups are the groups of the user that the decision
	// names, because the Agent of the Turn may require one of them.
	who    string
	groups []string
	// created lists the ToolApprovals that this command has created.
	created []created
	// printed is the number of decisions that this command has printed.
	printed int
}

// maxGroups is the number of groups that a ToolApproval may name.
const maxGroups = 64

// checkRules sets the groups of the user that the decision must name. It returns an error if the Agent of the Turn does
// not let this user decide. If the user has no permission to get the Agent, it checks nothing, and names all groups of
// the user, up to maxGroups. The manager checks the decision in any case.
func (c *pendingCalls) checkRules(ctx context.Context, user authenticationv1.UserInfo) error {
	var agent v1alpha1.Agent
	err := c.api.Get(ctx, c.turn.AgentKey(), &agent)
	switch {
	case apierrors.IsForbidden(err):
		c.groups = user.Groups[:min(len(user.Groups), maxGroups)]
		return nil
	case client.IgnoreNotFound(err) != nil:
		return exit.WithCode(exit.Failed,
			fmt.Errorf("failed to get Agent %q, which says who may decide: %w", c.turn.Spec.AgentRef, err))
	}
	rules := approvals.Rules{Agent: c.turn.AgentName(), Approval: agent.Spec.Approval, Requester: c.turn.Requester()}
	if a := agent.Spec.Approval; a != nil && a.Approvers != nil {
		for _, group := range user.Groups {
			if slices.Contains(a.Approvers.Groups, group) {
				c.groups = append(c.groups, group)
			}
		}
	}
	refusal := rules.Refusal(&v1alpha1.ToolApprovalSpec{Decision: c.Verb.Decision, DecidedBy: c.who, DecidedByGroups: c.groups})
	if refusal != "" {
		return exit.WithCode(exit.Failed, fmt.Errorf("you cannot %s calls of Turn %s/%s: %s", c.Verb.Name, c.turn.Namespace, c.turn.Name,
			termsafe.Line(refusal, longestReason)))
	}
	return nil
}

// decide shows the calls, asks for confirmation, creates the ToolApprovals, and waits until the Turn uses them.
func (c *pendingCalls) decide(ctx context.Context) error {
	arguments, unread := c.arguments(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	groups := [][]v1alpha1.PendingApproval{c.calls}
	if !c.All {
		groups = nil
		for _, p := range c.calls {
			groups = append(groups, []v1alpha1.PendingApproval{p})
		}
	}
	ask := terminal.NewAsker(c.Env)
	var undecided []error
	for _, group := range groups {
		err := c.decideTogether(ctx, ask, group, arguments, unread)
		if ctx.Err() != nil || errors.Is(err, terminal.ErrNoReply) {
			c.Env.Logf("") // end the line of the question
			return exit.WithCode(exit.Failed, err)
		}
		undecided = append(undecided, err)
	}
	undecided = append(undecided, c.awaitUse(ctx))
	if err := errors.Join(undecided...); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return nil
}

// decideTogether decides about a group of calls, with one question for all of them.
func (c *pendingCalls) decideTogether(
	ctx context.Context, ask *terminal.Asker, group []v1alpha1.PendingApproval, arguments requestArguments, unread error,
) error {
	names := make([]string, 0, len(group))
	for _, p := range group {
		names = append(names, termsafe.Line(p.CallID, output.LongestID))
		shown, err := c.argumentsOf(p, arguments, unread)
		if err != nil {
			return err
		}
		c.Env.Logf("%s", strings.TrimSuffix(c.card(p, shown), "\n"))
	}
	if !c.Yes {
		ok, err := ask.Yes(ctx, fmt.Sprintf("%s as %s?", c.Verb.Name, termsafe.Exact(c.who)))
		if err != nil {
			return fmt.Errorf("no decision was made about %s: %w", strings.Join(names, ", "), err)
		}
		if !ok {
			return fmt.Errorf("no decision was made about %s", strings.Join(names, ", "))
		}
	}
	if err := c.refresh(ctx); err != nil {
		return fmt.Errorf("no decision was made about %s: %w", strings.Join(names, ", "), err)
	}
	var failed []error
	for _, p := range group {
		if why := c.lateReason(p); why != "" {
			failed = append(failed, c.reportLate(ctx, p, why))
			continue
		}
		failed = append(failed, c.create(ctx, p))
	}
	return errors.Join(failed...)
}

// argumentsOf returns the arguments of a call. It returns redacted arguments, or nil, if they cannot be read and are
// not needed: a denial does not need them, and --without-arguments waives them. -y alone does not waive them, because a
// call must not be approved unseen by accident. unread is the reason why arguments cannot be read, or nil.
func (c *pendingCalls) argumentsOf(p v1alpha1.PendingApproval, arguments requestArguments, unread error) (json.RawMessage, error) {
	if found, ok := arguments.intact[requestKey(p)]; ok {
		return found, nil
	}
	why, required := unread, !c.WithoutArguments && c.Verb.Decision == v1alpha1.ApprovalApproved
	redacted, isRedacted := arguments.redacted[requestKey(p)]
	switch {
	case isRedacted:
		why = errors.New("they contain " + redact.Marker + ", and their hash is not the one in the Turn's status: the manager " +
			"removes a credential from them that it did not know at the time of the request, for example after its rotation")
	case why == nil:
		why = errors.New("the journal has no arguments with the hash in the Turn's status: it may be damaged, or in another store")
	}
	if !required {
		how := "cannot be shown"
		if isRedacted {
			how = "cannot be shown as a whole"
		}
		c.Env.Logf("note: the arguments of %s %s: %s", termsafe.Line(p.CallID, output.LongestID), how, why)
		return redacted, nil
	}
	return nil, fmt.Errorf("the arguments of %s cannot be read, so the call was not approved: %w; to approve it "+
		"unseen, by the hash %s, add --without-arguments",
		termsafe.Line(p.CallID, output.LongestID), why, p.ArgumentsHash)
}

// requestKey identifies a request for an approval by all fields that a decision names. No two requests have the
// same key.
func requestKey(p v1alpha1.PendingApproval) string {
	return fmt.Sprintf("%q %d %q %q %q %q %q", p.RequestID, p.Step, p.CallID, p.Name, p.ToolServerUID, p.SchemaHash, p.ArgumentsHash)
}

// argumentsHash returns the SHA-256 of arguments, as the engine computes it.
func argumentsHash(arguments json.RawMessage) string {
	data, err := canonical.JSON(arguments)
	if err != nil {
		data = arguments
	}
	return canonical.Sum(data)
}

// requestArguments holds the arguments of requests for approval by their requestKey. The key of intact arguments
// contains their hash, so altered arguments match no pending call. The read API removes all credentials that it knows
// when it is asked. Arguments that it has altered so are in redacted, with the hash of the request.
type requestArguments struct {
	intact, redacted map[string]json.RawMessage
}

// add adds the arguments of a request.
func (r requestArguments) add(a loop.Approval) {
	p := v1alpha1.PendingApproval{
		//nolint:gosec // because a step is at most 1000, and any other matches no call
		Step:      int32(a.Step),
		RequestID: a.Request, CallID: a.CallID, Name: a.Name, ToolServerUID: a.ToolServerUID, SchemaHash: a.SchemaHash,
		ArgumentsHash: argumentsHash(a.Arguments),
	}
	r.intact[requestKey(p)] = a.Arguments
	if p.ArgumentsHash != a.ArgumentsHash && bytes.Contains(a.Arguments, []byte(redact.Marker)) {
		p.ArgumentsHash = a.ArgumentsHash
		r.redacted[requestKey(p)] = a.Arguments
	}
}

// arguments reads the arguments of the pending calls from the Turn's journal.
func (c *pendingCalls) arguments(ctx context.Context) (found requestArguments, err error) {
	reader, err := c.Cluster.Open(ctx, c.Env, c.turn.Namespace, c.turn.Name)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, reader.Close()) }()
	found = requestArguments{map[string]json.RawMessage{}, map[string]json.RawMessage{}}
	for e, err := range reader.Entries(ctx, readapi.Query{}) {
		if err != nil {
			return found, journals.Explain(err)
		}
		if e.Kind != journal.ApprovalRequested {
			continue
		}
		var a loop.Approval
		if err := json.Unmarshal(e.Payload, &a); err != nil {
			return found, fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, err)
		}
		found.add(a)
	}
	if reader.UID != "" && reader.UID != string(c.turn.UID) {
		return requestArguments{}, fmt.Errorf("the journal belongs to another Turn of this name, with UID %s", reader.UID)
	}
	return found, nil
}

// maxApprovals is the maximum number of ToolApprovals for one request for an approval, including those that the Turn
// does not use.
const maxApprovals = 3

// create creates the ToolApproval for one call. If the Turn does not use an earlier ToolApproval for the call, create
// uses another name, because approvers have no permission to delete ToolApprovals.
//
// The message of the Turn names only some of the ToolApprovals that it does not use. An earlier one that it does not
// name is most probably one of the others, because a usable decision lets the Turn continue at once. If the Turn uses
// it after all, the first decision counts.
func (c *pendingCalls) create(ctx context.Context, p v1alpha1.PendingApproval) error {
	a := c.approval(p, 0)
	err := c.api.Create(ctx, a)
	for unused := 1; unused < maxApprovals && apierrors.IsAlreadyExists(err); unused++ {
		if unusedReason(c.turn, a.Name) == "" {
			if leftOutReason(c.turn) == "" {
				break
			}
			c.Env.Logf("note: call %s has an earlier decision, %s %s, and the Turn does not say whether it uses this one: "+
				"if it does, the earlier decision counts", termsafe.Line(p.CallID, output.LongestID), kindToolApproval, a.Name)
		}
		a = c.approval(p, unused)
		err = c.api.Create(ctx, a)
	}
	title := c.title(p)
	switch {
	case apierrors.IsAlreadyExists(err):
		return c.reportEarlier(ctx, a, title)
	case cluster.LacksPermission(err):
		return fmt.Errorf("%q may not decide about the %s: %w; this requires permission to create "+
			"toolapprovals.capstan.dev, which this command grants: %s", c.who, title, err, c.grant(ctx))
	case err != nil:
		return fmt.Errorf("failed to decide about the %s: %w", title, err)
	case !p.ExpiryTime.IsZero() && a.CreationTimestamp.After(p.ExpiryTime.Time): // as the executor compares them
		return fmt.Errorf("%s was not %s: the request for approval has expired at %s", title, c.Verb.Done,
			p.ExpiryTime.UTC().Format(time.RFC3339))
	}
	c.created = append(c.created, created{name: a.Name, call: p, by: c.who, decision: c.Verb.Decision})
	a.APIVersion, a.Kind = v1alpha1.GroupVersion.String(), kindToolApproval // the client clears both fields
	return c.print(a, fmt.Sprintf("%s was %s by %s", title, c.Verb.Done, c.who))
}

// title names a call in messages.
func (c *pendingCalls) title(p v1alpha1.PendingApproval) string {
	return fmt.Sprintf("call %s (%s) of Turn %s/%s", termsafe.Line(p.CallID, output.LongestID),
		termsafe.Line(p.Name, output.LongestID), c.turn.Namespace, c.turn.Name)
}

// print prints a ToolApproval, or line in the text format. In YAML, each ToolApproval is a document of its own, because
// one document cannot have the same keys twice.
func (c *pendingCalls) print(a *v1alpha1.ToolApproval, line string) error {
	if c.Output == output.YAML && c.printed > 0 {
		if err := c.Env.Print("---\n"); err != nil {
			return err
		}
	}
	c.printed++
	return output.PrintObject(c.Env, a, toolApprovals, line, c.Output)
}

const (
	kindToolApproval = "ToolApproval"
	// toolApprovals is the resource, as kubectl names it.
	toolApprovals = "toolapproval.capstan.dev"
)

// approval returns the ToolApproval with the decision. Its name does not depend on the user or the decision, so that
// only the first decision can be created. unused is the number of earlier decisions that the Turn does not use.
func (c *pendingCalls) approval(p v1alpha1.PendingApproval, unused int) *v1alpha1.ToolApproval {
	const digits, longest = 16, 253
	key := fmt.Sprintf("%s/%s", c.turn.UID, requestKey(p))
	if unused > 0 {
		key += fmt.Sprintf("/%d", unused)
	}
	name := c.turn.Name[:min(len(c.turn.Name), longest-digits-1)]
	return &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.turn.Namespace, Name: strings.TrimRight(name, "-.") + "-" + canonical.Sum([]byte(key))[:digits],
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: cluster.TurnKind, Name: c.turn.Name, UID: c.turn.UID,
			}},
		},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: c.turn.Name}, TurnUID: string(c.turn.UID), RequestID: p.RequestID,
			Step: p.Step, CallID: p.CallID, ToolName: p.Name, ToolServerUID: p.ToolServerUID, SchemaHash: p.SchemaHash,
			ArgumentsHash: p.ArgumentsHash,
			Decision:      c.Verb.Decision, Reason: c.Reason, DecidedBy: c.who, DecidedByGroups: c.groups,
		},
	}
}

// reportEarlier reports an earlier decision about the same call. It returns an error if that decision is
// different, or if the Turn does not use it.
func (c *pendingCalls) reportEarlier(ctx context.Context, a *v1alpha1.ToolApproval, title string) error {
	var before v1alpha1.ToolApproval
	if err := c.api.Get(ctx, client.ObjectKeyFromObject(a), &before); err != nil {
		return fmt.Errorf("there is already a decision about the %s; failed to read it: %w", title, err)
	}
	message := fmt.Sprintf("%s was already %s by %s at %s", title, strings.ToLower(string(before.Spec.Decision)),
		termsafe.Line(before.Spec.DecidedBy, output.LongestID), before.CreationTimestamp.UTC().Format("2006-01-02T15:04:05Z"))
	if before.Spec.Reason != "" {
		message += ": " + termsafe.Line(before.Spec.Reason, longestReason)
	}
	if why := cmp.Or(unusedReason(c.turn, before.Name), leftOutReason(c.turn)); why != "" {
		return fmt.Errorf("%s, but the Turn does not use this decision: %s; delete it with kubectl delete %s %s "+
			"-n %s, and then decide again", message, why, toolApprovals, before.Name, before.Namespace)
	}
	if before.Spec.Decision != c.Verb.Decision {
		return errors.New(message)
	}
	before.APIVersion, before.Kind = v1alpha1.GroupVersion.String(), kindToolApproval
	return c.print(&before, message)
}
