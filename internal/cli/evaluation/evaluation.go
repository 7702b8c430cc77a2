// Package evaluation runs an Agent over a file of cases without a cluster, or prepares and replays recorded Turns, and
// reports which results meet their expectations.
package evaluation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/manifest"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/skillfile"
)

// MaxParallel is the maximum number of cases that run at the same time.
const MaxParallel = 32

// Options holds the flags of capstan eval.
type Options struct {
	Env terminal.Environment
	// File is the path of the file of cases; "-" is standard input.
	File string
	// Manifests are the paths of further manifests.
	Manifests []string
	// Namespace is the namespace of objects that do not name one.
	Namespace string
	// Agent is NAME or NAMESPACE/NAME of the Agent. If it is empty, the file must name the Agent, or the manifests must
	// contain only one.
	Agent string
	// Profile is the name of a PromptProfile that replaces the Agent's PromptProfile. It may be empty.
	Profile string
	// Cases are the names of the cases to run. If it is empty, all cases run.
	Cases []string
	// Threshold is the share of cases that must pass, a decimal from 0 to 1.
	Threshold string
	// Parallel is the number of cases that run at the same time, from 1 to MaxParallel.
	Parallel int
	// Approve decides about tool calls that require approval: localrun.ApproveAll or localrun.ApproveNone.
	Approve localrun.ApprovalMode
	// EnvSecrets set keys of Secrets from environment variables, as [NAMESPACE/]NAME/KEY=ENVVAR.
	EnvSecrets []string
	// SkillsFile is the path of a file of skills that every Agent may load. It may be empty.
	SkillsFile string
	// Now is the time that the prompts contain. If it is zero, they contain the current time.
	Now time.Time
	// Quiet hides the line for each case that ends.
	Quiet bool
	// Output is the format of the report.
	Output Format
}

// Run runs the cases and prints the report. Its error has the code exit.Failed if fewer cases pass than Threshold
// requires, and exit.Usage if the input is invalid.
func (o *Options) Run(ctx context.Context) error {
	threshold, err := judge.ParseScore(o.Threshold)
	if err != nil {
		return exit.WithCode(exit.Usage, fmt.Errorf("--threshold: %w", err))
	}
	if o.Parallel < 1 || o.Parallel > MaxParallel {
		return exit.WithCode(exit.Usage, fmt.Errorf("--parallel: must be from 1 to %d", MaxParallel))
	}
	e, err := o.prepare(ctx)
	if err != nil {
		return inputError(err)
	}
	watched, release := exit.Watch(ctx)
	defer release()
	report, err := e.run(watched, threshold)
	if report == nil {
		return exit.InterruptedOr(watched, err)
	}
	return errors.Join(report.deliver(o.Env, o.Output, threshold, watched.Err() != nil), err)
}

// deliver prints the report. It returns an error if the evaluation was interrupted, or if too few cases passed.
func (r *Report) deliver(env terminal.Environment, format Format, threshold judge.Score, interrupted bool) error {
	text, err := r.encode(format, env.OutIsTerminal)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if err := env.PrintPaid(text); err != nil {
		return err
	}
	switch {
	case interrupted:
		return exit.WithCode(exit.Interrupted, fmt.Errorf("interrupted: the report has only the %s that had ended", r.unit()))
	case !r.OK:
		return exit.WithCode(exit.Failed, fmt.Errorf("%s, want %s of the %s", r.summary(), percent(threshold), r.unit()))
	}
	return nil
}

// inputError gives an error the code exit.Usage, which means that the input is invalid and no case has run. An
// interruption keeps its code.
func inputError(err error) error {
	if f, ok := errors.AsType[*exit.Error](err); ok && f.Code == exit.Interrupted {
		return err
	}
	return exit.WithCode(exit.Usage, err)
}

// evaluation has the cases to run, with their objects.
type evaluation struct {
	*Options
	cases   []Case
	bundles []*bundle.Bundle
}

// prepare reads the cases and the manifests.
func (o *Options) prepare(ctx context.Context) (*evaluation, error) {
	if o.File == "" {
		return nil, errors.New("there are no cases: name a file or - with -f")
	}
	text, err := readFile(o.File, o.Env.In)
	if err != nil {
		return nil, fmt.Errorf("failed to read the cases: %w", err)
	}
	f, cases, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	if cases, err = selected(cases, o.Cases); err != nil {
		return nil, err
	}
	paths := slices.Clone(o.Manifests)
	for _, path := range f.Manifests {
		paths = append(paths, relativeTo(o.File, path))
	}
	if len(paths) == 0 {
		return nil, errors.New("there are no manifests: name them in the field manifests of the file, or with --manifests")
	}
	if slices.Contains(paths, "-") {
		return nil, errors.New("manifests cannot be read from standard input here: name a file or a directory")
	}
	set, err := manifest.Load(ctx, paths, manifest.Options{Namespace: o.Namespace})
	if err != nil {
		return nil, err
	}
	namespace, agent, err := o.findAgent(set, f.Agent)
	if err != nil {
		return nil, err
	}
	if err := addTurns(ctx, o.File, set, cases, namespace, agent); err != nil {
		return nil, err
	}
	for _, line := range set.Ignored {
		o.Env.Logf("note: %s", line)
	}
	return o.assemble(set, cases, namespace, agent)
}

// assemble finds the objects of all cases.
func (o *Options) assemble(set *manifest.Set, cases []Case, namespace, agent string) (*evaluation, error) {
	for _, spec := range o.EnvSecrets {
		if err := set.SetSecretFromEnv(spec, o.Env.LookupEnv); err != nil {
			return nil, fmt.Errorf("--env-secret: %w", err)
		}
	}
	if a, ok := set.Agent(namespace, agent); ok && o.Profile != "" {
		if _, ok := set.PromptProfile(namespace, o.Profile); !ok {
			return nil, fmt.Errorf("--profile: %s", notFound(set, "PromptProfile", namespace, o.Profile))
		}
		a.Spec.PromptProfileRef = v1alpha1.SharedReference{Name: o.Profile}
	}
	var skills []prepare.Skill
	if o.SkillsFile != "" {
		var err error
		if skills, err = skillfile.Load(o.SkillsFile); err != nil {
			return nil, fmt.Errorf("--skills-file: %w", err)
		}
	}
	e := &evaluation{Options: o, cases: cases}
	for i := range cases {
		b, err := bundle.Find(set, namespace+"/"+cases[i].Name, skills, bundle.ManifestsFlag)
		if err != nil {
			return nil, err
		}
		if b.Turn.Spec.Citations == v1alpha1.CitationsHide {
			b.Turn.Spec.Citations = "" // expressions must see the sources even if the answer does not list them
		}
		e.bundles = append(e.bundles, b)
	}
	return e, checkJudges(cases, e.bundles[0].Profile)
}

// findAgent returns the namespace and the name of the Agent. named is the Agent that the file of cases names, or empty.
func (o *Options) findAgent(set *manifest.Set, named string) (namespace, name string, err error) {
	by := o.File + ": agent"
	if o.Agent != "" {
		named, by = o.Agent, "--agent"
	}
	if named != "" {
		namespace, name = o.split(named)
		if _, ok := set.Agent(namespace, name); !ok {
			return "", "", fmt.Errorf("%s: %s", by, notFound(set, "Agent", namespace, name))
		}
		return namespace, name, nil
	}
	names := set.Names("Agent")
	if len(names) != 1 {
		return "", "", fmt.Errorf("failed to choose an Agent: name one in the field agent of the file, or with --agent; the manifests "+
			"contain %s", orNone(names))
	}
	namespace, name = o.split(names[0])
	return namespace, name, nil
}

// notFound returns a message that an object is not in the manifests.
func notFound(set *manifest.Set, kind, namespace, name string) string {
	return bundle.NotFound(set, kind, types.NamespacedName{Namespace: namespace, Name: name}, bundle.ManifestsFlag)
}

// split returns the namespace and the name of an object that is given as NAME or NAMESPACE/NAME.
func (o *Options) split(text string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return namespace, name
	}
	return o.Namespace, text
}

// selected returns the cases with these names, or all cases if there are no names.
func selected(cases []Case, names []string) ([]Case, error) {
	if len(names) == 0 {
		return cases, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name }) {
			return nil, fmt.Errorf("--case: the file has no case %q", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return !slices.Contains(names, c.Name) }), nil
}

// CaseNames returns the names of the cases of a file, for completions. It returns none if the file cannot be read.
func CaseNames(path string) []string {
	text, err := readFile(path, strings.NewReader(""))
	if err != nil {
		return nil
	}
	_, cases, err := parse(text)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(cases))
	for i := range cases {
		names = append(names, cases[i].Name)
	}
	return names
}

// run runs the cases, at most Parallel at the same time. After the end of ctx, no case begins. The report is nil if no
// case has run. It may be complete although there is an error.
func (e *evaluation) run(ctx context.Context, threshold judge.Score) (*Report, error) {
	r := &localrun.Options{Source: &bundle.Source{Env: e.Env, Now: e.Now}, Approve: e.Approve}
	var live *terminal.Spinner
	if !e.Quiet {
		live = r.Env.StartSpinner()
	}
	if live != nil {
		defer live.Close()
	}
	batch, err := r.NewBatch(ctx, e.bundles[0])
	if err != nil {
		return nil, inputError(err)
	}
	w := &workers{env: r.Env, parallel: e.Parallel, quiet: e.Quiet, live: live, unit: "cases"}
	results := w.run(ctx, len(e.cases), func(i int) *Result { return e.one(ctx, batch, i) })
	err = batch.Close(ctx)
	return e.report(results, threshold), err
}

// workers evaluate several cases at the same time, and show their results.
type workers struct {
	env      terminal.Environment
	parallel int
	// quiet hides the line for each case that ends.
	quiet bool
	// live shows the number of cases that have ended. It may be nil.
	live *terminal.Spinner
	// unit is the plural noun for the cases: "cases" or "Turns".
	unit string
}

// run evaluates n cases and returns their results. The result of a case that has not begun before the end of ctx
// is nil.
func (w *workers) run(ctx context.Context, n int, one func(i int) *Result) []*Result {
	results := make([]*Result, n)
	var work sync.WaitGroup
	next, done := make(chan int), 0
	var mu sync.Mutex
	for range min(w.parallel, n) {
		work.Go(func() {
			for i := range next {
				result := one(i)
				results[i] = result // each index belongs to one case
				if result.interrupted {
					continue
				}
				mu.Lock()
				done++
				if !w.quiet {
					w.env.Logf("%s", result.line())
				}
				if w.live != nil {
					w.live.Show(fmt.Sprintf("%d of %d %s have ended", done, n, w.unit))
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	work.Wait()
	return results
}

// one runs one case. The result is interrupted if ctx ends before the Turn ends, or before all judges have been asked.
func (e *evaluation) one(ctx context.Context, batch *localrun.Batch, i int) *Result {
	c := &e.cases[i]
	begin := e.Env.Now()
	out := &Result{Name: c.Name, Outcome: Errored}
	t, result, err := batch.Run(e.bundles[i]) //nolint:contextcheck // because the batch holds its life
	if err != nil {
		return out.failed(ctx, err)
	}
	out.Outcome, out.Reason, out.Answer = Passed, t.StateReason(), result.Text
	out.addTurn(result)
	if result.Stop == turn.StopCancelled { // only the end of ctx cancels a Turn of a batch
		out.interrupted = true
		return out
	}
	out.Problems = c.Expect.unmet(ctx, t, result)
	if t.StateReason() == v1alpha1.TurnReasonModelFailed && c.Expect.Reason == "" {
		out.Outcome = Errored // there is no answer to check
	}
	// A text without an answer, such as one that was cut off, can also be the text to which people gave a bad score.
	if result.Text != "" {
		if why := c.Expect.Feedback.expectChange(result.Text); why != "" {
			out.Problems = append(out.Problems, why)
		}
	}
	if result.Answered() && !c.judge(ctx, batch, string(t.UID), out) {
		out.interrupted = true
		return out
	}
	if len(out.Problems) > 0 && out.Outcome == Passed {
		out.Outcome = Failed
	}
	out.Milliseconds = e.Env.Now().Sub(begin).Milliseconds()
	return out
}

// judge asks the judges to evaluate the answer of a case, and also an earlier answer with good feedback from people. It
// adds the evaluations and the expectations that are not met to the result. It returns false if ctx ends before all
// judges were asked.
func (c *Case) judge(ctx context.Context, batch *localrun.Batch, uid string, out *Result) bool {
	people := c.Expect.Feedback.score()
	for k, j := range batch.Judges() {
		current := batch.Judge(ctx, uid, k)
		if ctx.Err() != nil && current.Score == nil {
			out.addCost(&current)
			return false
		}
		if given, ok := c.Expect.Judges[j.Name]; ok && current.Score != nil {
			current.Threshold, _ = judge.ParseScore(given) // check has read it
			current.Evaluate(*current.Score, current.Reason)
		}
		out.addEvaluation(&current)
		if people == nil || !people.isGood || current.Score == nil {
			continue
		}
		earlier := batch.JudgeAnswer(ctx, uid, c.Expect.Feedback.Answer, k)
		out.addCost(&earlier)
		if ctx.Err() != nil && earlier.Score == nil {
			return false
		}
		if why := people.expectNoLess(&earlier, &current); why != "" {
			out.Problems = append(out.Problems, why)
		}
	}
	return true
}
