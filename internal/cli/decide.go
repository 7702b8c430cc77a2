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
	"github.com/capstan-dev/capstan/internal/screen"
)

// verb is one of the two commands that decide about calls.
type verb struct {
	name, done string
	decision   v1alpha1.ApprovalDecision
	short      string
}

// The verbs.
var (
	approving = verb{"approve", "approved", v1alpha1.ApprovalApproved, "Approve calls of tools that a Turn waits for"}
	denying   = verb{"deny", "denied", v1alpha1.ApprovalDenied, "Deny calls of tools that a Turn waits for"}
)

const decideHelp = `%[1]s shows the calls of tools that a Turn of a cluster waits for, with their arguments, asks, and creates a ToolApproval that says
they are %[2]s. %[3]s

The arguments are read from the Turn's journal, as capstan logs does it, and must be those whose hash the Turn's status has: the
decision holds for these and no others. Line feeds within texts, and all that a screen does not show, are written out.

Who decides is whom the API server takes you for, by your kubeconfig or by --token. It takes get on turns and on turns/log and create
on toolapprovals, as the ClusterRole with the label capstan.dev/role=approver gives, and for the arguments what capstan logs needs beside.

Several calls are asked for one by one, or with --all at once. Without a terminal, -y stands for the reply, and --call or --all
says which call where there are several. Where the arguments cannot be read a call is approved only with --without-arguments.

Exit codes:
  0    the calls are %[2]s
  1    at least one is not
  2    the flags are wrong
  130  interrupted`

const decideExamples = `  # look at the call that the Turn waits for, and decide
  capstan %[1]s close-tickets -n helpdesk

  # say why: the model is told, and the record keeps it
  capstan %[1]s close-tickets --reason "as agreed on Monday"

  # one of several calls
  capstan %[1]s close-tickets --call call_2

  # all of them, without being asked
  capstan %[1]s close-tickets --all -y -o name`

// effects of the decisions, as the help has them.
var decisionEffects = map[v1alpha1.ApprovalDecision]string{
	v1alpha1.ApprovalApproved: "The Turn then goes on and makes them.",
	v1alpha1.ApprovalDenied:   "The Turn then goes on without them, and the model is told that they were denied.",
}

// decider holds the flags of approve and deny.
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
	f.StringVarP(&d.namespace, "namespace", "n", "", "namespace of the Turn; default: that of the kubeconfig's context, else default")
	f.StringVar(&d.call, "call", "", "`ID` of the one call to decide about; default: all that wait, one by one")
	f.BoolVar(&d.all, "all", false, "decide about all calls that wait at once")
	f.StringVar(&d.reason, "reason", "", "why, for the model and the record; at most 1024 characters")
	f.BoolVarP(&d.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&d.unseen, "without-arguments", false, "decide also where the arguments cannot be read, by their hash alone")
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

// longestReason is how many characters the reason of a decision may have.
const longestReason = 1024

// open looks at the Turn and finds out who decides.
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
	calls, err := d.chosen(t)
	if err != nil {
		return nil, err
	}
	who, err := whoAmI(ctx, api)
	if err != nil {
		return nil, err
	}
	return &decisions{decider: d, api: api, turn: t, calls: calls, who: who}, nil
}

// chosen are the calls that the flags name, of those that wait.
func (d *decider) chosen(t *v1alpha1.Turn) ([]v1alpha1.PendingApproval, error) {
	title := t.Namespace + "/" + t.Name
	pending := t.Status.PendingApprovals
	if len(pending) == 0 {
		return nil, fail(ExitFailed, fmt.Errorf("%s %s awaits no approval: %s", kindTurn, title, state(t)))
	}
	if d.call != "" {
		var found []v1alpha1.PendingApproval
		for _, p := range pending {
			if p.CallID == d.call {
				found = append(found, p)
			}
		}
		if len(found) == 0 {
			return nil, fail(ExitFailed, fmt.Errorf("--call: Turn %s awaits no approval of a call %q: it waits for %s", title, d.call, callsOf(pending)))
		}
		return found, nil
	}
	if len(pending) > 1 && d.yes && !d.all {
		return nil, fmt.Errorf("turn %s awaits approval of %d calls: say with --call which one, or take them --all: %s", title, len(pending), callsOf(pending))
	}
	if !d.yes && !d.env.canAsk() {
		return nil, errors.New("there is no terminal to ask at: look at the call with capstan logs, and then say -y")
	}
	return pending, nil
}

// state says in a few words where a Turn is.
func state(t *v1alpha1.Turn) string {
	if t.IsFinished() {
		return fmt.Sprintf("it has ended (%s)", cmp.Or(t.StateReason(), "without a reason"))
	}
	if children := t.Status.AwaitedTurns; len(children) > 0 && t.StateReason() == v1alpha1.TurnReasonWaitingForSubAgent {
		return "it waits for its sub-agents, which may need one: look at " + strings.Join(children, ", ")
	}
	return fmt.Sprintf("its state is %s", cmp.Or(t.StateReason(), "not known yet: nobody has looked at it"))
}

// callsOf lists calls.
func callsOf(pending []v1alpha1.PendingApproval) string {
	all := make([]string, 0, len(pending))
	for _, p := range pending {
		all = append(all, fmt.Sprintf("%s (%s)", screen.Line(p.CallID, longestID), screen.Line(p.Name, longestID)))
	}
	return strings.Join(all, ", ")
}

// objectOutput is the value of -o of commands that print objects.
type objectOutput struct{ *outputFormat }

// outputName prints the kind and the name of an object.
const outputName outputFormat = "name"

// objectFormats are the values of objectOutput.
var objectFormats = []string{string(outputText), string(outputJSON), string(outputYAML), string(outputName)}

// Type names the values in help texts.
func (objectOutput) Type() string { return strings.Join(objectFormats, "|") }

// Set takes a value of the command line.
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

// completeObjects registers what shells may complete for commands that print objects.
func completeObjects(cmd *cobra.Command) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(objectFormats, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
}

// completion lists the Turns of the cluster that are wanted. Where that fails it lists none: the command itself says why.
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

// printObject prints an object, or for people a line.
func (e Environment) printObject(o metav1.Object, resource, line string, format outputFormat) error {
	switch format {
	case outputText:
		return e.print(screen.Safe(line) + "\n")
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
