package executor

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// cutOffError ends a Turn that has no result of the engine. The Turn ends with the data of its status.
type cutOffError struct{ turnstatus.Cut }

func (e *cutOffError) Error() string { return e.Message }

// checkJournal checks the journal that the run has found, before the run does anything. It returns nil if the run may
// continue, a *cutOffError if the Turn must end, and another error if the check is not possible now.
func (r *run) checkJournal(ctx context.Context, found finding, in *turn.Input, agent *v1alpha1.Agent) error {
	e := r.executor
	own, err := e.identity(ctx, r.first)
	if err != nil {
		return fmt.Errorf("failed to ask the store of the journal for its identity: %w", err)
	}
	c := continuity{
		first:    r.first,
		exact:    r.binding.JournalComplete || r.store.Load() != nil, // a continued run knows all entries
		recorded: store.Identity{ID: r.binding.StoreID, Incarnation: r.binding.StoreIncarnation},
		own:      own, found: found, known: r.entries.Load(),
		effects: r.binding.SideEffects || r.binding.StoreID == "" && mayAffect(r.turn, agent, in.Tools),
		rerun:   r.turn.Spec.OnJournalLoss == v1alpha1.JournalLossRerun,
		ending:  in.Timeout <= 0 || r.cancelled.Err() != nil,
	}
	if n := r.binding.JournalEntries; n != nil {
		c.known = max(c.known, *n)
	}
	loss := &turnstatus.Loss{
		Reason: c.loss(), Facts: c.facts(e.Name), Entries: found.entries, SideEffects: c.effects, BeforeRequest: r.beforeRequest(),
	}
	switch c.verdict() {
	case endTurn:
		return r.cutOff(in, loss)
	case startOver:
		if err := r.startOver(ctx, own, loss); err != nil {
			return err
		}
		in.IsCounted = turnstatus.IsCounted(r.turn) // startOver has written the loss
	case continueRun:
	}
	r.entries.Store(found.entries)
	r.store.Store(&own)
	return nil
}

// beforeRequest reports whether certainly no run of the Turn has sent a request to a model: neither this run, nor an
// earlier one, whose status is complete, nor a run before an earlier loss.
func (r *run) beforeRequest() bool {
	if p := r.progress.last(); p != nil && p.Counts.ModelRequests > 0 {
		return false
	}
	steps := r.turn.Status.Steps
	return (r.first || r.binding.JournalComplete) && (steps == nil || steps.ModelRequests == 0) && !turnstatus.IsCounted(r.turn)
}

// cutOff returns the error that ends a Turn whose journal is lost.
func (r *run) cutOff(in *turn.Input, loss *turnstatus.Loss) error {
	cut := turnstatus.Cut{Stop: turn.StopInterrupted, Message: loss.Message(r.turn), Loss: loss}
	switch {
	case r.cancelled.Err() != nil:
		cut.Stop, cut.Message = turn.StopCancelled, "the turn was cancelled, and "+cut.Message
	case in.Timeout <= 0:
		cut.Stop, cut.Message = turn.StopDeadline, fmt.Sprintf("the turn reached its time limit of %s, and %s", in.Limit, cut.Message)
	}
	return &cutOffError{cut}
}

// startOver records in the status that the Turn starts over, and in which store, before the Turn does so.
func (r *run) startOver(ctx context.Context, own store.Identity, loss *turnstatus.Loss) error {
	e := r.executor
	message := loss.StartOver()
	written, err := r.write(ctx, func(t *v1alpha1.Turn) {
		turnstatus.StartOver(t, loss, own, e.Now())
	})
	if err != nil {
		return err
	}
	metrics.JournalLost(written, metrics.LossRerun)
	r.log().Info("The journal of a turn was lost; the turn starts over from the entries that are left", "entries",
		loss.Entries, "epoch", r.epoch, "reason", loss.Reason, "detail", loss.Facts)
	e.Events.Eventf(written, nil, corev1.EventTypeWarning, v1alpha1.EventJournalLost, "Rerun", "%s", message)
	return nil
}

// beforeEffect records in the status that the Turn has side effects, before the first call that may have one. It
// writes nothing if the binding already says so, which is the usual case.
func (r *run) beforeEffect(ctx context.Context) error {
	if r.binding.SideEffects {
		return nil
	}
	_, err := r.write(ctx, func(t *v1alpha1.Turn) { turnstatus.MarkSideEffects(t, r.known()) })
	r.binding.SideEffects = r.binding.SideEffects || err == nil // an API server with an older CRD drops the field
	return err
}

// write changes the status of the Turn during the run. It returns errSuperseded if the Turn no longer belongs to
// this run.
func (r *run) write(ctx context.Context, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	written, err := r.persist(ctx, change)
	switch {
	case err != nil:
		return nil, err
	case written == nil:
		return nil, errSuperseded
	}
	r.binding = *written.Status.Executor.DeepCopy()
	r.progress.setTurn(written)
	return written, nil
}

// known returns what this run knows about the journal. If this run found no entries and was not the first, known
// returns an empty turnstatus.Run, because an empty journal does not prove that there were never any entries.
func (r *run) known() turnstatus.Run {
	switch own, n := r.store.Load(), r.entries.Load(); {
	case own != nil && (n > 0 || r.first):
		return turnstatus.Run{Store: own, Entries: &n}
	case r.first && !r.tried: // neither an earlier run nor this run has begun anything
		return turnstatus.Run{Entries: new(int64(0))}
	}
	return turnstatus.Run{}
}

// facts returns what this run knows about the journal, with the newest progress.
func (r *run) facts() turnstatus.Run {
	all := r.known()
	all.Progress = r.progress.last()
	return all
}

// confirm updates the store of the run after the store changed its incarnation. If the store still has all entries
// that this run knows of, the journal is complete in the new incarnation, too.
func (r *run) confirm(ctx context.Context, uid string) {
	e := r.executor
	own, current := r.store.Load(), e.Store.Last().Identity
	if own == nil || *own == current || own.ID != current.ID {
		return
	}
	known := r.entries.Load()
	if last, err := e.Engine.Journal.Last(ctx, uid); err == nil && last >= known {
		r.store.CompareAndSwap(own, &current)
	}
}

// endCutOff writes the end of a Turn whose journal cannot be used, then emits its Events.
func (r *run) endCutOff(ctx context.Context, cut *cutOffError) {
	e := r.executor
	now := e.Now() // each attempt must write the same time: see turnstatus.IsWritten
	written, err := r.persist(ctx, func(t *v1alpha1.Turn) { turnstatus.CutOff(t, r.progress.last(), cut.Cut, now) })
	if writeerror.IsRejected(err) {
		written = r.endRejected(ctx, err, turnstatus.FinishRefused)
	}
	if written == nil {
		return
	}
	metrics.Ended(written, nil)
	e.Traces.End(written, time.Time{})
	if cut.Loss != nil {
		metrics.JournalLost(written, metrics.LossInterrupted)
		e.Events.Eventf(written, nil, corev1.EventTypeWarning, v1alpha1.EventJournalLost, "Interrupt", "%s", cut.Message)
	}
	e.announceEnd(written, cut.Stop)
}

// StoreIdentity identifies the store in which an executor keeps journals.
type StoreIdentity = store.Identity

// identity returns the identity of the store. first is true for a run before which no journal existed: it may use the
// last known identity.
func (e *Executor) identity(ctx context.Context, first bool) (store.Identity, error) {
	if last := e.Store.Last(); first && last.ID != "" {
		return last.Identity, nil
	}
	return e.Store.Identity(ctx)
}

// mayAffect reports whether a Turn may call a tool that is not ReadOnly: a tool of its Agent's current spec, or one of
// the additional tools that the executor offers.
func mayAffect(t *v1alpha1.Turn, agent *v1alpha1.Agent, additional []tool.Tool) bool {
	return translate.MayAffect(t, agent) || slices.ContainsFunc(additional, func(o tool.Tool) bool { return o.Effect != tool.ReadOnly })
}
