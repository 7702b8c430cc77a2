package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/cli/undo"
)

const undoHelp = `undo undoes the tool calls of a Turn that has ended: it runs the compensations that the ToolServers declared
for the called tools. It shows the plan, asks for confirmation, and creates a Turn that makes the
compensating calls, in the reverse order of the calls to undo. No model is asked. A call is undone at most
once.

Each compensation requires approval, even for tools that the Agent does not list in requireApproval. In a
cluster, the Agent's approval settings (such as forbidRequester) apply. The first compensation that does not
succeed ends the Turn. The calls that were made earlier are then not undone. Run undo again to continue, or
select calls with --call. Calls that --call does not select count as not undone.

In a cluster, undo requires create and get on turns, and the permissions of capstan logs. If the policy for
the use of Agents is installed, it also requires use on the Agent. It waits for the end of the new Turn, for
at most --wait-seconds. With --data-dir, it undoes a Turn of capstan run on this machine, with the manifests of
-f, and asks about each call, unless --approve is all or none. Objects that do not name a namespace are in the
namespace of the Turn. If TURN is NAMESPACE/NAME, -n can name another namespace for these objects.

-o json and -o yaml print the new Turn. If no call can be undone, they print the calls with the reasons, as with
--dry-run.

Exit codes:
  0    all calls that may have changed something are undone, or no call has changed anything;
       with --wait-seconds 0: the Turn that undoes them was created; with --dry-run: the plan was printed
  1    at least one call is not undone, selected or not; the output shows the reason for each
  2    the flags are invalid, or manifests or the kubeconfig cannot be read
  3    a compensation requires approval
  130  interrupted`

func newUndo(env terminal.Environment) *cobra.Command {
	o := &undo.Options{
		Source: journals.Source{Env: env}, Output: output.Text,
		Local: &localrun.Options{Source: &bundle.Source{Env: env}, Approve: localrun.ApproveAsk, Output: output.Text},
	}
	cmd := &cobra.Command{
		Use: "undo TURN", Short: "Undo the tool calls of a Turn", Long: undoHelp, Args: oneTurn,
		Example: `  # show what can be undone, without doing it
  capstan undo open-tickets -n helpdesk --dry-run

  # undo all calls
  capstan undo open-tickets -n helpdesk

  # undo one call, without confirmation
  capstan undo open-tickets -n helpdesk --call call_2 --yes

  # undo a Turn of capstan run
  capstan undo open-tickets --data-dir data -f examples/compensation`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.Run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	addTurnFlags(cmd, &o.Source)
	f.StringArrayVar(&o.Calls, "call", nil, "`ID` of a call to undo; may be repeated; default: all calls")
	f.BoolVar(&o.DryRun, "dry-run", false, "show what can be undone, and do nothing")
	f.BoolVarP(&o.Yes, "yes", "y", false, "do not ask for confirmation")
	f.IntVar(&o.WaitSeconds, "wait-seconds", 600, "time to wait for the end of the new Turn, in seconds, from 0 to 3600; 0: do not wait")
	f.VarP(formatValue{&o.Output}, "output", "o", "output format")
	f.StringArrayVarP(&o.Local.Files, "filename", "f", nil,
		"with --data-dir: file or directory of manifests, or - for standard input; may be repeated")
	f.StringArrayVar(&o.Local.EnvSecrets, "env-secret", nil,
		"with --data-dir: set a Secret's key from an environment variable, as [NAMESPACE/]NAME/KEY=ENVVAR; may be repeated")
	f.Var(approvalValue{&o.Local.Approve}, "approve", "with --data-dir: decision about the compensations")
	for flag, complete := range map[string]cobra.CompletionFunc{
		"call": cobra.NoFileCompletions, "wait-seconds": cobra.NoFileCompletions, "env-secret": cobra.NoFileCompletions,
		"output":  cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp),
		"approve": cobra.FixedCompletions(approvalModes, cobra.ShellCompDirectiveNoFileComp),
	} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, complete))
	}
	return cmd
}
