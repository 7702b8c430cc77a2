package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/records"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const feedbackHelp = `feedback stores what you think of the answer of a Turn: a score from 0 to 1, and a comment. The record of the Turn
keeps the score, even after the Turn was deleted, and the comment as long as the Turn exists. If no Turn has the name
any more, a score is about the newest deleted one, and the output says so. The manager redacts the comment by the rules
of the Turn's Agent. You have one feedback for each Turn: a new one replaces it. capstan decisions
-o json prints the feedback of all people with their names. capstan backtest --feedback expects that answers with a good
score do not get worse, and that answers with a bad score change.

In a cluster, feedback requires create on turns/feedback, which the ClusterRole with the label
capstan.dev/role=turn-author grants. Unless you set --server, it also requires the permissions for the forwarded port
(see capstan logs), which this ClusterRole does not include. With --data-dir, the feedback is stored with the Turns that
capstan run keeps in that directory, under the name of your user on this machine.

The feedback is stored under the name of the token's user. If your kubeconfig has a client certificate instead of a
token, set --token or --service-account. All people who use the same ServiceAccount share one feedback for each Turn.

Exit codes:
  0    the feedback is stored
  1    the feedback could not be stored
  2    the flags are invalid, or the kubeconfig cannot be read
  130  interrupted`

func newFeedback(env terminal.Environment) *cobra.Command {
	o := &records.Feedback{Options: records.Options{Env: env}}
	cmd := &cobra.Command{
		Use: "feedback TURN --score SCORE", Short: "Score the answer of a Turn", Args: oneTurn, Long: feedbackHelp,
		Example: `  # praise an answer
  capstan feedback open-loops -n helpdesk --score 1

  # say what is wrong with it
  capstan feedback open-loops -n helpdesk --score 0.2 --comment "the price is that of last year"

  # score an answer of capstan run
  capstan feedback open-loops --data-dir data --score 0.9`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.Run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.Namespace, "namespace", "n", "",
		"namespace of the Turn; default: the namespace of the kubeconfig's context, or default if no kubeconfig is read")
	f.StringVar(&o.Score, "score", "", "score from 0 (bad) to 1 (good), with at most four digits after the point")
	f.StringVar(&o.DataDir, "data-dir", "", "score a Turn that capstan run keeps in this directory, instead of one in a cluster")
	f.StringVar(&o.Comment, "comment", "", "comment of at most 2048 bytes")
	addDoneOutput(cmd, &o.Options)
	addManagerFlags(f, &o.Cluster)
	// Other commands have a default ServiceAccount for users with a client certificate. Here, all of these users would
	// share one feedback, so there is no default.
	addServiceAccountFlag(f, &o.Cluster, "", "under whose name the feedback is stored", "default: none")
	cobra.CheckErr(cmd.MarkFlagRequired("score"))
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	for _, flag := range clusterFlagNames {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
	for _, flag := range []string{"namespace", "score", "comment"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	return cmd
}
