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
// refusal counts only if the judge gives the recorded answer a better score, or has not scored both answers. If a
// recorded result cannot be read, the answer is not checked, because it was made without that result. redaction applies
// the rules of the new Agent to the recorded texts, for the report and for the judges. replay returns false if ctx ends
// before the Turn ends, or before all judges have been asked.
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
	out.Spent.add(tokens(again.Result.Record.Usage), again.Result.Record.Cost)
	if again.Err != nil { // the replay was cancelled, because it lacks a recorded result
		return !out.failed(ctx, again.Err).interrupted
	}
	if again.Result.Stop == turn.StopCancelled { // otherwise, only the end of ctx cancels a Turn of a batch
		return false
	}
	out.Reason, out.Answer, out.Calls = again.Turn.StateReason(), shortAnswer(again.Result.Text), &again.Calls
	expect := Expect{}
	if why := expect.unexpectedEnd(again.Turn); why != "" {
		out.Outcome, out.Problems = Failed, []string{why}
		if again.Result.Stop == turn.StopModelError {
			out.Outcome = Errored // there is no answer to check
		}
	}
	if again.Result.Answered() {
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
