// Package cli is Capstan's command line. It reads manifests and runs the operator's own engine on them, without a
// cluster: prompts and records are the same as in a cluster.
package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/decisions"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/render"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const exitCodesHelp = `Exit codes:
  0    the Turn succeeded, or was prepared
  1    the Turn did not succeed, or could not be prepared
  2    the flags are wrong, or manifests cannot be read or are invalid
  3    a tool call requires approval, and there is no terminal at which to ask
  130  interrupted`

// Execute runs the command line, prints errors to Err and returns the exit code. The end of ctx has the effect of
// Ctrl-C.
func Execute(ctx context.Context, env terminal.Environment, args []string) int {
	root := Command(env)                      //nolint:contextcheck // because cobra hands the context to the commands
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would then use the arguments of the process
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.OK
	}
	if errors.Is(err, render.ErrDiffer) {
		return exit.Differs
	}
	code, message := explain(err)
	if code == exit.Usage && !isProblemOfInput(err) {
		message += fmt.Sprintf("\nRun '%s --help' for usage.", ran.CommandPath())
	}
	if code == exit.Usage && compares(ran, args) {
		code = exit.Failed
	}
	env.Tell("%s: %s", root.DisplayName(), message)
	return code
}

// compares reports whether the user asked for a comparison. It searches the arguments themselves, because cobra
// does not parse all flags if one of them is wrong.
func compares(ran *cobra.Command, args []string) bool {
	return ran.Flags().Lookup(diffFlag) != nil && slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--"+diffFlag || strings.HasPrefix(arg, "--"+diffFlag+"=")
	})
}

// Command returns the root command. The command prints no errors; Execute does.
func Command(env terminal.Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "capstan",
		Short: "Render and run the Turns of LLM agents, and read their journals",
		Long: `capstan runs Capstan's engine without a cluster. It reads the manifests that a cluster would get, checks
them as a cluster would, and makes the same prompts, answers and records.

With and without a cluster, capstan prints the journals of Turns: logs for people, export for programs.
In a cluster it approves and denies tool calls, and cancels Turns. It undoes tool calls in both.

With and without a cluster, capstan also prints what remains of each Turn: decisions lists the Turns that
have ended, and usage adds up their tokens and costs.

` + exitCodesHelp + `

With --diff, render has other exit codes: see its help.`,
		Example: `  # show the messages that the model would receive
  capstan render -f examples/quickstart

  # run the Turn
  capstan run -f examples/quickstart

  # follow a Turn in the cluster
  capstan logs -n helpdesk open-loops -f

  # review its pending tool call, and decide
  capstan approve -n helpdesk open-loops`,
		Version: env.Version, SilenceErrors: true, SilenceUsage: true,
	}
	if plugin, ok := strings.CutPrefix(env.Program, "kubectl-"); ok {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl " + plugin}
	}
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetVersionTemplate("capstan {{ .Version }}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRender(env), newRun(env), newEval(env), newReplay(env), newBacktest(env), newLogs(env), newExport(env),
		newDecide(env, decisions.Approve, "Approve the pending tool calls of a Turn"),
		newDecide(env, decisions.Deny, "Deny the pending tool calls of a Turn"), newCancel(env), newUndo(env),
		newDecisions(env), newUsage(env), newFeedback(env), newMemory(env), newPrices(env), newVersion(env))
	return root
}

func newVersion(env terminal.Environment) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  capstan version",
		RunE: func(*cobra.Command, []string) error {
			return env.Print("capstan " + env.Version + "\n")
		},
	}
}
