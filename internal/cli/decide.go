package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/decisions"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const decideHelp = `%[1]s shows the pending tool calls of a Turn in a cluster with their arguments, asks for confirmation,
and creates a ToolApproval for each call that is %[2]s. %[3]s

%[1]s reads the arguments from the Turn's journal, as capstan logs does. Their hash must match the hash in
the Turn's status, and the decision applies to exactly these arguments. Line feeds within texts and
invisible characters are shown as escapes.

You decide as the user of your kubeconfig or --token. %[1]s requires get on turns, create on toolapprovals
and, for the arguments, get on turns/log. The ClusterRole with the label capstan.dev/role=approver grants
these permissions. Unless you set --server, you also need the permissions for the forwarded port (see
capstan logs) to read the arguments. This ClusterRole does not include them.

If several calls are pending, %[1]s asks about them one by one, or with --all about all together. Without
a terminal, -y replaces the confirmation, and --call or --all must select the calls if there are several.
%[4]s

%[1]s then waits until the Turn's status shows who decided, for at most --wait-seconds. After this time it
prints a note, and the exit code is 0, because the Turn may still use the decision. A Turn does not use a
decision that the API server has not verified, such as one made in the first 5 seconds after Capstan was
installed. It also does not use a decision that was made too late, or after another decision. %[1]s then prints
the reason and fails. If the call is still pending, remove the cause, and run the command again.

Exit codes:
  0    the calls are %[2]s
  1    at least one call is not %[2]s, the Turn does not use a decision, or no call is pending
  2    the flags are invalid, or the kubeconfig cannot be read
  130  interrupted`

const decideExamples = `  # review the pending call, and decide
  capstan %[1]s close-tickets -n helpdesk

  # give a reason for the model and the record
  capstan %[1]s close-tickets --reason "as agreed on Monday"

  # decide about one of several calls
  capstan %[1]s close-tickets --call call_2

  # decide about all calls without confirmation
  capstan %[1]s close-tickets --all -y -o name`

// decisionEffects describes for each decision how the Turn continues. unreadArguments describes how the command behaves
// if the arguments of a call cannot be read. The help texts contain both.
var (
	decisionEffects = map[v1alpha1.ApprovalDecision]string{
		v1alpha1.ApprovalApproved: "The Turn then continues and makes the calls.",
		v1alpha1.ApprovalDenied:   "The Turn then continues without the calls, and the model learns that they were denied.",
	}
	unreadArguments = map[v1alpha1.ApprovalDecision]string{
		v1alpha1.ApprovalApproved: "If the arguments of a call cannot be read, it is approved only with --without-arguments.",
		v1alpha1.ApprovalDenied:   "A denial does not need the arguments: a call is denied even if they cannot be read.",
	}
)

func newDecide(env terminal.Environment, v decisions.Verb, short string) *cobra.Command {
	d := &decisions.Options{Env: env, Verb: v, Output: output.Text}
	cmd := &cobra.Command{
		Use: v.Name + " TURN", Short: short, Args: oneTurn,
		Long:    fmt.Sprintf(decideHelp, v.Name, v.Done, decisionEffects[v.Decision], unreadArguments[v.Decision]),
		Example: fmt.Sprintf(decideExamples, v.Name),
		RunE:    func(cmd *cobra.Command, args []string) error { return d.Run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&d.Namespace, "namespace", "n", "",
		"namespace of the Turn; default: the namespace of the kubeconfig's context, or else default")
	f.StringVar(&d.Call, "call", "", "`ID` of the only call to decide about; default: all pending calls, one by one")
	f.BoolVar(&d.All, "all", false, "decide about all pending calls together")
	f.StringVar(&d.Reason, "reason", "", "reason for the model and the record; at most 1024 characters")
	f.BoolVarP(&d.Yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&d.WithoutArguments, "without-arguments", false, "decide even if the arguments cannot be read, by their hash alone")
	f.IntVar(&d.WaitSeconds, "wait-seconds", 10, "time to wait until the Turn uses the decisions, in seconds, from 0 to 3600")
	f.VarP(objectOutput{formatValue{&d.Output}}, "output", "o", "output format")
	addClusterFlags(f, &d.Cluster)
	cmd.MarkFlagsMutuallyExclusive("call", "all")
	completeObjects(cmd)
	for _, flag := range []string{"call", "reason"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	cmd.ValidArgsFunction = completeTurns(func(ctx context.Context) ([]string, error) {
		return d.Cluster.TurnNames(ctx, d.Namespace, func(t *v1alpha1.Turn) bool { return len(t.Status.PendingApprovals) > 0 })
	})
	return cmd
}
