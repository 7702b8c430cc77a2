package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/render"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Options holds the flags of capstan replay.
type Options struct {
	Flags
	// Source specifies where the journal of the Turn is.
	Source journals.Source
	// PromptOnly compares only the prompts, and asks no model.
	PromptOnly bool
	// Quiet hides the current activity.
	Quiet bool
	// Output is text or json.
	Output output.Format
}

// Run replays a Turn, given as NAME or NAMESPACE/NAME, and prints the difference. It returns an error if the Turn
// cannot be replayed, or if the replay does not end with an answer.
func (o *Options) Run(ctx context.Context, name string) (err error) {
	watched, release := exit.Watch(ctx)
	defer release()
	recordings, err := o.Source.Recordings(watched)
	if err != nil {
		return exit.InterruptedOr(watched, err)
	}
	defer func() { err = errors.Join(err, recordings.Close()) }()
	return exit.InterruptedOr(watched, o.run(watched, recordings, name))
}

func (o *Options) run(ctx context.Context, recordings *journals.Recordings, name string) (err error) {
	id, err := recordings.Find(ctx, name)
	if err != nil {
		return err
	}
	state, err := o.Load(ctx, cmp.Or(o.Source.Namespace, id.Namespace))
	if err != nil {
		return err
	}
	recording, err := recordings.Read(ctx, id)
	if refused, ok := errors.AsType[*turn.NotReplayableError](err); ok {
		return exit.WithCode(exit.Failed, fmt.Errorf("the Turn %s cannot be replayed: %w", id, refused))
	}
	if err != nil {
		return err
	}
	p, err := state.For(recording)
	if err != nil {
		return err
	}
	c := &comparison{Turn: id.String(), Recorded: recordedSide(recording), recordedAt: recording.Began}
	after, err := p.Prompt(ctx)
	if err != nil {
		return err
	}
	if c.prompt, err = render.Compare(recording.Prepared, after); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	c.Prompt, c.after = c.prompt.Record(), after
	if o.PromptOnly {
		return o.print(c)
	}
	batch, err := p.Batch(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, batch.Close(ctx)) }()
	replay, err := o.replay(p, batch) //nolint:contextcheck // because the batch holds its life
	if err == nil {
		err = replay.Err
	}
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if err := c.add(replay, after); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if err := o.print(c); err != nil {
		return err
	}
	return verdict(replay)
}

// verdict returns an error if a replay did not end with an answer.
func verdict(r *Replay) error {
	if r.Result.Answered() {
		return nil
	}
	return exit.WithCode(exit.Failed, fmt.Errorf("the replay ended without an answer: %s: %s", r.Result.Stop, r.Result.Message))
}

// replay asks the models.
func (o *Options) replay(p *Prepared, batch *localrun.Batch) (*Replay, error) {
	env := o.Env
	if !o.Quiet {
		if live := env.StartSpinner(); live != nil {
			defer live.Close()
			live.Show("replaying " + p.Name)
		}
	}
	return p.Replay(batch)
}

// comparison is a recorded Turn and its replay. Its JSON form is the output of capstan replay.
type comparison struct {
	Turn string `json:"turn"`
	// Recorded is the Turn as it was recorded. Replayed is nil if no model was asked.
	Recorded side  `json:"recorded"`
	Replayed *side `json:"replayed,omitempty"`
	// Prompt is the difference of the prompts, as in capstan render --diff.
	Prompt any `json:"prompt"`
	// AnswerDiff is a unified diff of the answers. It is empty if they are the same.
	AnswerDiff string `json:"answerDiff,omitempty"`
	// Calls says how the calls of the replay were answered. It is nil if no model was asked.
	Calls *turn.AnswerSummary `json:"calls,omitempty"`

	recordedAt time.Time
	prompt     *render.Difference
	after      *prepare.Prepared
}

// side is one of the two Turns that are compared.
type side struct {
	PromptProfile string `json:"promptProfile"`
	Version       string `json:"version"`
	Provider      string `json:"provider"`
	Model         string `json:"model"`
	// End is the stop reason, or empty if the Turn has not ended. Message explains it.
	End     turn.Stop `json:"end,omitempty"`
	Message string    `json:"message,omitempty"`
	Answer  string    `json:"answer,omitempty"`
	// Usage and Cost are the usage and the cost of the Turn itself, without its sub-agents and without its requests for
	// vectors. Cost is absent if it is not known.
	Usage model.Usage    `json:"usage"`
	Cost  *finalize.Cost `json:"cost,omitempty"`
	Steps int            `json:"steps"`
	// ToolCalls is the number of calls.
	ToolCalls int `json:"toolCalls"`
}

func sideOf(p *prepare.Prepared, r *turn.Result) side {
	s := side{
		PromptProfile: p.Report.Profile.Name, Version: p.Report.Profile.Version, Provider: p.Provider, Model: p.Model,
	}
	if r != nil {
		s.End, s.Message, s.Answer, s.Usage, s.Cost = r.Stop, r.Message, r.Text, r.Record.Usage, r.Record.Cost
		s.Steps, s.ToolCalls = r.Counts.Steps, r.Counts.ToolCalls
	}
	return s
}

func recordedSide(r *turn.Recording) side {
	s := sideOf(r.Prepared, r.Result)
	s.Usage, s.Cost = r.Usage, r.Cost
	return s
}

// add sets the fields about the replay and the diff of the answers.
func (c *comparison) add(r *Replay, prepared *prepare.Prepared) (err error) {
	s := sideOf(prepared, r.Result)
	if r.Result.Provider != "" { // another model of the chain may have answered
		s.Provider, s.Model = r.Result.Provider, r.Result.Model
	}
	c.Replayed, c.Calls = &s, &r.Calls
	c.AnswerDiff, err = render.Unified("answer", c.Recorded.Answer, s.Answer)
	return err
}

// print prints the comparison.
func (o *Options) print(c *comparison) error {
	env := o.Env
	if o.Output == output.Text {
		return env.PrintPaid(render.Coloured(env, termsafe.Exact(c.text())))
	}
	text, err := output.Encode(c, o.Output)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if env.OutIsTerminal { // the escaped text is JSON, too
		text = termsafe.Safe(text)
	}
	return env.PrintPaid(text)
}

// text returns the comparison for a person. A line of a message or an answer always starts with a space, a plus, a
// minus, a backslash or an at sign, so no text of the Turn can imitate the headings.
func (c *comparison) text() string {
	var b strings.Builder
	after := sideOf(c.after, nil)
	if !c.prompt.Differs() {
		fmt.Fprintf(&b, "Turn %s: the prompts are the same: promptHash %s\n", c.Turn, c.after.Report.PromptHash)
	} else {
		fmt.Fprintf(&b, "Turn %s: the prompts differ\n", c.Turn)
		fmt.Fprintf(&b, "--- recorded at %s: %s\n", c.recordedAt.Format(time.RFC3339), c.Recorded.title())
		fmt.Fprintf(&b, "+++ replayed: %s\n\n%s", after.title(), c.prompt.Text())
	}
	if c.Replayed == nil {
		return b.String()
	}
	switch {
	case c.AnswerDiff != "":
		b.WriteString("\nAnswer\n" + render.HunksOf(c.AnswerDiff))
	case c.Replayed.Answer == "":
		b.WriteString("\nNeither Turn has an answer\n")
	default:
		b.WriteString("\nThe answers are the same\n")
	}
	b.WriteString("\n" + c.table())
	if c.Calls.NotMade > 0 {
		fmt.Fprintf(&b, "\nCalls that were not made, because the recorded Turn has no result for them: %d\n", c.Calls.NotMade)
		for _, u := range c.Calls.Unanswered {
			fmt.Fprintf(&b, "* %s %s\n", termsafe.Line(u.Name, output.LongestID), termsafe.Line(u.Arguments, maxArguments))
		}
	}
	return b.String()
}

// maxArguments is the maximum number of characters shown of the arguments of a call.
const maxArguments = 300

func (s *side) title() string {
	return fmt.Sprintf("PromptProfile %s %s, model %s:%s", termsafe.Line(s.PromptProfile, output.LongestID),
		termsafe.Line(s.Version, output.LongestID), termsafe.Line(s.Provider, output.LongestID), termsafe.Line(s.Model, output.LongestID))
}

// table returns the two Turns side by side.
func (c *comparison) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, recorded, replayed string) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, recorded, replayed) //nolint:errcheck // because a strings.Builder takes all
	}
	recorded, replayed := &c.Recorded, c.Replayed
	row("", "RECORDED", "REPLAYED")
	row("end", recorded.end(), replayed.end())
	row("model", termsafe.Line(recorded.Provider+":"+recorded.Model, output.LongestID),
		termsafe.Line(replayed.Provider+":"+replayed.Model, output.LongestID))
	row("tokens", termsafe.Thousands(recorded.tokens()), termsafe.Thousands(replayed.tokens()))
	row("cost", recorded.cost(), replayed.cost())
	row("steps", fmt.Sprint(recorded.Steps), fmt.Sprint(replayed.Steps))
	row("calls", fmt.Sprint(recorded.ToolCalls), calls(c.Calls))
	w.Flush() //nolint:errcheck,gosec // because a strings.Builder takes all
	return trimLines(b.String())
}

// trimLines removes the spaces at the ends of all lines.
func trimLines(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		all = append(all, strings.TrimRight(line, " \n")+"\n")
	}
	return strings.Join(all, "")
}

func calls(s *turn.AnswerSummary) string {
	text := fmt.Sprintf("%d from the journal", s.Recorded)
	if s.NotMade > 0 {
		text += fmt.Sprintf(", %d not made", s.NotMade)
	}
	return text
}

func (s *side) end() string {
	if s.End == "" {
		return "has not ended"
	}
	return string(s.End)
}

func (s *side) tokens() int64 { return s.Usage.InputTokens + s.Usage.OutputTokens }

func (s *side) cost() string {
	if s.Cost == nil {
		return "-"
	}
	return s.Cost.Amount + " " + s.Cost.Currency
}
