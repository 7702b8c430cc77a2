// Package decisions shows the pending tool calls of a Turn of a cluster, and creates ToolApprovals for them.
package decisions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Verb is one of the two commands that decide about calls: approve or deny.
type Verb struct {
	// Name is the name of the command, such as approve, and Done its past participle, such as approved.
	Name, Done string
	Decision   v1alpha1.ApprovalDecision
}

// The verbs of the two commands.
var (
	Approve = Verb{"approve", "approved", v1alpha1.ApprovalApproved}
	Deny    = Verb{"deny", "denied", v1alpha1.ApprovalDenied}
)

// Options holds the flags of capstan approve and capstan deny.
type Options struct {
	Env  terminal.Environment
	Verb Verb
	// Namespace is the namespace of the Turn. If it is empty, the namespace of the kubeconfig's context is used.
	Namespace string
	Cluster   journals.ClusterFlags
	// Call is the ID of the only call to decide about. If it is empty, all pending calls are selected.
	Call string
	// All asks one question about all pending calls, instead of one about each. Yes asks no question.
	All, Yes bool
	// WithoutArguments approves calls even if their arguments cannot be read.
	WithoutArguments bool
	// Reason is stored with the decision. It has at most 1024 characters.
	Reason string
	// WaitSeconds is the maximum time to wait, in seconds, until the Turn uses the decisions, or its status says that
	// it does not use them.
	WaitSeconds int
	// Output is text, json, yaml or name.
	Output output.Format
}

// Run decides about pending calls of a Turn, given as NAME or NAMESPACE/NAME. It returns an error if one of the
// selected calls does not get this decision, or if the status of the Turn says that it does not use the decision.
func (d *Options) Run(ctx context.Context, turn string) error {
	if n := len([]rune(d.Reason)); n > longestReason {
		return fmt.Errorf("--reason has %d characters: it must have at most %d", n, longestReason)
	}
	if err := cluster.CheckWaitSeconds(d.WaitSeconds); err != nil {
		return err
	}
	watched, release := exit.Watch(ctx)
	defer release()
	c, err := d.open(watched, turn)
	if err != nil {
		return exit.InterruptedOr(watched, err)
	}
	return exit.InterruptedOr(watched, c.decide(watched))
}

// longestReason is the maximum length of a decision's reason, in characters.
const longestReason = 1024

// open gets the Turn, selects the pending calls and finds out who the user is.
func (d *Options) open(ctx context.Context, turn string) (*pendingCalls, error) {
	namespace, name, err := cluster.SplitName(turn, d.Namespace)
	if err != nil {
		return nil, err
	}
	config, namespace, err := d.Cluster.Config(namespace)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	api, err := cluster.NewClient(ctx, d.Cluster.Identity(config))
	if err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	t, err := cluster.GetTurn(ctx, api, namespace, name)
	if err != nil {
		return nil, err
	}
	calls, err := d.selected(t)
	if err != nil {
		return nil, err
	}
	who, err := cluster.WhoAmI(ctx, api)
	if err != nil {
		return nil, err
	}
	c := &pendingCalls{Options: d, api: api, turn: t, calls: calls, who: who.Username}
	return c, c.checkRules(ctx, who)
}

// selected returns the pending calls that the flags select.
func (d *Options) selected(t *v1alpha1.Turn) ([]v1alpha1.PendingApproval, error) {
	title := t.Namespace + "/" + t.Name
	pending := t.Status.PendingApprovals
	if len(pending) == 0 {
		return nil, exit.WithCode(exit.Failed, fmt.Errorf("%s %s has no pending call: %s", cluster.TurnKind, title, state(t)))
	}
	if !d.Yes && !d.Env.CanAsk() {
		return nil, errors.New("there is no terminal at which to ask: review the call with capstan logs, and then add -y")
	}
	if d.Call != "" {
		var found []v1alpha1.PendingApproval
		for _, p := range pending {
			if p.CallID == d.Call {
				found = append(found, p)
			}
		}
		if len(found) == 0 {
			return nil, exit.WithCode(exit.Failed, fmt.Errorf("--call: Turn %s has no pending call %q; its pending calls are %s",
				title, d.Call, callsOf(pending)))
		}
		return found, nil
	}
	if len(pending) > 1 && d.Yes && !d.All {
		return nil, fmt.Errorf("turn %s has %d pending calls: select one with --call, or all with --all: %s", title,
			len(pending), callsOf(pending))
	}
	return pending, nil
}

// state describes the state of a Turn in a few words.
func state(t *v1alpha1.Turn) string {
	if t.IsFinished() {
		return fmt.Sprintf("it has ended (%s)", cmp.Or(t.StateReason(), "without a reason"))
	}
	if children := t.Status.AwaitedTurns; len(children) > 0 && t.StateReason() == v1alpha1.TurnReasonWaitingForSubAgent {
		return "it waits for its sub-agents, which may have pending calls: see " + strings.Join(children, ", ")
	}
	return fmt.Sprintf("its state is %s", cmp.Or(t.StateReason(), "not known yet: the controller has not handled it"))
}

// callsOf returns the IDs and tool names of calls, as a list for messages.
func callsOf(pending []v1alpha1.PendingApproval) string {
	all := make([]string, 0, len(pending))
	for _, p := range pending {
		all = append(all, fmt.Sprintf("%s (%s)", termsafe.Line(p.CallID, output.LongestID), termsafe.Line(p.Name, output.LongestID)))
	}
	return strings.Join(all, ", ")
}
