package cli

import (
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/render"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// diffFlag is the flag with which render compares two states. It changes the meaning of the exit codes.
const diffFlag = "diff"

const renderHelp = `render prepares a Turn, and prints the messages that a model would receive, and a report on how it made them.
The model is the one that the Turn names, or else the first model of its Agent. render sends no request to a
model and needs no Secret. With --now, the same manifests always give the same bytes, except with --discover,
and for attachments with a url: render fetches these, and fails if it cannot.

Of the Agent's tools, render shows only the sub-agents. With --discover it also connects to the
ToolServers and lists their tools, which may require Secrets. It calls no tools, not even context packs.

The text output puts "| " before each line of a message, and marks the cache boundary: the end of the part
of the system prompt that providers can cache. Use -o json for the exact messages. The messages of earlier
Turns of a Session and the memories that were learned from earlier Turns are not shown, because only the
store has them.

--attach NAME=FILE attaches a file to the Turn, as run does. Attachments with an artifactRef are not shown,
because only the journal of the other Turn has their content.

With --diff, render prints how a change affects the prompt: -f is the new state, and OTHER (a file, a
directory or -) is the old one. Objects of OTHER replace those of -f with the same kind, namespace and
name; all other objects are taken from -f. OTHER may be a whole directory, or only the old version of one
PromptProfile. The prompt must depend on at least one object in OTHER. Both states are prepared for the
same Turn and the same time.

Exit codes:
  0    the Turn was prepared
  1    the Turn could not be prepared
  2    the flags are invalid, or manifests cannot be read or are invalid
  130  interrupted

Exit codes with --diff:
  0    the prompts are the same
  1    an error occurred, including invalid flags and manifests
  2    the prompts differ
  130  interrupted`

const renderExamples = `  # print the messages for people
  capstan render -f examples/quickstart

  # print the exact system prompt
  capstan render -f examples/quickstart -o json | jq -r '.messages[0].content'

  # select one of several Turns, at a given time
  capstan render -f examples/quickstart --turn open-loops --now 2026-04-09T10:00:00Z

  # compare the prompt of the working tree with the main branch
  git show main:examples/quickstart/promptprofile.yaml | capstan render -f examples/quickstart --diff -`

func newRender(env terminal.Environment) *cobra.Command {
	r := &render.Options{Source: &bundle.Source{Env: env}, Output: output.Text}
	cmd := &cobra.Command{
		Use:   "render -f PATH... [--turn NAME] [--diff OTHER]",
		Short: "Print the exact messages that a Turn would send",
		Long:  renderHelp, Example: renderExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed(diffFlag) {
				return r.Compare(cmd.Context(), args)
			}
			return r.Render(cmd.Context(), args)
		},
	}
	addSourceFlags(cmd, r.Source, &r.Output)
	cmd.Flags().StringVar(&r.Other, diffFlag, "", "print how the prompt changes from `OTHER` (a file, a directory or -) to -f")
	cmd.Flags().BoolVar(&r.Discover, "discover", false, "connect to the ToolServers to list their tools")
	cobra.CheckErr(cmd.MarkFlagFilename(diffFlag, "yaml", "yml", "json"))
	return cmd
}
