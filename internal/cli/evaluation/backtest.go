package evaluation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/render"
	"github.com/capstan-dev/capstan/internal/cli/replay"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

const (
	// MaxLast is the maximum number of Turns of a backtest.
	MaxLast = 1000
	// maxChanges is the maximum number of different changes of prompts in a report, and maxChange the maximum length of
	// each change, in characters. maxNames is the maximum number of Turns that a change names.
	maxChanges, maxChange, maxNames = 10, 4000, 5
	// maxUnreadable is the number of failed reads after which a backtest ends, if it has not read any Turn yet. So many
	// failures mean that the reason is not a single Turn.
	maxUnreadable = 10
)

// BacktestOptions holds the flags of capstan backtest.
type BacktestOptions struct {
	replay.Flags
	// Source specifies where the journals are.
	Source journals.Source
	// Agent is the Agent whose Turns are prepared again: NAME in the namespace of the Turns, or NAMESPACE/NAME.
	Agent string
	// Last is the number of Turns, the newest ones, from 1 to MaxLast.
	Last int
	// Replay also asks the models and the judges, instead of only comparing the prompts.
	Replay bool
	// Feedback selects the Turns to which people have given feedback. The new answers must then be different or no
	// worse, depending on the scores.
	Feedback bool
	// Threshold is the share of Turns that must pass, a decimal from 0 to 1.
	Threshold string
	// Parallel is the number of Turns that are replayed at the same time, from 1 to MaxParallel.
	Parallel int
	// Quiet hides the line for each Turn.
	Quiet bool
	// Output is the format of the report.
	Output Format
}

// PromptChange says how the prompt of a recorded Turn changes.
type PromptChange string

// The changes of a prompt.
const (
	// PromptSame means that the model receives the same messages and tools.
	PromptSame PromptChange = "Same"
	// PromptChanged means that the model receives other messages or tools.
	PromptChanged PromptChange = "Changed"
	// PromptFails means that the prompt cannot be made.
	PromptFails PromptChange = "Fails"
)

// Backtest is the part of a report that is about recorded Turns.
type Backtest struct {
	// Replayed is true if models were asked. Otherwise only the prompts were compared.
	Replayed bool `json:"replayed"`
	// Changed, Same and Fails are the numbers of the Turns by the change of their prompts.
	Changed int `json:"changed"`
	Same    int `json:"same"`
	Fails   int `json:"fails"`
	// Changes are at most 10 different changes of prompts, sorted by the number of Turns that they affect, the largest
	// number first. MoreChanges is the number of further changes.
	Changes     []*Change `json:"changes,omitempty"`
	MoreChanges int       `json:"moreChanges,omitempty"`
	// Skipped are the Turns whose recordings cannot be replayed with any prompt. They do not count.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Spent is the usage and cost of the recorded Turns, without their sub-agents.
	Spent Spent `json:"spent"`
}

// Change is a change that the prompts of one or more Turns have in common.
type Change struct {
	// Turns is the number of these Turns. Names are the names of the first 5.
	Turns int      `json:"turns"`
	Names []string `json:"names"`
	// Diff is the change as a diff, cut after 4000 characters.
	Diff string `json:"diff"`
}

// Skipped is a Turn that cannot be replayed.
type Skipped struct {
	Turn   string `json:"turn"`
	Reason string `json:"reason"`
}

// RecordedTurn is a Turn as it was recorded.
type RecordedTurn struct {
	// Reason is the stop reason.
	Reason string `json:"reason"`
	// Answer is the answer, cut after 32000 characters.
	Answer string `json:"answer,omitempty"`
	// Evaluations are the evaluations of the recorded answer by the same judges.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
	Spent       Spent        `json:"spent"`
}

// backtest is a running backtest.
type backtest struct {
	*BacktestOptions
	recordings *journals.Recordings
	state      *replay.State
	// agent is the Agent whose Turns are prepared again.
	agent types.NamespacedName
	names []journals.TurnName
	// scores holds the scores that people have given, by Turn. It is nil without --feedback.
	scores map[journals.TurnName]*PeopleScore
}

// Run compares the prompts of recorded Turns, replays the Turns if Replay is set, and prints the report. Its error has
// the code exit.Failed if fewer Turns pass than Threshold requires, and exit.Usage if the input is invalid.
func (o *BacktestOptions) Run(ctx context.Context) (err error) {
	threshold, err := judge.ParseScore(o.Threshold)
	switch {
	case err != nil:
		return exit.WithCode(exit.Usage, fmt.Errorf("--threshold: %w", err))
	case o.Parallel < 1 || o.Parallel > MaxParallel:
		return exit.WithCode(exit.Usage, fmt.Errorf("--parallel: must be from 1 to %d", MaxParallel))
	case o.Last < 1 || o.Last > MaxLast:
		return exit.WithCode(exit.Usage, fmt.Errorf("--last: must be from 1 to %d", MaxLast))
	}
	agent := v1alpha1.ParseSharedReference(o.Agent)
	if agent.Name == "" || strings.Contains(agent.Name, "/") || strings.HasPrefix(o.Agent, "/") {
		return exit.WithCode(exit.Usage, errors.New("--agent: must be NAME, for an Agent in the namespace of the Turns (--namespace), or "+
			"NAMESPACE/NAME, for a shared Agent of another namespace"))
	}
	watched, release := exit.Watch(ctx)
	defer release()
	defer context.AfterFunc(watched, release)() // a second signal kills the program
	b := &backtest{BacktestOptions: o}
	if b.recordings, err = o.Source.Recordings(watched); err != nil {
		return exit.InterruptedOr(watched, inputError(err))
	}
	defer func() { err = errors.Join(err, b.recordings.Close()) }()
	b.agent = agent.Key(b.recordings.Namespace)
	if b.state, err = o.Load(watched, b.recordings.Namespace); err != nil {
		return exit.InterruptedOr(watched, inputError(err))
	}
	if b.names, err = b.find(watched); err != nil {
		return exit.InterruptedOr(watched, inputError(err))
	}
	switch {
	case len(b.names) > 0:
	case o.Feedback:
		return exit.WithCode(exit.Usage, fmt.Errorf("no finished Turn of Agent %q in namespace %q has feedback: give feedback with "+
			"capstan feedback, or leave out --feedback", b.agentName(), b.recordings.Namespace))
	default:
		return exit.WithCode(exit.Usage, fmt.Errorf("there is no finished Turn of Agent %q in namespace %q: see --agent, "+
			"--namespace and --data-dir", b.agentName(), b.recordings.Namespace))
	}
	report, err := b.run(watched, threshold)
	if report == nil {
		return exit.InterruptedOr(watched, err)
	}
	return errors.Join(report.deliver(o.Env, o.Output, threshold, watched.Err() != nil), err)
}

// agentName returns the name of the Agent as the Turns refer to it: NAME if the Agent is in the namespace of the Turns,
// and NAMESPACE/NAME otherwise.
func (b *backtest) agentName() string {
	if b.agent.Namespace == b.recordings.Namespace {
		return b.agent.Name
	}
	return b.agent.String()
}

// find returns the Turns that are prepared again.
func (b *backtest) find(ctx context.Context) ([]journals.TurnName, error) {
	if !b.Feedback {
		return b.recordings.Newest(ctx, b.agent, b.Last, nil)
	}
	given, err := b.recordings.Feedback(ctx, b.agentName())
	if err != nil {
		return nil, err
	}
	b.scores = map[journals.TurnName]*PeopleScore{}
	for name, all := range given {
		if b.scores[name], err = peopleScore(all); err != nil {
			return nil, fmt.Errorf("failed to read the feedback to Turn %s: %w", name, err)
		}
	}
	return b.recordings.Newest(ctx, b.agent, b.Last, func(name journals.TurnName) bool { return b.scores[name] != nil })
}

// run prepares the Turns again, and replays them if Replay is set. All Turns share the models. The report is nil if no
// Turn was prepared. It may be complete although there is an error.
func (b *backtest) run(ctx context.Context, threshold judge.Score) (*Report, error) {
	env := b.Env
	w := &workers{env: env, parallel: b.Parallel, quiet: b.Quiet, unit: "Turns"}
	if !b.Quiet {
		w.live = w.env.StartSpinner()
	}
	if w.live != nil {
		defer w.live.Close()
		w.live.Show(fmt.Sprintf("reading %d Turns", len(b.names)))
	}
	r := &Report{Agent: b.agent.String(), Backtest: &Backtest{Replayed: b.Replay}}
	batch, err := b.open(ctx, r)
	if err != nil {
		return nil, err
	}
	results := w.run(ctx, len(b.names), func(i int) *Result { return b.one(ctx, batch, b.names[i]) })
	if batch != nil {
		err = batch.Close(ctx)
	}
	r.addTurns(results, threshold)
	return r, err
}

// open reads the first Turn that can be replayed. It stores the profile of that Turn in the report, and opens the
// models if Replay is set. It skips Turns that cannot be read, and returns an error after maxUnreadable of them.
func (b *backtest) open(ctx context.Context, r *Report) (*localrun.Batch, error) {
	var newest, unreadable error
	failures := 0
	for _, name := range b.names {
		recording, err := b.recordings.Read(ctx, name)
		if err != nil {
			if newest == nil {
				newest = err
			}
			if _, skipped := errors.AsType[*turn.NotReplayableError](err); skipped {
				continue
			}
			unreadable = err
			if failures++; failures == maxUnreadable || ctx.Err() != nil {
				break
			}
			continue
		}
		p, err := b.state.For(recording)
		if err != nil {
			return nil, inputError(err)
		}
		if r.PromptProfile, r.Version = p.Profile(); !b.Replay {
			return nil, nil //nolint:nilnil // because no model is asked
		}
		batch, err := p.Batch(ctx)
		if err != nil {
			return nil, inputError(err)
		}
		if len(batch.Judges()) == 0 && b.hasGood() {
			b.Env.Logf("note: PromptProfile %s has no judge, so nothing is checked for the Turns to which people gave 0.5 or more",
				termsafe.Line(r.PromptProfile, output.LongestID))
		}
		return batch, nil
	}
	if unreadable != nil {
		return nil, inputError(unreadable)
	}
	return nil, exit.WithCode(exit.Usage, fmt.Errorf("none of the last %d Turns of Agent %q can be replayed; the newest: %w",
		len(b.names), b.agentName(), newest))
}

// hasGood reports whether people have given one of the Turns a good score.
func (b *backtest) hasGood() bool {
	return slices.ContainsFunc(b.names, func(name journals.TurnName) bool { s := b.scores[name]; return s != nil && s.isGood })
}

// one prepares a Turn again, and replays it if there is a batch. The result is interrupted if ctx ends before the
// prompt is made, before the replay ends, or before all judges have been asked.
func (b *backtest) one(ctx context.Context, batch *localrun.Batch, name journals.TurnName) *Result {
	begin := b.Env.Now()
	out := &Result{Name: name.Name, Outcome: Passed, Feedback: b.scores[name]}
	if b.Source.DataDir != "" && name.UID != "" && b.isRepeated(name) {
		out.Name += " (" + name.UID + ")"
	}
	recording, err := b.recordings.Read(ctx, name)
	if err != nil {
		return out.failed(ctx, err)
	}
	if recording.Result != nil {
		out.recordedSpent.add(tokens(recording.Usage), recording.Cost)
	}
	p, err := b.state.For(recording)
	if err != nil {
		return out.failed(ctx, err)
	}
	after, err := p.Prompt(ctx)
	if err != nil && ctx.Err() != nil {
		return out.failed(ctx, err)
	}
	if err != nil {
		out.Prompt = PromptFails
		out.Outcome, out.Problems = Failed, []string{termsafe.Line(err.Error(), maxProblem)}
		return out
	}
	difference, err := render.Compare(recording.Prepared, after)
	if err != nil {
		return out.failed(ctx, err)
	}
	redaction, err := p.Redaction(ctx)
	if err != nil {
		return out.failed(ctx, err)
	}
	if out.Prompt = PromptSame; difference.Differs() {
		hunks, err := difference.Hunks(redaction.Remove) // the report may be public, so the new rules apply
		if err != nil {
			return out.failed(ctx, err)
		}
		out.Prompt, out.Changed = PromptChanged, difference.Messages()
		out.diff, out.change = shortDiff(hunks), canonical.Sum([]byte(hunks))
	}
	if batch != nil && !b.replay(ctx, batch, p, redaction, out) {
		out.interrupted = true
		return out
	}
	out.Milliseconds = b.Env.Now().Sub(begin).Milliseconds()
	return out
}

// isRepeated reports whether another Turn has the same name. capstan run keeps several Turns of one name.
func (b *backtest) isRepeated(name journals.TurnName) bool {
	return slices.ContainsFunc(b.names, func(o journals.TurnName) bool { return o.Name == name.Name && o.UID != name.UID })
}

// failed stores an error as the outcome, and returns r. A Turn that cannot be replayed is marked as skipped. If ctx has
// ended, the result is interrupted, because this is probably the cause of any other error.
func (r *Result) failed(ctx context.Context, err error) *Result {
	r.Outcome, r.Problems = Errored, []string{termsafe.Line(err.Error(), maxProblem)}
	_, r.skipped = errors.AsType[*turn.NotReplayableError](err)
	r.interrupted = !r.skipped && ctx.Err() != nil
	return r
}

// replay asks the models and the judges. A Turn passes if it ends with an answer and if no judge refuses this answer. A
// refusal does not count if the judge gives the recorded answer no better score. redaction applies the rules of the new
// Agent to the recorded texts, for the report and for the judges. replay returns false if ctx ends before the Turn
// ends, or before all judges have been asked.
func (b *backtest) replay(
	ctx context.Context, batch *localrun.Batch, p *replay.Prepared, redaction *redact.TurnRedactor, out *Result,
) bool {
	old, recorded := &RecordedTurn{}, ""
	if r := p.Result; r != nil {
		recorded = redaction.Remove(r.Text)
		old.Reason, old.Answer, old.Spent = string(r.Stop), shortAnswer(recorded), out.recordedSpent
	}
	out.Recorded = old
	again, err := p.Replay(batch) //nolint:contextcheck // because the batch holds its life
	if err != nil {
		return !out.failed(ctx, err).interrupted
	}
	out.Reason, out.Answer, out.Calls = again.Turn.StateReason(), shortAnswer(again.Result.Text), &again.Calls
	out.Spent.add(tokens(again.Result.Record.Usage), again.Result.Record.Cost)
	if again.Result.Stop == turn.StopCancelled { // only the end of ctx cancels a Turn of a batch
		return false
	}
	expect := Expect{}
	if why := expect.unexpectedEnd(again.Turn); why != "" {
		out.Outcome, out.Problems = Failed, []string{why}
		if again.Result.Stop == turn.StopModelError {
			out.Outcome = Errored // there is no answer to check
		}
	}
	if again.Result.Text != "" {
		if p.Result != nil {
			if why := out.Feedback.expectChange(recorded, again.Result.Text); why != "" {
				out.Problems = append(out.Problems, why)
			}
		}
		var subject *judge.Subject
		if p.Answered() && len(batch.Judges()) > 0 {
			subject = p.Subject.Redacted(redaction.Remove)
		}
		if !b.judge(ctx, batch, subject, string(again.Turn.UID), out) {
			return false
		}
	}
	if len(out.Problems) > 0 && out.Outcome == Passed {
		out.Outcome = Failed
	}
	return true
}

// judge asks the judges to evaluate the recorded answer and the new one. recorded is nil if there is no recorded
// answer. judge returns false if ctx ends before all judges were asked.
func (b *backtest) judge(ctx context.Context, batch *localrun.Batch, recorded *judge.Subject, uid string, out *Result) bool {
	for k := range batch.Judges() {
		var before judge.Evaluation
		if recorded != nil {
			before = batch.JudgeSubject(ctx, recorded, k)
			out.Recorded.Evaluations = append(out.Recorded.Evaluations, evaluationOf(&before))
			out.addCost(&before)
		}
		after := batch.Judge(ctx, uid, k)
		if ctx.Err() != nil && after.Score == nil {
			out.addCost(&after)
			return false
		}
		worse := before.Score == nil || after.Score == nil || *after.Score < *before.Score
		problems := out.Problems
		if out.addEvaluation(&after); !worse {
			out.Problems = problems
		}
		if recorded == nil {
			continue
		}
		if why := out.Feedback.expectNoLess(&before, &after); why != "" && len(out.Problems) == len(problems) {
			out.Problems = append(out.Problems, why)
		}
	}
	return true
}

// shortAnswer returns the beginning of an answer, without control characters.
func shortAnswer(text string) string {
	text = termsafe.Safe(text)
	if runes := []rune(text); len(runes) > maxAnswer {
		text = string(runes[:maxAnswer])
	}
	return text
}

// addTurns adds the results of recorded Turns. Turns that cannot be replayed do not count.
func (r *Report) addTurns(results []*Result, threshold judge.Score) {
	t := r.Backtest
	changes := map[string]*Change{}
	var all []*Change
	var counted []*Result
	for _, one := range results {
		if one == nil {
			counted = append(counted, nil)
			continue
		}
		if one.skipped {
			t.Skipped = append(t.Skipped, Skipped{one.Name, one.Problems[0]})
			continue
		}
		counted = append(counted, one)
		t.Spent.merge(&one.recordedSpent) // even if the replay was interrupted, so that the sums can be compared
		if one.interrupted {
			continue
		}
		switch one.Prompt {
		case PromptSame:
			t.Same++
		case PromptFails:
			t.Fails++
		case PromptChanged:
			t.Changed++
			c := changes[one.change]
			if c == nil {
				c = &Change{Diff: one.diff}
				changes[one.change], all = c, append(all, c)
			}
			if c.Turns++; len(c.Names) < maxNames {
				c.Names = append(c.Names, one.Name)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *Change) int { return b.Turns - a.Turns })
	t.Changes = all[:min(len(all), maxChanges)]
	t.MoreChanges = len(all) - len(t.Changes)
	r.addAll(counted, threshold)
}

// shortDiff returns the beginning of a diff.
func shortDiff(text string) string {
	runes := []rune(text)
	if len(runes) <= maxChange {
		return text
	}
	return string(runes[:maxChange]) + fmt.Sprintf("\n(%d more characters are left out)\n", len(runes)-maxChange)
}

// title returns a line with the number and the names of the Turns that a change affects.
func (c *Change) title() string {
	text := fmt.Sprintf("The prompts of %s change: %s", termsafe.Counted(c.Turns, "Turn", "Turns"), strings.Join(c.Names, ", "))
	if more := c.Turns - len(c.Names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// total returns how many prompts change, and how many Turns were skipped.
func (t *Backtest) total() string {
	text := fmt.Sprintf("Prompts: %d changed, %d same, %d cannot be made.", t.Changed, t.Same, t.Fails)
	if n := len(t.Skipped); n > 0 {
		text += fmt.Sprintf(" %s skipped.", termsafe.Counted(n, "Turn was", "Turns were"))
	}
	return text
}

// calls returns how many calls of a replay were answered, and how many were not made.
func (r *Result) calls() string {
	if r.Calls == nil {
		return ""
	}
	text := fmt.Sprint(r.Calls.Recorded)
	if r.Calls.NotMade > 0 {
		text += fmt.Sprintf(", %d not made", r.Calls.NotMade)
	}
	return text
}

// changes returns the lines for each change of prompts. It leaves out a change for which lines returns none, and adds a
// line with the number of changes that are left out.
func (r *Report) changes(lines func(*Change) []string) []string {
	if r.Backtest == nil {
		return nil
	}
	var all []string
	n := r.Backtest.MoreChanges
	for _, c := range r.Backtest.Changes {
		text := lines(c)
		if len(text) == 0 {
			n++
		}
		all = append(all, text...)
	}
	if n > 0 {
		all = append(all, "", termsafe.Counted(n, "more change is left out.", "more changes are left out."))
	}
	return all
}

// skipped returns the lines about Turns that were skipped. escape makes a text safe for the format.
func (r *Report) skipped(escape func(string) string) []string {
	if r.Backtest == nil || len(r.Backtest.Skipped) == 0 {
		return nil
	}
	all := []string{""}
	for _, s := range r.Backtest.Skipped[:min(len(r.Backtest.Skipped), maxNames)] {
		all = append(all, fmt.Sprintf("Skipped: %s: %s", escape(s.Turn), escape(termsafe.Line(s.Reason, maxShown))))
	}
	if more := len(r.Backtest.Skipped) - maxNames; more > 0 {
		all = append(all, termsafe.Counted(more, "more Turn was skipped.", "more Turns were skipped."))
	}
	return all
}
