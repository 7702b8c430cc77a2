package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/translate"
)

// renderer holds the flags of capstan render.
type renderer struct {
	*source
	// other is the path of the old state for a comparison. If it is empty, nothing is compared.
	other string
	// discover connects to the ToolServers to list their tools.
	discover bool
}

// diffFlag is the flag that makes render compare. It changes the meaning of the exit codes.
const diffFlag = "diff"

const renderHelp = `render prepares a Turn and prints the messages that the first model of its Agent would receive, or the
model that the Turn names, and a report on how the messages were made. It sends no request to a model and
needs no Secret. With --now, the same manifests always give the same bytes.

Of the Agent's tools, render shows only the sub-agents. With --discover it also connects to the
ToolServers and lists their tools, which may require Secrets. It calls no tools, not even context packs.

The text output puts "| " before each line of a message, and marks the end of the part of the system
prompt that providers can cache. Use -o json for the exact messages. The messages of earlier Turns of a
Session are not shown, because only the store of the Session has them.

With --diff, render prints how a change affects the prompt: -f is the new state, and OTHER (a file, a
directory or -) is the old one. Objects of OTHER replace those of -f with the same kind, namespace and
name; all other objects are taken from -f. OTHER may be a whole directory, or only the old version of one
PromptProfile. The prompt must depend on at least one object in OTHER. Both states are prepared for the
same Turn and the same time.

Exit codes:
  0    the Turn was prepared
  1    the Turn could not be prepared
  2    the flags are wrong, or manifests cannot be read or are invalid
  130  interrupted

Exit codes with --diff:
  0    the prompts are the same
  1    an error occurred, including wrong flags and invalid manifests
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

func newRender(env Environment) *cobra.Command {
	r := &renderer{source: newSource(env)}
	cmd := &cobra.Command{
		Use:   "render -f PATH... [--turn NAME] [--diff OTHER]",
		Short: "Print the exact messages that a Turn would send",
		Long:  renderHelp, Example: renderExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed(diffFlag) {
				return r.compare(cmd.Context(), args)
			}
			return r.render(cmd.Context(), args)
		},
	}
	r.addFlags(cmd)
	cmd.Flags().StringVar(&r.other, diffFlag, "", "print how the prompt changes from `OTHER` (a file, a directory or -) to -f")
	cmd.Flags().BoolVar(&r.discover, "discover", false, "connect to the ToolServers to list their tools")
	r.complete(cmd)
	cobra.CheckErr(cmd.MarkFlagFilename(diffFlag, "yaml", "yml", "json"))
	return cmd
}

// rendering is the output of render as JSON.
type rendering struct {
	// Messages are the messages to the model.
	Messages []model.Message `json:"messages"`
	// Tools are the tools that the model is offered.
	Tools []prompt.Tool `json:"tools"`
	// Preparation is the record that a Turn's status would hold.
	Preparation *v1alpha1.Preparation `json:"preparation"`
	// Assembly describes how the content of the messages was chosen.
	Assembly turncontext.Assembly `json:"assembly"`
}

func (r *renderer) render(ctx context.Context, args []string) error {
	p, err := r.load(ctx, args)
	if err != nil {
		return err
	}
	prepared, err := r.prepared(ctx, p, r.clock()())
	if err != nil {
		return err
	}
	r.withoutTools(p)
	r.withoutHistory(p)
	if r.output == outputText {
		return r.env.print(termsafe.Safe(renderText(p, prepared)))
	}
	text, err := encode(rendering{
		Messages: prepared.Messages, Tools: append([]prompt.Tool{}, prepared.Tools...),
		Preparation: preparation(prepared), Assembly: prepared.Assembly,
	}, r.output)
	if err != nil {
		return fail(ExitFailed, err)
	}
	return r.env.print(text)
}

// withoutHistory prints a note if the Turn belongs to a Session, because the history is not shown.
func (r *renderer) withoutHistory(p *bundle) {
	if p.session != nil {
		r.env.tell("note: the earlier messages of Session %s/%s are not shown; a run puts them before the message",
			p.session.Namespace, p.session.Name)
	}
}

// preparation returns the record of a preparation as a Turn's status holds it.
func preparation(p *prepare.Prepared) *v1alpha1.Preparation {
	return translate.Report(&p.Report, p.Provider, p.Model, len(p.Messages))
}

// prepare returns the messages for the first model, as the start of a run makes them.
func (p *bundle) prepare(ctx context.Context, now time.Time, known toolbox.Servers) (*prepare.Prepared, error) {
	prepared, err := p.messages(ctx, now, known)
	if err != nil {
		return nil, fail(ExitFailed, p.located(err.Error()))
	}
	return prepared, nil
}

func (p *bundle) messages(ctx context.Context, now time.Time, known toolbox.Servers) (*prepare.Prepared, error) {
	at, err := translate.FirstModel(p.turn, p.agent)
	if err != nil {
		return nil, err
	}
	in, err := translate.Preparation(ctx, p.objects(), now)
	if err != nil {
		return nil, err
	}
	first := p.agent.Spec.Models[at]
	in.Provider, in.Model = first.ProviderRef.Name, first.Model
	if in.Tools, err = p.tools(ctx, known); err != nil {
		return nil, err
	}
	return prepare.Prepare(in)
}
