package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const exportHelp = `export turn prints the journal of a Turn as JSON lines, one line per entry: seq, epoch, kind, version, time,
payload.

By default the content is redacted: messages, replies, arguments and results of tools, parameters,
memories and reasons of failures. Only the values on a fixed list are kept: the steps of the Turn, with
names of objects, tools and models, the user names of the requester and of the people who decided about
calls, numbers and times. Each other value is replaced by
{"redacted": true, "bytes": N, "hmacSHA256": "..."}; in a cluster, the value never leaves the manager. The
hash uses a random key that is discarded: equal values of this export have equal hashes, and a hash reveals
nothing else. --with-content redacts nothing.

--artifact prints the content of an artifact instead, such as the whole output of a tool. Name the
artifact, such as call-2-1 or answer.txt, or give its SHA-256 from the journal or the Turn's status.

export finds the journal like capstan logs, and requires the same permissions.

`

const exportExamples = `  # keep or share the steps of a Turn
  capstan export turn open-loops -n helpdesk >open-loops.jsonl

  # remove the user names, too
  capstan export turn open-loops | jq -c 'del(.payload | .requester?, .by?, .calls[]?.decidedBy?)'

  # print the duration of each step
  capstan export turn open-loops | jq 'select(.kind == "model.replied").payload | {step, durationMilliseconds}'

  # include the content
  capstan export turn open-loops --with-content

  # print the whole output of a tool
  capstan export turn open-loops --artifact call-2-1`

func newExport(env terminal.Environment) *cobra.Command {
	parent := &cobra.Command{
		Use: "export", Short: "Print journals of Turns for programs",
		Args:    noArguments("to export a Turn: capstan export turn NAME"),
		Example: "  capstan export turn open-loops",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("specify a Turn: capstan export turn NAME")
		},
	}
	x := &journals.Export{Source: journals.Source{Env: env}}
	cmd := &cobra.Command{
		Use: "turn TURN", Short: "Print the journal of a Turn as JSON lines, by default without content",
		Long: exportHelp + logsExitCodes, Example: exportExamples, Args: oneTurn,
		RunE: func(cmd *cobra.Command, args []string) error { return x.Run(cmd.Context(), args[0]) },
	}
	addJournalFlags(cmd, &x.Source, &x.Artifact)
	cmd.Flags().BoolVar(&x.WithContent, "with-content", false, "include the content")
	parent.AddCommand(cmd)
	return parent
}
