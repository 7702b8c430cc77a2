package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/readapi"
)

const exportHelp = `export turn prints the journal of a Turn as JSON lines, one entry a line: seq, epoch, kind, version, time, payload.

By default what was said is left out: messages, replies, arguments and results of tools, parameters, memories, reasons of
failures. What stays is a fixed list: the course of the Turn, with names of objects, tools and models, numbers and times. In
the place of all else stands {"redacted": true, "bytes": N, "hmacSHA256": "..."}, and in a cluster it never leaves the
manager. The hash has a random key that is forgotten: it is the same for what is the same in this export, and tells nothing
else. --with-content leaves nothing out.

--artifact prints the content of an artifact instead, such as the whole output of a tool: by its name, as call-2-1 or answer.txt, or
by the SHA-256 that the journal or the Turn's status has.

Where the journal is, and what it takes to read it, is as for capstan logs.

`

const exportExamples = `  # the course of a Turn, to keep or to hand on
  capstan export turn open-loops -n helpdesk >open-loops.jsonl

  # how long each step took
  capstan export turn open-loops | jq 'select(.kind == "model.replied").payload | {step, durationMilliseconds}'

  # with all that was said
  capstan export turn open-loops --with-content

  # the whole output of a tool
  capstan export turn open-loops --artifact call-2-1`

// exporter holds the flags of export turn.
type exporter struct {
	journals
	withContent bool
	artifact    string
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
			if x.artifact != "" {
				return x.content(cmd.Context(), args[0], x.artifact)
			}
			_, err := x.read(cmd.Context(), args[0], readapi.Query{Redact: !x.withContent}, env.jsonLine)
			return err
		},
	}
	x.addFlags(cmd)
	cmd.Flags().BoolVar(&x.withContent, "with-content", false, "leave nothing out")
	addArtifactFlag(cmd, &x.artifact)
	parent.AddCommand(cmd)
	return parent
}
