package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// verb describes one of the two commands that decide about calls, approve and deny.
type verb struct {
	name, done string
	decision   v1alpha1.ApprovalDecision
	short      string
}

var (
	approving = verb{"approve", "approved", v1alpha1.ApprovalApproved, "Approve the pending tool calls of a Turn"}
	denying   = verb{"deny", "denied", v1alpha1.ApprovalDenied, "Deny the pending tool calls of a Turn"}
)

const decideHelp = `%[1]s shows the pending tool calls of a Turn in a cluster with their arguments, asks for confirmation,
and creates a ToolApproval that says they are %[2]s. %[3]s

The arguments come from the Turn's journal, which is read as by capstan logs. Their hash must match the
hash in the Turn's status, and the decision applies to exactly these arguments. Line feeds within texts
and invisible characters are shown as escapes.

You decide as the user whom the API server knows from your kubeconfig or --token. %[1]s requires get on
turns and turns/log, and create on toolapprovals, which the ClusterRole with the label
capstan.dev/role=approver grants. The arguments require the other rights of capstan logs, too.

If several calls are pending, %[1]s asks about them one by one, or with --all about all at once. Without a
terminal, -y replaces the confirmation, and --call or --all must select the calls if there are several.
If the arguments of a call cannot be read, it is approved only with --without-arguments.

Exit codes:
  0    the calls are %[2]s
  1    at least one call is not
  2    the flags are wrong
  130  interrupted`

const decideExamples = `  # review the pending call, and decide
  capstan %[1]s close-tickets -n helpdesk

  # give a reason for the model and the record
  capstan %[1]s close-tickets --reason "as agreed on Monday"

  # decide about one of several calls
  capstan %[1]s close-tickets --call call_2

  # decide about all calls without confirmation
  capstan %[1]s close-tickets --all -y -o name`

// decisionEffects says for each decision what the Turn does next. The help texts contain it.
var decisionEffects = map[v1alpha1.ApprovalDecision]string{
	v1alpha1.ApprovalApproved: "The Turn then continues and makes the calls.",
	v1alpha1.ApprovalDenied:   "The Turn then continues without the calls, and the model learns that they were denied.",
}

// decider holds the flags of capstan approve and capstan deny.
type decider struct {
	env       Environment
	verb      verb
	namespace string
	cluster   clusterFlags
	call      string
	all, yes  bool
	unseen    bool
	reason    string
	output    outputFormat
}

func newDecide(env Environment, v verb) *cobra.Command {
	d := &decider{env: env, verb: v, output: outputText}
	cmd := &cobra.Command{
		Use: v.name + " TURN", Short: v.short, Args: oneTurn,
		Long: fmt.Sprintf(decideHelp, v.name, v.done, decisionEffects[v.decision]), Example: fmt.Sprintf(decideExamples, v.name),
		RunE: func(cmd *cobra.Command, args []string) error { return d.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&d.namespace, "namespace", "n", "",
		"namespace of the Turn; default: the namespace of the kubeconfig's context, or else default")
	f.StringVar(&d.call, "call", "", "`ID` of the only call to decide about; default: all pending calls, one by one")
	f.BoolVar(&d.all, "all", false, "decide about all pending calls at once")
	f.StringVar(&d.reason, "reason", "", "reason for the model and the record; at most 1024 characters")
	f.BoolVarP(&d.yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&d.unseen, "without-arguments", false, "decide even if the arguments cannot be read, by their hash alone")
	f.VarP(objectOutput{&d.output}, "output", "o", "output format")
	d.cluster.addFlags(f)
	cmd.MarkFlagsMutuallyExclusive("call", "all")
	completeObjects(cmd)
	for _, flag := range []string{"call", "reason"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	cmd.ValidArgsFunction = d.cluster.completion(&d.namespace, awaitsApproval)
	return cmd
}

func awaitsApproval(t *v1alpha1.Turn) bool { return len(t.Status.PendingApprovals) > 0 }

func (d *decider) run(ctx context.Context, turn string) error {
	if n := len([]rune(d.reason)); n > longestReason {
		return fmt.Errorf("--reason has %d characters: it must have at most %d", n, longestReason)
	}
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(watched, release)()
	c, err := d.open(watched, turn)
	if err != nil {
		return interruptedOr(watched, err)
	}
	return interruptedOr(watched, c.decide(watched))
}

// longestReason is the maximum length of a decision's reason, in characters.
const longestReason = 1024

// open gets the Turn, selects the pending calls and finds out who the user is.
func (d *decider) open(ctx context.Context, turn string) (*decisions, error) {
	namespace, name, err := splitName(turn, d.namespace)
	if err != nil {
		return nil, err
	}
	config, namespace, err := d.cluster.configOf(namespace)
	if err != nil {
		return nil, fail(ExitUsage, err)
	}
	api, err := apiClient(d.cluster.identity(config))
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	t, err := turnOf(ctx, api, namespace, name)
	if err != nil {
		return nil, err
	}
	calls, err := d.selected(t)
	if err != nil {
		return nil, err
	}
	who, err := whoAmI(ctx, api)
	if err != nil {
		return nil, err
	}
	return &decisions{decider: d, api: api, turn: t, calls: calls, who: who}, nil
}

// selected returns the pending calls that the flags select.
func (d *decider) selected(t *v1alpha1.Turn) ([]v1alpha1.PendingApproval, error) {
	title := t.Namespace + "/" + t.Name
	pending := t.Status.PendingApprovals
	if len(pending) == 0 {
		return nil, fail(ExitFailed, fmt.Errorf("%s %s has no pending call: %s", kindTurn, title, state(t)))
	}
	if d.call != "" {
		var found []v1alpha1.PendingApproval
		for _, p := range pending {
			if p.CallID == d.call {
				found = append(found, p)
			}
		}
		if len(found) == 0 {
			return nil, fail(ExitFailed, fmt.Errorf("--call: Turn %s has no pending call %q; its pending calls are %s",
				title, d.call, callsOf(pending)))
		}
		return found, nil
	}
	if len(pending) > 1 && d.yes && !d.all {
		return nil, fmt.Errorf("turn %s has %d pending calls: select one with --call, or all with --all: %s", title,
			len(pending), callsOf(pending))
	}
	if !d.yes && !d.env.canAsk() {
		return nil, errors.New("there is no terminal at which to ask: review the call with capstan logs, and then add -y")
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
		all = append(all, fmt.Sprintf("%s (%s)", termsafe.Line(p.CallID, longestID), termsafe.Line(p.Name, longestID)))
	}
	return strings.Join(all, ", ")
}

// objectOutput is the value of -o of commands that print an object.
type objectOutput struct{ *outputFormat }

// outputName prints an object as kind/name.
const outputName outputFormat = "name"

// objectFormats lists the values of objectOutput.
var objectFormats = []string{string(outputText), string(outputJSON), string(outputYAML), string(outputName)}

// Type returns the values for help texts.
func (objectOutput) Type() string { return strings.Join(objectFormats, "|") }

// Set parses a value of the command line.
func (f objectOutput) Set(value string) error {
	if value == string(outputName) {
		*f.outputFormat = outputName
		return nil
	}
	if err := f.outputFormat.Set(value); err != nil {
		return errors.New("must be text, json, yaml or name")
	}
	return nil
}

// completeObjects registers shell completions for the flags of commands that print an object.
func completeObjects(cmd *cobra.Command) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(objectFormats, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
}

// completion lists the Turns of the cluster for which wanted returns true. It returns no names if the Turns cannot
// be listed; the command itself reports that error.
func (c *clusterFlags) completion(namespace *string, wanted func(*v1alpha1.Turn) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, err := c.turns(cmd.Context(), *namespace, wanted)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// printObject prints an object in the given format. The text format prints line instead.
func (e Environment) printObject(o metav1.Object, resource, line string, format outputFormat) error {
	switch format {
	case outputText:
		return e.print(termsafe.Safe(line) + "\n")
	case outputName:
		return e.print(resource + "/" + o.GetName() + "\n")
	case outputJSON, outputYAML:
	}
	text, err := encode(o, format)
	if err != nil {
		return fail(ExitFailed, err)
	}
	return e.print(text)
}
