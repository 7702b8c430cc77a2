// Package cli is Capstan's command line. Without a cluster, it reads manifests and runs the operator's own engine on
// them: prompts and journals are the same as in a cluster. In a cluster, it reads journals and decides about calls.
package cli

import (
	"cmp"
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
  0    the Turn succeeded
  1    the Turn did not succeed, or could not run
  2    the flags are invalid, or manifests cannot be read or are invalid
  3    a tool call requires approval, and there is no terminal at which to ask
  130  interrupted`

// Execute runs the command line, prints errors to Err and returns the exit code. If ctx ends, the effect is that of
// Ctrl-C.
func Execute(ctx context.Context, env terminal.Environment, args []string) int {
	root := Command(env)                      //nolint:contextcheck // because cobra hands the context to the commands
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would then use the arguments of the process
	ran, err := root.ExecuteContextC(ctx)
	if out, ok := root.OutOrStdout().(*stdout); ok && err == nil {
		err = out.err
	}
	if err == nil {
		return exit.OK
	}
	if errors.Is(err, render.ErrDiffer) {
		return exit.Differs
	}
	code, message := explain(err)
	if code == exit.Usage && !hasExitCode(err) {
		message += fmt.Sprintf("\nRun '%s --help' for usage.", ran.CommandPath())
	}
	if code == exit.Usage && isComparison(ran, args) {
		code = exit.Failed
	}
	env.Logf("%s: %s", root.DisplayName(), message)
	return code
}

// isComparison reports whether the user asked for a comparison (render --diff). It searches the arguments themselves,
// because cobra does not parse all flags if one of them is invalid.
func isComparison(ran *cobra.Command, args []string) bool {
	return ran.Flags().Lookup(diffFlag) != nil && slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--"+diffFlag || strings.HasPrefix(arg, "--"+diffFlag+"=")
	})
}

// Command returns the root command. The command prints no errors; Execute does.
func Command(env terminal.Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "capstan",
		Short: "Render and run the Turns of LLM agents, and read their journals",
		Long: `capstan runs Capstan's engine without a cluster. It reads and checks manifests as a cluster would, and
makes the same prompts, answers and journals.

In a cluster, capstan approves and denies tool calls, and cancels Turns.

With and without a cluster, 'capstan logs' prints the journals of Turns for people, 'capstan export' prints
them for programs, and 'capstan undo' undoes tool calls. Records of Turns remain after the Turns were
deleted: 'capstan decisions' lists the Turns that have ended, and 'capstan usage' adds up their tokens and
costs.

Commands have their own exit codes: see the help of each command.`,
		Example: `  # show the messages that the model would receive
  capstan render -f examples/quickstart

  # run the Turn
  capstan run -f examples/quickstart

  # follow a Turn in the cluster
  capstan logs -n helpdesk open-loops -f

  # review its pending tool call, and decide
  capstan approve -n helpdesk open-loops`,
		Version: env.Version, SilenceErrors: true, SilenceUsage: true, PersistentPreRunE: checkSelection,
	}
	if plugin, ok := strings.CutPrefix(strings.TrimSuffix(env.Program, ".exe"), "kubectl-"); ok {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl " + plugin}
	}
	root.SetIn(env.In)
	root.SetOut(&stdout{env: env})
	root.SetErr(env.Err)
	root.SetVersionTemplate("capstan {{ .Version }}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRender(env), newRun(env), newEval(env), newReplay(env), newBacktest(env), newLogs(env), newExport(env),
		newDecide(env, decisions.Approve, "Approve the pending tool calls of a Turn"),
		newDecide(env, decisions.Deny, "Deny the pending tool calls of a Turn"), newCancel(env), newUndo(env),
		newDecisions(env), newUsage(env), newFeedback(env), newMemory(env), newPrices(env), newVersion(env))
	return root
}

// stdout is the standard output of the texts that cobra prints. If it cannot be written, this is not an error of usage.
// cobra ignores errors of writing its help texts, so err is the first one.
type stdout struct {
	env terminal.Environment
	err error
}

// Write writes to Out.
func (s *stdout) Write(p []byte) (int, error) {
	if err := s.env.Print(string(p)); err != nil {
		s.err = cmp.Or(s.err, err)
		return 0, err
	}
	return len(p), nil
}

func newVersion(env terminal.Environment) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  capstan version",
		Args: noArguments("this command has no arguments"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			return env.Print("capstan " + env.Version + "\n")
		},
	}
}
