package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/replay"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const replayHelp = `replay prepares a recorded Turn again with other manifests, asks the model, and shows what changes: the prompt,
the answer, the tokens and the cost.

replay never calls a tool. A tool call that the model requests is answered from the journal if the recorded Turn
made the same call: the same tool with the same arguments. Any other call is not made: the model is told so, and
replay lists it.

The request, the time, the history, the facts and the tools stay as they were recorded. -f names the manifests with
the change, for example one PromptProfile. --manifests names the other manifests. To ask a model, replay needs the
Agent, its ModelProviders and their Secrets. With --prompt-only it needs only a PromptProfile: if the Agent is not in
the manifests, the recorded one is used. Objects that do not name a namespace are in the namespace of the Turn.
If TURN is NAMESPACE/NAME, -n can name another namespace for these objects.

The journal is that of a Turn in a cluster or, with --data-dir, of capstan run. In a cluster, replay requires the
permissions of capstan logs. replay writes nothing to the journal or to the cluster.

Exit codes:
  0    the Turn was replayed, or with --prompt-only prepared
  1    the Turn could not be replayed, or the replay ended without an answer
  2    the flags are invalid, or manifests cannot be read or are invalid
  130  interrupted`

const replayExamples = `  # record a Turn to replay (run the first two commands in terminals of their own)
  go run ./test/fakemodel --listen 127.0.0.1:8089 --rules test/fakemodel/rules.yaml
  go run ./test/toolserver --listen 127.0.0.1:8090
  capstan run -f examples/backtest/manifests --turn triage-printer --data-dir data

  # replay it with another PromptProfile
  capstan replay triage-printer --data-dir data -f examples/backtest/new-profile.yaml --manifests examples/backtest/manifests

  # only compare the prompts
  capstan replay triage-printer --data-dir data -f examples/backtest/new-profile.yaml --prompt-only

  # replay a Turn of a cluster with another model
  capstan replay open-loops -n helpdesk --manifests prompts/ --model demo:demo-large`

func newReplay(env terminal.Environment) *cobra.Command {
	o := &replay.Options{Flags: replay.Flags{Env: env}, Source: journals.Source{Env: env}, Output: output.Text}
	cmd := &cobra.Command{
		Use:   "replay TURN [-f PATH...] [--manifests PATH...]",
		Short: "Prepare a recorded Turn again with another prompt or model, and compare the answers",
		Long:  replayHelp, Example: replayExamples, Args: oneTurn,
		RunE: func(cmd *cobra.Command, args []string) error { return o.Run(cmd.Context(), args[0]) },
	}
	addSourceOfTurns(cmd, &o.Source)
	cmd.ValidArgsFunction = completeTurns(o.Source.TurnNames)
	addReplayFlags(cmd, &o.Flags)
	f := cmd.Flags()
	f.StringVar(&o.Source.UID, "uid", "", "with --data-dir: UID of the Turn if several have the same name; default: the newest")
	f.BoolVar(&o.PromptOnly, "prompt-only", false, "compare only the prompts, and ask no model")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "do not show the current activity")
	f.VarP(textOrJSON{formatValue{&o.Output}}, "output", "o", "output format")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// addSourceOfTurns adds the flags that specify where the journals are, for commands that replay Turns.
func addSourceOfTurns(cmd *cobra.Command, j *journals.Source) {
	f := cmd.Flags()
	f.StringVarP(&j.Namespace, "namespace", "n", "",
		"namespace of the Turn, and of objects that do not name one; default: the namespace of the kubeconfig's context, "+
			"or default if no kubeconfig is read")
	f.StringVar(&j.DataDir, "data-dir", "", "read journals that capstan run keeps in this directory, instead of those in a cluster")
	addClusterFlags(f, &j.Cluster)
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
	for _, flag := range clusterFlagNames {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
}

// addReplayFlags adds the flags that say with which manifests, profile, model, Secrets and skills Turns are prepared
// again.
func addReplayFlags(cmd *cobra.Command, s *replay.Flags) {
	f := cmd.Flags()
	f.StringArrayVarP(&s.Files, "filename", "f", nil, "`PATH` of a file or directory of the changed manifests, or -; may be repeated")
	f.StringArrayVarP(&s.Manifests, "manifests", "m", nil,
		"`PATH` of a file or directory of all other manifests; an object that -f also has is taken from -f; may be repeated")
	f.StringVar(&s.Profile, "profile", "",
		"PromptProfile to use; default: the profile that the Agent names; but if -f has exactly one PromptProfile and not the "+
			"Agent, that PromptProfile")
	f.StringVar(&s.Model, "model", "", "model to ask, as MODEL or PROVIDER:MODEL; default: the models of the Agent")
	f.StringArrayVar(&s.EnvSecrets, "env-secret", nil,
		"set a Secret's key from an environment variable, as [NAMESPACE/]NAME/KEY=ENVVAR; may be repeated")
	f.StringVar(&s.SkillsFile, "skills-file", "",
		"`PATH` of a YAML file of skills that every Agent may load; default: the recorded skills")
	for _, flag := range []string{"profile", "model", "env-secret"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	cobra.CheckErr(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
	cobra.CheckErr(cmd.MarkFlagFilename("manifests", "yaml", "yml", "json"))
	cobra.CheckErr(cmd.MarkFlagFilename("skills-file", "yaml", "yml"))
}
