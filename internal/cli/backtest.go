package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/evaluation"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/replay"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const backtestHelp = `backtest prepares the last Turns of an Agent again with other manifests, and reports whose prompts change and how.
It asks no model for this, and needs no Secret. Turns whose prompts change in the same way share one diff.

With --replay, backtest also replays these Turns: it asks the models, and answers their calls from the journal as
capstan replay does. It never calls a tool. The judges of the PromptProfile give scores to the recorded answer and
to the new one. A Turn passes if it ends with an answer that every judge accepts. A refusal
counts only if the judge gave the recorded answer a better score, or could not score one of the two answers. The
answers and the judges of --replay cost tokens.

With --feedback, backtest takes the last Turns to which people have given feedback (capstan feedback). With
--replay, answers that people scored below 0.5 must change. For answers that people scored 0.5 or more, no judge
may score the new answer more than 0.1 below the recorded one. In a cluster, --feedback also requires list on
turns/records.

backtest reads the journals of a namespace of a cluster or, with --data-dir, those of capstan run. In a cluster,
it requires list on turns and the permissions of capstan logs.

Standard error shows a line for each Turn. Standard output shows the report: a table, or with -o JSON, JUnit XML,
or Markdown for a comment on a pull request. The report contains texts of the Turns and of their prompts.

Exit codes:
  0    enough Turns passed: at least the share that --threshold names; without --replay, a Turn passes if its
       prompt can be made
  1    too few Turns passed
  2    the flags or the manifests are invalid, or there is no Turn to take
  130  interrupted`

const backtestExamples = `  # keep Turns to replay, with the fake model and its tools in other terminals
  go run ./test/fakemodel --listen 127.0.0.1:8089 --rules test/fakemodel/rules.yaml
  go run ./test/toolserver --listen 127.0.0.1:8090
  capstan run -f examples/backtest/manifests --turn triage-printer --data-dir data

  # report whose prompts change and how
  capstan backtest -f examples/backtest/new-profile.yaml --agent triage --data-dir data --last 100

  # replay the Turns, and compare the answers
  capstan backtest -f examples/backtest/new-profile.yaml --manifests examples/backtest/manifests --agent triage \
    --data-dir data --replay

  # replay the Turns that people have scored
  capstan backtest -f prompts/support.yaml -m manifests -n helpdesk --agent support --feedback --replay

  # report on the Turns of a cluster, for a comment on a pull request
  capstan backtest -f prompts/support.yaml -n helpdesk --agent support --last 100 -o markdown > comment.md`

func newBacktest(env terminal.Environment) *cobra.Command {
	o := &evaluation.BacktestOptions{
		Flags: replay.Flags{Env: env}, Source: journals.Source{Env: env}, Output: evaluation.Text,
	}
	cmd := &cobra.Command{
		Use:   "backtest -f PATH... --agent NAME [--last N] [--replay]",
		Short: "Prepare the last Turns of an Agent again with another prompt, and replay them on request",
		Long:  backtestHelp, Example: backtestExamples,
		Args: noArguments("name manifests with -f or --manifests, and the Agent with --agent"),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.Run(cmd.Context()) },
	}
	addSourceOfTurns(cmd, &o.Source)
	addReplayFlags(cmd, &o.Flags)
	f := cmd.Flags()
	f.StringVar(&o.Agent, "agent", "", "Agent whose Turns are prepared again, as NAME, or as NAMESPACE/NAME for a shared "+
		"Agent of another namespace; required")
	f.IntVar(&o.Last, "last", 100, "number of Turns to take, from 1 to 1000: the newest ones that have ended")
	f.BoolVar(&o.Feedback, "feedback", false,
		"only take Turns to which people have given feedback; answers with bad scores must change")
	f.BoolVar(&o.Replay, "replay", false, "ask the models and the judges, too")
	f.StringVar(&o.Threshold, "threshold", "1", "share of the Turns that must pass, a decimal from 0 to 1")
	f.IntVar(&o.Parallel, "parallel", 4, "number of Turns that are replayed at the same time, from 1 to 32")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "do not show a line for each Turn")
	f.VarP(&o.Output, "output", "o", "format of the report")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(evaluation.Formats, cobra.ShellCompDirectiveNoFileComp)))
	for _, flag := range []string{"agent", "last", "threshold", "parallel"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	return cmd
}
