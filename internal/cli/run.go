package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

func newRun(env terminal.Environment) *cobra.Command {
	r := &localrun.Options{Source: &bundle.Source{Env: env}, Approve: localrun.ApproveAsk, Output: output.Text}
	cmd := &cobra.Command{
		Use:   "run -f PATH... [--turn NAME]",
		Short: "Run a Turn here, without a cluster",
		Long: `run runs a Turn from manifests on this machine, with the same objects, the same engine and the same
journal as in a cluster. It prints the whole answer to standard output, and everything else to standard
error. -o json and -o yaml print the finished Turn instead, whose status contains the first 32 KiB of the
answer. spec.ttlSecondsAfterFinished has no effect here.

Keys come from Secrets in the manifests, or with --env-secret from the environment. They are never
printed or stored.

With --data-dir, run keeps the journal. If you run the same Turn again with the same manifests, skills and
--now, it continues where it stopped, or shows its result again, without paying twice for the same replies.
It becomes a new Turn if there is a change in its spec, in the spec of its Agent, a sub-agent, or one of
their PromptProfiles, ToolServers and ModelProviders (those in spec.models, spec.embeddings and
spec.memory.learning.models), in a value from a ConfigMap, in an attached file, in --skills-file or in the
subject of the Session. Secrets, desiredState and ttlSecondsAfterFinished do not count. To end a Turn that
waits or was interrupted, set its desiredState to Cancelled and run it again: it then asks no model and calls
no tool. This also ends earlier Turns of this name that have other manifests or flags and have not ended.
Only one run at a time may use a directory. capstan logs shows what a Turn did, even while it runs.

The Turns of a Session run one after another, and each sees the earlier messages. While a Turn that has begun
has not ended, run starts no other Turn of its Session. If the manifests do not contain the Session, run
creates it. A Session with the same name keeps its history, even if it changes.

--attach NAME=FILE attaches an image (PNG, JPEG, WebP, GIF), a PDF or a text to the Turn. Its type is taken from
the content; the extension of the file name only says which kind of text it is. An attachment with an
artifactRef is read from the journals of --data-dir.

Tools come from the ToolServers in the manifests, which may be on this machine. Sub-agents run here, too.
If a tool call requires approval, run shows the call and asks, if standard input and standard error are
terminals. Otherwise, the Turn waits (exit code 3), and continues when the same command with the same
--data-dir runs at a terminal. --approve=all approves all such calls, --approve=none denies them.

Standard error shows each request, reply and call on its own line as it happens, and on a terminal also
the current activity. --quiet hides these lines and the activity.

While the journal cannot be written, for example because the disk is full, run sends no request and makes no
call. At a terminal, it waits until the journal works again; elsewhere, it waits 10 seconds. If it then stops,
or if Ctrl-C stops it, it still prints an answer that the model has given, and warns that the journal lacks it.

Ctrl-C stops the run immediately. A second Ctrl-C kills the program.

` + exitCodesHelp,
		Example: `  # start a fake model server in another terminal
  go run ./test/fakemodel --listen 127.0.0.1:8089 --rules test/fakemodel/rules.yaml

  # run the only Turn of these manifests
  capstan run -f examples/quickstart

  # take a key from the environment, and print the finished Turn as YAML
  MODEL_KEY=demo-key capstan run -f examples/quickstart --env-secret demo-model/apiKey=MODEL_KEY -o yaml

  # use the skills that the manager offers to every Agent
  capstan run -f examples/quickstart --skills-file skills.yaml

  # attach a file to the Turn
  capstan run -f examples/quickstart --attach notes=README.md

  # keep the journal, so that the Turn can continue after an interruption
  capstan run -f examples/quickstart --data-dir data`,
		RunE: func(cmd *cobra.Command, args []string) error { return r.Run(cmd.Context(), args) },
	}
	addSourceFlags(cmd, r.Source, &r.Output)
	f := cmd.Flags()
	f.StringArrayVar(&r.EnvSecrets, "env-secret", nil,
		"set a Secret's key from an environment variable, as [NAMESPACE/]NAME/KEY=ENVVAR; may be repeated")
	f.StringVar(&r.DataDir, "data-dir", "", "directory of the journal, created if necessary; default: keep no journal")
	f.Var(approvalValue{&r.Approve}, "approve", "decision about tool calls that require approval")
	f.BoolVarP(&r.Quiet, "quiet", "q", false, "do not show requests, replies and calls as they happen")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("approve", cobra.FixedCompletions(approvalModes, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("env-secret", cobra.NoFileCompletions))
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	return cmd
}
