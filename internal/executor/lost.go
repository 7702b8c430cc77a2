package executor

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
)

// cutOffError ends a Turn without a result of the engine: with what its status knows.
type cutOffError struct {
	stop turn.Stop
	// message says why, for people.
	message string
	// loss is what became of the journal; nil for a journal that is there.
	loss *translate.Loss
	// subAgents are what the Turns of sub-agents took.
	subAgents []*tool.Spent
}

func (e *cutOffError) Error() string { return e.message }

// opened judges the journal that the run has found, before the run does anything. It returns nil if the run may go on, a
// *cutOffError if the Turn must end, and another error if that cannot be judged now.
func (r *run) opened(ctx context.Context, found finding, in *turn.Input, agent *v1alpha1.Agent) error {
	e := r.executor
	own, err := e.identity(ctx, r.epoch)
	if err != nil {
		return fmt.Errorf("failed to ask the store of the journal for its identity: %w", err)
	}
	c := continuity{
		first:    r.first,
		exact:    r.binding.JournalComplete || r.store.Load() != nil, // this run knows all entries of the journal that it has gone on from
		recorded: store.Identity{ID: r.binding.StoreID, Incarnation: r.binding.StoreIncarnation},
		own:      own, found: found, known: r.entries.Load(),
		effects: r.binding.SideEffects || r.binding.StoreID == "" && mayAffect(r.turn, agent, in.Tools),
		rerun:   r.turn.Spec.OnJournalLoss == v1alpha1.JournalLossRerun,
		ending:  in.Timeout <= 0 || r.cancelled.Err() != nil,
	}
	if n := r.binding.JournalEntries; n != nil {
		c.known = max(c.known, *n)
	}
	loss := &translate.Loss{Reason: c.loss(), Facts: c.facts(e.Name), Entries: found.entries, SideEffects: c.effects}
	switch c.judge() {
	case giveUp:
		return r.cutOff(in, loss)
	case startOver:
		if err := r.startOver(ctx, own, loss); err != nil {
			return err
		}
	case goOn:
	}
	r.entries.Store(found.entries)
	r.store.Store(&own)
	return nil
}

// cutOff returns the end of a Turn whose journal is lost.
func (r *run) cutOff(in *turn.Input, loss *translate.Loss) error {
	switch {
	case r.cancelled.Err() != nil:
		return &cutOffError{stop: turn.StopCancelled, message: "the turn was cancelled, and " + loss.Message(r.turn), loss: loss}
	case in.Timeout <= 0:
		return &cutOffError{stop: turn.StopDeadline, message: fmt.Sprintf("the turn reached its time limit of %s, and %s", in.Limit, loss.Message(r.turn)), loss: loss}
	}
	return &cutOffError{stop: turn.StopInterrupted, message: loss.Message(r.turn), loss: loss}
}

// startOver writes into the status that the Turn begins anew in another store, before it does.
func (r *run) startOver(ctx context.Context, own store.Identity, loss *translate.Loss) error {
	e := r.executor
	message := loss.StartOver()
	written, err := r.write(ctx, func(t *v1alpha1.Turn) {
		translate.StartOver(t, loss, e.Now())
		b := t.Status.Executor
		b.StoreID, b.StoreIncarnation, b.JournalEntries, b.JournalComplete = own.ID, own.Incarnation, nil, false
	})
	if err != nil {
		return err
	}
	metrics.JournalLost(written, metrics.LossRerun)
	e.Log.Info("The journal of a turn was lost; it starts over from what is left", "entries", loss.Entries, "turn", r.key(), "epoch", r.epoch, "reason", loss.Reason, "detail", loss.Facts)
	e.Events.Eventf(written, nil, corev1.EventTypeWarning, v1alpha1.EventJournalLost, "Rerun", "%s", translate.Note(message))
	return nil
}

// beforeEffect writes into the status that the Turn has side effects, before the first call that may have one, where the
// binding does not say so. Mostly it does.
func (r *run) beforeEffect(ctx context.Context) error {
	if r.binding.SideEffects {
		return nil
	}
	_, err := r.write(ctx, func(t *v1alpha1.Turn) {
		r.stamp(t, false)
		t.Status.Executor.SideEffects = true
	})
	r.binding.SideEffects = r.binding.SideEffects || err == nil // an API server with an older CRD does not keep it
	return err
}

// write changes the status of the Turn while it runs. The error is errSuperseded for a Turn that is not this run's any more.
func (r *run) write(ctx context.Context, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	written, err := r.executor.persist(ctx, r.turn, r.epoch, change)
	switch {
	case err != nil:
		return nil, err
	case written == nil:
		return nil, errSuperseded
	}
	r.turn, r.binding = written, *written.Status.Executor.DeepCopy()
	r.progress.wrote(written)
	return written, nil
}

// stamp writes into a binding what this run knows of the journal: which store has it, how many entries there are, and whether that is
// all because the run hands the Turn back. A run that has found nothing, and was not the first, leaves what the binding says: that
// there is nothing does not prove that there never was.
func (r *run) stamp(t *v1alpha1.Turn, handBack bool) {
	b, own, n := t.Status.Executor, r.store.Load(), r.entries.Load()
	switch {
	case own != nil && (n > 0 || r.first):
		b.StoreID, b.StoreIncarnation, b.JournalEntries, b.JournalComplete = own.ID, own.Incarnation, new(n), handBack
	case r.first && !r.tried: // it has not begun, and no run of a newer epoch has
		b.JournalEntries, b.JournalComplete = new(int64(0)), handBack
	}
}

// confirm brings the store of the run up to date after the store got another incarnation: if it has all entries that this run knows of, the
// journal is whole there.
func (r *run) confirm(ctx context.Context, uid string) {
	e := r.executor
	own, now := r.store.Load(), e.Store.Last().Identity
	if own == nil || *own == now || own.ID != now.ID {
		return
	}
	known := r.entries.Load()
	if last, err := e.Engine.Journal.Last(ctx, uid); err == nil && last >= known {
		r.store.CompareAndSwap(own, &now)
	}
}

// lose writes the end of a Turn whose journal cannot be used, then tells people.
func (r *run) lose(ctx context.Context, cut *cutOffError) {
	e := r.executor
	written, _ := e.persist(ctx, r.turn, r.epoch, func(t *v1alpha1.Turn) { r.cutShort(t, cut) })
	if written == nil {
		return
	}
	r.turn = written
	metrics.Ended(written, nil)
	if cut.loss != nil {
		metrics.JournalLost(written, metrics.LossInterrupted)
		e.Events.Eventf(written, nil, corev1.EventTypeWarning, v1alpha1.EventJournalLost, "Interrupt", "%s", translate.Note(cut.message))
	}
	e.announceEnd(written, cut.stop)
}

// StoreIdentity says which store an executor keeps journals in.
type StoreIdentity = store.Identity

// identity returns the identity of the store. A first run can go by the last answer: nothing was before it.
func (e *Executor) identity(ctx context.Context, epoch int64) (store.Identity, error) {
	if last := e.Store.Last(); epoch == 1 && last.ID != "" {
		return last.Identity, nil
	}
	return e.Store.Ask(ctx)
}

// mayAffect reports whether a Turn may call a tool that is not ReadOnly, as its Agent stands, or as the tools say that the
// executor offers to all Agents.
func mayAffect(t *v1alpha1.Turn, agent *v1alpha1.Agent, own []tool.Tool) bool {
	return translate.MayAffect(t, agent) || slices.ContainsFunc(own, func(o tool.Tool) bool { return o.Effect != tool.ReadOnly })
}
