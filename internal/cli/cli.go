// Package cli is Capstan's command line. It reads manifests and drives the operator's own engine with them, without a
// cluster: what it prepares and what it records is what a cluster would.
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

	"github.com/capstan-dev/capstan/internal/screen"
)

// Environment is what the command line takes from the process it runs in.
type Environment struct {
	// Program is the name it was called by; kubectl-capstan is shown as kubectl capstan.
	Program string
	// Version of the program.
	Version string
	// In is what the path "-" reads and where replies come from, Out takes results, Err all else.
	In       io.Reader
	Out, Err io.Writer
	// OutIsTerminal and ErrIsTerminal say where a person looks on, and InIsTerminal whether they can reply.
	InIsTerminal, OutIsTerminal, ErrIsTerminal bool
	// LookupEnv finds environment variables, as os.LookupEnv does.
	LookupEnv func(name string) (value string, ok bool)
	// Now is the time of day.
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
	// ExitParked: the Turn waits for somebody's decision, and there is nobody to ask.
	ExitParked = 3
	// ExitDiffers: a comparison found a difference. Where one was asked for, ExitUsage is ExitFailed, so that 2 means nothing
	// else.
	ExitDiffers = 2
	// ExitInterrupted: Ctrl-C, or a request to stop.
	ExitInterrupted = 130
)

const exitCodesHelp = `Exit codes:
  0    the Turn succeeded, or was prepared
  1    it did not succeed, or could not be prepared
  2    the flags are wrong, or manifests cannot be read or are invalid
  3    it waits for a decision about a call of a tool, and there is no terminal to ask at
  130  interrupted`

// Execute runs the command line, tells on Err what went wrong, and returns the exit code. A ctx that ends is a Ctrl-C.
func Execute(ctx context.Context, env Environment, args []string) int {
	root := Command(env)                      //nolint:contextcheck // because cobra hands the context to the commands
	root.SetArgs(append([]string{}, args...)) // never nil, which would mean those of the process
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

// compares reports whether a comparison was asked for. It looks at the words of the command line, since flags that are
// wrong are not parsed to the end.
func compares(ran *cobra.Command, args []string) bool {
	return ran.Flags().Lookup(diffFlag) != nil && slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--"+diffFlag || strings.HasPrefix(arg, "--"+diffFlag+"=")
	})
}

// Command returns the root command. Its errors are for Execute to tell.
func Command(env Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "capstan",
		Short: "Render and run the Turns of LLM agents, and read their journals",
		Long: `capstan drives Capstan's engine without a cluster: it reads the manifests that a cluster would get, checks them as a
cluster would, and makes the same prompts, answers and records of them. With and without a cluster it reads the journals
of Turns: logs for people, export for programs. In a cluster it decides about calls of tools that Turns wait for, and cancels
Turns.

` + exitCodesHelp + `

With --diff, render has codes of its own: see its help.`,
		Example: `  # what would the model be told?
  capstan render -f examples/quickstart

  # ask it
  capstan run -f examples/quickstart

  # follow a Turn in the cluster
  capstan logs -n helpdesk open-loops -f

  # look at the call of a tool that it waits for, and decide
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

// tell writes a line to Err. That it cannot be written cannot be told to anybody.
func (e Environment) tell(format string, args ...any) {
	_, _ = io.WriteString(e.Err, screen.Safe(fmt.Sprintf(format, args...))+"\n")
}

// print writes a result to Out.
func (e Environment) print(text string) error {
	if _, err := io.WriteString(e.Out, text); err != nil {
		return fail(ExitFailed, fmt.Errorf("failed to write to standard output: %w", err))
	}
	return nil
}
