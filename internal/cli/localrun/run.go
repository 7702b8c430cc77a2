// Package localrun runs a Turn from manifests in this process, without a cluster.
package localrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// executorName is the name in status.executor of a Turn that runs without a cluster.
const executorName = "local"

// localUser is the requester of a Turn that names none.
const localUser = "local"

// errInterrupted is the cause of a run that Ctrl-C stopped and that a later run can continue.
var errInterrupted = errors.New("interrupted")

// Options holds the flags of capstan run.
type Options struct {
	*bundle.Source
	// EnvSecrets set keys of Secrets from environment variables, as [NAMESPACE/]NAME/KEY=ENVVAR.
	EnvSecrets []string
	// DataDir is the directory of the journal. If it is empty, no journal is kept.
	DataDir string
	// Quiet hides requests, replies and calls as they happen.
	Quiet bool
	// Approve says who decides about calls that require approval.
	Approve ApprovalMode
	// Output is text, json or yaml.
	Output output.Format
	// Continue is the UID of the Turn that an earlier run has begun. If it is set, and the flags and manifests give
	// another Turn, Run returns an error.
	Continue types.UID
	// continued is true if this run continued a Turn that an earlier run had started. undecided lists the calls that
	// still require an approval, for messages.
	continued bool
	undecided []string
}

// Run runs the Turn and prints its outcome. It returns an error if the Turn did not succeed.
func (r *Options) Run(ctx context.Context, args []string) error {
	p, err := r.Load(ctx, args)
	if err != nil {
		return err
	}
	for _, spec := range r.EnvSecrets {
		if err := p.Set.SetSecretFromEnv(spec, r.Env.LookupEnv); err != nil {
			return exit.WithCode(exit.Usage, fmt.Errorf("--env-secret: %w", err))
		}
	}
	t := p.Turn.DeepCopy()
	t.Generation = 1 // the generation of an object that was created and never changed
	if t.UID, err = p.Identity(ctx, r.Now); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if r.Continue != "" && t.UID != r.Continue {
		return exit.WithCode(exit.Failed, fmt.Errorf("%s has begun with other flags or manifests, and can continue only with the same: "+
			"nothing was done", p.Title()))
	}
	if !r.hasJournals() && endOrSuspend(t, r.Clock()()) {
		return r.report(p, t, nil)
	}
	return r.execute(ctx, p, t)
}

// endOrSuspend ends or suspends a Turn that has not run and must not run, as a cluster does before it binds the Turn.
// It reports whether it did.
func endOrSuspend(t *v1alpha1.Turn, now time.Time) bool {
	switch t.Spec.DesiredState {
	case v1alpha1.DesiredStateCancelled:
		turnstatus.End(t, v1alpha1.TurnReasonCancelled, "the turn was cancelled before it ran", now)
		return true
	case v1alpha1.DesiredStateSuspended:
		turnstatus.Wait(t, v1alpha1.TurnReasonSuspended, "the turn is suspended; set desiredState to Active to continue", 0, now)
		return true
	case v1alpha1.DesiredStateActive:
	}
	return false
}

// mayAskModels reports whether a Turn may send requests according to its desired state.
func mayAskModels(t *v1alpha1.Turn) bool {
	return t.Spec.DesiredState != v1alpha1.DesiredStateCancelled && t.Spec.DesiredState != v1alpha1.DesiredStateSuspended
}

// applyDesiredState ends or suspends a Turn that must not run on, and reports whether it did. If an earlier run has
// ended the Turn, its result stays. If an earlier run has begun a Turn that is now cancelled, the engine ends it,
// because only the journal has its usage and its calls.
func (j *localRun) applyDesiredState(t *v1alpha1.Turn, before earlierRuns) (done bool) {
	begun := before.last.Seq > 0
	switch {
	case mayAskModels(t), before.last.Kind == journal.Finalized:
		return false
	case begun && t.Spec.DesiredState == v1alpha1.DesiredStateCancelled:
		cancelled, cancel := context.WithCancel(j.life)
		cancel()
		j.cancel = cancelled
		return false
	}
	return endOrSuspend(t, j.Clock()())
}

// execute runs the Turn from its start or from its journal, and prints its outcome. It learns from the Turn only after
// that, so that the answer is not delayed.
func (r *Options) execute(ctx context.Context, p *bundle.Bundle, t *v1alpha1.Turn) (err error) {
	watched, release := exit.Watch(ctx)
	defer release()
	steady := context.WithoutCancel(ctx)
	life, abandon := context.WithCancelCause(steady)
	defer abandon(nil)

	if mayAskModels(t) {
		if err := p.CheckAttachments(); err != nil {
			return err
		}
	}
	j, err := r.newLocalRun(steady, p)
	if err != nil {
		return err
	}
	defer func() { err = joinErrors(err, j.close(steady)) }()
	j.watched, j.life, j.abandon = watched, life, abandon
	w, err := j.runTurn(ctx, p, t)
	if err != nil {
		return err
	}
	var result *turn.Result
	if w != nil {
		result = w.result
	}
	j.closeLive()
	err = r.report(p, t, result)
	if w != nil && w.unrecorded != nil {
		return j.reportUnrecorded(w, err)
	}
	if err != nil {
		return err
	}
	if w != nil {
		j.learn(watched, w)
	}
	return nil
}

// joinErrors joins two errors like errors.Join. If last is nil, it returns err itself.
func joinErrors(err, last error) error {
	if last == nil {
		return err
	}
	return errors.Join(err, last)
}

// runTurn runs the Turn, and writes its status. It returns nil if the Turn did not run. If the Turn waits, the returned
// Turn has no result.
func (j *localRun) runTurn(ctx context.Context, p *bundle.Bundle, t *v1alpha1.Turn) (*localTurn, error) {
	r, watched, life, steady := j.Options, j.watched, j.life, context.WithoutCancel(ctx)
	before, err := j.store.earlierRuns(steady, string(t.UID))
	if err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	if err := j.endReplaced(steady, t); err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	if j.applyDesiredState(t, before) {
		return nil, nil //nolint:nilnil // because the Turn did not run, and its status says so
	}
	if closed, err := r.enterSession(steady, p, t, j.store, before); err != nil || closed {
		return nil, err //nolint:nilnil // because the Turn did not run, and its status says so
	}
	if r.DataDir == "" {
		j.cancel = watched // without a journal, the Turn cannot be continued
	} else {
		defer context.AfterFunc(watched, func() { j.abandon(errInterrupted) })() //nolint:contextcheck // because the Turn can continue
	}
	spanSeed, err := joinTrace(t, before, r.Env.LookupEnv, j.traces.On())
	if err != nil {
		return nil, err
	}
	w, err := j.begin(ctx, p, t, r.bind(t, before), spanSeed)
	if err != nil {
		return nil, err
	}
	r.continued = before.last.Seq > 0 && before.last.Kind != journal.Finalized
	var unrecorded *turn.Result
	w.engine.Unrecorded = func(result *turn.Result) { unrecorded = result }
	err = j.drive(w) //nolint:contextcheck // because the localRun holds its context
	if unrecorded != nil {
		w.result, w.unrecorded = unrecorded, err
		turnstatus.Finish(t, unrecorded, w.binding.end())
		return w, nil
	}
	if waits, ok := errors.AsType[*loop.Parked](err); ok {
		w.park(waits)
		return w, nil
	}
	if err != nil {
		return nil, r.stopped(p, t, err, life.Err() != nil)
	}
	return w, nil
}

// stopped returns the error for a Turn that has not ended.
func (r *Options) stopped(p *bundle.Bundle, t *v1alpha1.Turn, err error, interrupted bool) error {
	if interrupted {
		message := p.Title() + ": interrupted before it ended"
		if r.DataDir != "" {
			message += "; run the same command again to continue"
		}
		return exit.WithCode(exit.Interrupted, errors.New(message))
	}
	return exit.WithCode(exit.Failed, fmt.Errorf("%s (journal key %s) has not ended: %w", p.Title(), t.UID, err))
}
