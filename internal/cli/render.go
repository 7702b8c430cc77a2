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
	"github.com/capstan-dev/capstan/internal/screen"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/translate"
)

// renderer holds the flags of render.
type renderer struct {
	*source
	// other is the path of the old state to compare with, empty for none.
	other string
	// discover asks ToolServers for their tools.
	discover bool
}

// diffFlag is the flag that makes render compare; what exit codes mean depends on it.
const diffFlag = "diff"

const renderHelp = `render prepares a Turn and prints the messages that the first model of its Agent would get (or the one that the Turn
names), and how they came about. It asks no model and needs no Secret. With --now, the same manifests give the same bytes
each time.

Of the Agent's tools it shows the sub-agents. With --discover it connects to the ToolServers too and asks for theirs, which may take
Secrets; no tool is called, also none that fills the context of a Turn.

The text output puts "| " before each line of a message, and marks where the part of the system prompt ends that
providers can cache; take -o json for the messages as they are. The messages of a Session's earlier Turns are not among
them: only its store has these.

With --diff it prints what a change does to the prompt: -f is the new state, OTHER (a file, a directory or -) the old one.
Objects of OTHER stand in for those of -f with the same kind, namespace and name; what OTHER does not hold counts as
unchanged and is taken from -f. OTHER may so be a whole folder, or just the one PromptProfile as it was. It must hold
something that the prompt is made of. Both states are prepared for the same Turn and the same time.

Exit codes:
  0    the Turn was prepared
  1    it could not be prepared
  2    the flags are wrong, or manifests cannot be read or are invalid
  130  interrupted

Exit codes with --diff:
  0    the prompts are the same
  1    anything went wrong, wrong flags and invalid manifests included
  2    the prompts differ
  130  interrupted`

const renderExamples = `  # the messages, to read
  capstan render -f examples/quickstart

  # the system prompt as it is
  capstan render -f examples/quickstart -o json | jq -r '.messages[0].content'

  # one Turn of several, at a given time
  capstan render -f examples/quickstart --turn open-loops --now 2026-04-09T10:00:00Z

  # what the working tree changes in the prompt, against the main branch
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
	cmd.Flags().StringVar(&r.other, diffFlag, "", "print what changes in the prompt from `OTHER`, a file, a directory or -, to what -f names")
	cmd.Flags().BoolVar(&r.discover, "discover", false, "connect to the ToolServers, to show their tools")
	r.complete(cmd)
	cobra.CheckErr(cmd.MarkFlagFilename(diffFlag, "yaml", "yml", "json"))
	return cmd
}

// rendering is what render prints as JSON.
type rendering struct {
	// Messages as the model would get them.
	Messages []model.Message `json:"messages"`
	// Tools that the model would be told of.
	Tools []prompt.Tool `json:"tools"`
	// Preparation as a Turn's status has it.
	Preparation *v1alpha1.Preparation `json:"preparation"`
	// Assembly is how the content of the messages came about.
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
		return r.env.print(screen.Safe(renderText(p, prepared)))
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

// withoutHistory says what a Turn of a Session would be told beside what is shown.
func (r *renderer) withoutHistory(p *project) {
	if p.session != nil {
		r.env.tell("note: what was said before in Session %s/%s is not shown; a run puts it before the message", p.session.Namespace, p.session.Name)
	}
}

// preparation is the record of a preparation as a Turn's status has it.
func preparation(p *prepare.Prepared) *v1alpha1.Preparation {
	return translate.Report(&p.Report, p.Provider, p.Model, len(p.Messages))
}

// prepare makes the messages for the model that is asked first, as the start of a run does.
func (p *project) prepare(ctx context.Context, now time.Time, known toolbox.Servers) (*prepare.Prepared, error) {
	prepared, err := p.messages(ctx, now, known)
	if err != nil {
		return nil, fail(ExitFailed, p.located(err.Error()))
	}
	return prepared, nil
}

func (p *project) messages(ctx context.Context, now time.Time, known toolbox.Servers) (*prepare.Prepared, error) {
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
