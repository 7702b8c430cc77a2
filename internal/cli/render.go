package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/translate"
)

func newRender(env Environment) *cobra.Command {
	s := newSource(env)
	cmd := &cobra.Command{
		Use:   "render -f PATH... [--turn NAME]",
		Short: "Print the exact messages that a Turn would send",
		Long: `render prepares a Turn and prints the messages that the first model of its Agent would get, and how they came about. It
asks no model and needs no Secret. With --now, the same manifests give the same bytes each time.

The text output puts "| " before each line of a message, and marks where the part of the system prompt ends that
providers can cache; take -o json for the messages as they are.

` + exitCodesHelp,
		Example: `  # the messages, to read
  capstan render -f examples/quickstart

  # the system prompt as it is
  capstan render -f examples/quickstart -o json | jq -r '.messages[0].content'

  # one Turn of several, at a given time
  capstan render -f examples/quickstart --turn open-loops --now 2026-04-09T10:00:00Z`,
		RunE: func(cmd *cobra.Command, args []string) error { return s.render(cmd.Context(), args) },
	}
	s.addFlags(cmd)
	s.complete(cmd)
	return cmd
}

// rendering is what render prints as JSON.
type rendering struct {
	// Messages as the model would get them.
	Messages []model.Message `json:"messages"`
	// Tools that the model would be offered; there are none yet.
	Tools []any `json:"tools"`
	// Preparation as a Turn's status has it.
	Preparation *v1alpha1.Preparation `json:"preparation"`
}

func (s *source) render(ctx context.Context, args []string) error {
	p, err := s.load(ctx, args)
	if err != nil {
		return err
	}
	prepared, err := s.prepare(p)
	if err != nil {
		return fail(ExitFailed, p.located(err.Error()))
	}
	report := translate.Report(&prepared.Report, prepared.Provider, prepared.Model, len(prepared.Messages))
	if s.output == outputText {
		return s.env.print(s.env.forScreen(renderText(p, prepared, report)))
	}
	text, err := encode(rendering{Messages: prepared.Messages, Tools: []any{}, Preparation: report}, s.output)
	if err != nil {
		return fail(ExitFailed, err)
	}
	return s.env.print(text)
}

// prepare makes the messages for the first model of the chain, as the start of a run does.
func (s *source) prepare(p *project) (*prepare.Prepared, error) {
	in, err := translate.Preparation(p.turn, p.agent, p.profile, s.clock()())
	if err != nil {
		return nil, err
	}
	first := p.agent.Spec.Models[0]
	in.Provider, in.Model = first.ProviderRef.Name, first.Model
	return prepare.Prepare(in)
}
