package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/readapi"
)

const exportHelp = `export turn prints the journal of a Turn as JSON lines, one entry a line: seq, epoch, kind, version, time, payload.

By default what was said is left out: messages, replies, arguments and results of tools, parameters, memories, reasons of
failures. What stays is a fixed list: the course of the Turn, with names of objects, tools and models, numbers and times. In
the place of all else stands {"redacted": true, "bytes": N, "hmacSHA256": "..."}, and in a cluster it never leaves the
manager. The hash has a random key that is forgotten: it is the same for what is the same in this export, and tells nothing
else. --with-content leaves nothing out.

--artifact prints the content of an artifact instead, such as the whole output of a tool, by the SHA-256 that the journal or
the Turn's status has.

Where the journal is, and what it takes to read it, is as for capstan logs.

`

const exportExamples = `  # the course of a Turn, to keep or to hand on
  capstan export turn open-loops -n helpdesk >open-loops.jsonl

  # how long each step took
  capstan export turn open-loops | jq 'select(.kind == "model.replied").payload | {step, durationMilliseconds}'

  # with all that was said
  capstan export turn open-loops --with-content

  # the whole output of a tool
  capstan export turn open-loops --artifact 370e71541036b862ee4e7b985e292366250c586b00bc0f2eb98f880677bafc3c`

// exporter holds the flags of export turn.
type exporter struct {
	journals
	withContent bool
	sha256      string
}

func newExport(env Environment) *cobra.Command {
	parent := &cobra.Command{
		Use: "export", Short: "Print records of Turns for programs", Args: cobra.NoArgs,
		Example: "  capstan export turn open-loops",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to export: capstan export turn NAME")
		},
	}
	x := &exporter{journals: journals{env: env}}
	cmd := &cobra.Command{
		Use: "turn TURN", Short: "Print the journal of a Turn as JSON lines, without what was said",
		Long: exportHelp + logsExitCodes, Example: exportExamples, Args: oneTurn,
		RunE: func(cmd *cobra.Command, args []string) error {
			if x.sha256 != "" {
				return x.content(cmd.Context(), args[0])
			}
			_, err := x.read(cmd.Context(), args[0], readapi.Query{Redact: !x.withContent}, env.jsonLine)
			return err
		},
	}
	x.addFlags(cmd)
	cmd.Flags().BoolVar(&x.withContent, "with-content", false, "leave nothing out")
	cmd.Flags().StringVar(&x.sha256, "artifact", "", "print the content of the artifact with this `SHA256` instead")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("artifact", cobra.NoFileCompletions))
	parent.AddCommand(cmd)
	return parent
}

// content prints an artifact.
func (x *exporter) content(ctx context.Context, turn string) (err error) {
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	r, err := x.open(watched, turn)
	if err != nil {
		return interruptedOr(watched, err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	body, err := r.artifact(watched, x.sha256)
	if err != nil {
		return interruptedOr(watched, fail(ExitFailed, fmt.Errorf("--artifact: %w", err)))
	}
	defer body.Close() //nolint:errcheck // because it was only read
	if x.env.OutIsTerminal {
		return x.env.printSafely(body)
	}
	if _, err := io.Copy(stdout{x.env}, body); err != nil {
		return interruptedOr(watched, fail(ExitFailed, fmt.Errorf("--artifact: %w", err)))
	}
	return nil
}

// printSafely prints what may be anything on a terminal.
func (e Environment) printSafely(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return fail(ExitFailed, fmt.Errorf("--artifact: %w", err))
	}
	return e.print(e.forScreen(string(data)))
}
