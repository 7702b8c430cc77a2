// Package cli is Capstan's command line. It reads manifests and runs the operator's own engine on them, without a
// cluster: prompts and records are the same as in a cluster.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Environment holds all that the command line uses from its process.
type Environment struct {
	// Program is the name by which the program was called. kubectl-capstan appears as kubectl capstan in help
	// texts.
	Program string
	// Version is the version of the program.
	Version string
	// In is read for the path "-" and for replies to questions. Out receives results, Err everything else.
	In       io.Reader
	Out, Err io.Writer
	// InIsTerminal, OutIsTerminal and ErrIsTerminal report whether In, Out and Err are terminals.
	InIsTerminal, OutIsTerminal, ErrIsTerminal bool
	// LookupEnv returns the value of an environment variable, as os.LookupEnv does. It must not be nil.
	LookupEnv func(name string) (value string, ok bool)
	// Now returns the current time. It must not be nil.
	Now func() time.Time
}

// The exit codes of the program.
const (
	// ExitOK: the Turn succeeded, or was prepared.
	ExitOK = 0
	// ExitFailed: the Turn did not succeed, or could not be prepared.
	ExitFailed = 1
	// ExitUsage: the flags are wrong, or manifests cannot be read or are invalid.
	ExitUsage = 2
	// ExitParked: the Turn requires an approval, and there is no terminal at which to ask for it.
	ExitParked = 3
	// ExitDiffers: render --diff found a difference. With --diff, usage errors exit with ExitFailed instead of
	// ExitUsage, so that 2 always means a difference.
	ExitDiffers = 2
	// ExitInterrupted: the program received Ctrl-C or SIGTERM.
	ExitInterrupted = 130
)

const exitCodesHelp = `Exit codes:
  0    the Turn succeeded, or was prepared
  1    the Turn did not succeed, or could not be prepared
  2    the flags are wrong, or manifests cannot be read or are invalid
  3    a tool call requires approval, and there is no terminal at which to ask
  130  interrupted`

// Execute runs the command line, prints errors to Err and returns the exit code. The end of ctx has the effect of
// Ctrl-C.
func Execute(ctx context.Context, env Environment, args []string) int {
	root := Command(env)                      //nolint:contextcheck // because cobra hands the context to the commands
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would then use the arguments of the process
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, errDiffer) {
		return ExitDiffers
	}
	code, message := explain(err)
	if code == ExitUsage && !isProblemOfInput(err) {
		message += fmt.Sprintf("\nRun '%s --help' for usage.", ran.CommandPath())
	}
	if code == ExitUsage && compares(ran, args) {
		code = ExitFailed
	}
	env.tell("%s: %s", root.DisplayName(), message)
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
func Command(env Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "capstan",
		Short: "Render and run the Turns of LLM agents, and read their journals",
		Long: `capstan runs Capstan's engine without a cluster. It reads the manifests that a cluster would get, checks
them as a cluster would, and makes the same prompts, answers and records.

With and without a cluster, capstan prints the journals of Turns: logs for people, export for programs.
In a cluster it approves and denies tool calls, and cancels Turns.

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
	root.AddCommand(newRender(env), newRun(env), newLogs(env), newExport(env),
		newDecide(env, approving), newDecide(env, denying), newCancel(env), newVersion(env))
	return root
}

func newVersion(env Environment) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  capstan version",
		RunE: func(*cobra.Command, []string) error {
			return env.print("capstan " + env.Version + "\n")
		},
	}
}

// tell writes a line to Err. It ignores write errors, because there is no other place to report them.
func (e Environment) tell(format string, args ...any) {
	_, _ = io.WriteString(e.Err, termsafe.Safe(fmt.Sprintf(format, args...))+"\n")
}

// print writes a result to Out.
func (e Environment) print(text string) error {
	if _, err := io.WriteString(e.Out, text); err != nil {
		return fail(ExitFailed, fmt.Errorf("failed to write to standard output: %w", err))
	}
	return nil
}
