package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const logsHelp = `logs prints the journal of a Turn: the user's message, each step of the model with its tokens, cost and
duration, each tool call with its result or the reason why it has none, failures and retries, and the
end. It does not print the system prompt: see capstan render.

In a cluster, logs reads the journal from the manager, through a port that is forwarded to the Pod of
the Turn's executor, or at the address in --server. The bearer token of your kubeconfig or --token
authenticates you. If your kubeconfig has a client certificate instead of a token, logs creates a token
for --service-account, which is valid for ten minutes. If a plug-in of the kubeconfig returns the
certificate, pass --token.

logs requires get on turns/log, which the ClusterRole with the label capstan.dev/role=turn-reader grants.
The forwarded port also requires get on turns, which this ClusterRole grants too, and in the manager's
namespace list on leases, and get and create on pods/portforward.

With --data-dir, logs reads a journal that capstan run keeps in this directory.

With -f, logs waits for new entries until the Turn has ended, even if the Turn moves to another executor.
On a terminal, standard error shows the current activity while logs waits. If you have permission to get
the Turn, standard error also shows why the Turn waits, for example for a ModelProvider. The Turn of a
sub-agent has its own journal; the line of the call contains the name of that Turn.

If an output was too long for the model, logs prints the part that the model received. Below this part,
logs prints the name of the artifact with the whole output: pass it to --artifact.

Each line of content begins with "| ", and control characters are shown as escapes such as \u001b. -o json
prints the complete entries as JSON lines.

`

const logsExitCodes = `Exit codes:
  0    the journal was read
  1    the journal could not be read
  2    the flags are invalid, or the kubeconfig cannot be read
  130  interrupted`

const logsExamples = `  # show what a Turn did
  capstan logs open-loops -n helpdesk

  # follow a Turn
  capstan logs -f open-loops

  # print the whole output of a call if the model received only a part of it
  capstan logs open-loops --artifact call-2-1

  # use the permissions of a ServiceAccount
  capstan logs open-loops --token "$(kubectl create token auditor)"

  # read from the Service of the read API
  capstan logs open-loops --server https://capstan.example

  # read a journal that capstan run has kept
  capstan logs open-loops --data-dir data`

func newLogs(env terminal.Environment) *cobra.Command {
	l := &journals.Logs{Source: journals.Source{Env: env}, Output: output.Text}
	cmd := &cobra.Command{
		Use: "logs TURN [-f]", Short: "Print what a Turn did, step by step", Long: logsHelp + logsExitCodes, Example: logsExamples,
		Args: oneTurn,
		RunE: func(cmd *cobra.Command, args []string) error { return l.Run(cmd.Context(), args[0]) },
	}
	addJournalFlags(cmd, &l.Source, &l.Artifact)
	cmd.Flags().BoolVarP(&l.Follow, "follow", "f", false, "wait for new entries until the Turn has ended")
	cmd.Flags().VarP(textOrJSON{formatValue{&l.Output}}, "output", "o", "output format")
	cmd.MarkFlagsMutuallyExclusive("artifact", "follow")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}
