package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
)

// positionsPassed is the number by which the position in the Lease must grow after the copy was made. It is more than
// two, because the position of the store, and so of the copy, may be two ahead of the position in the Lease.
const positionsPassed = 3

// restoredCopies tests both kinds of stores: it runs Turns, copies the store, lets the Turns continue, kills the
// manager and replaces the store with the copy.
func (l *lossPhase) restoredCopies(ctx context.Context) error {
	database, err := l.postgres(ctx)
	if err != nil {
		return err
	}
	for name, store := range map[string]journalStore{"sqlite": l.newSQLite("restored"), "postgresql": database} {
		old, ok := store.(copiedStore)
		if !ok {
			return fmt.Errorf("the store %s cannot be copied", name)
		}
		if err := l.loseToOlderCopy(ctx, name, old); err != nil {
			return fmt.Errorf("failed to test an older copy of %s: %w", name, err)
		}
	}
	return nil
}

// loseToOlderCopy runs Turns, and replaces the store by a copy that was made in the middle of their work.
func (l *lossPhase) loseToOlderCopy(ctx context.Context, name string, store copiedStore) error {
	p, err := l.startManager(ctx, l.spec(store))
	if err != nil {
		return err
	}
	for i := range l.executorTurns / 2 {
		if err := l.createTurn(ctx, l.phase, fmt.Sprintf("%s-before-%03d", name, i), lasting[i%len(lasting)], i); err != nil {
			return err
		}
	}
	if err := l.awaitCalls(ctx, l.tools.effectCount()+2); err != nil {
		return err
	}
	restore, err := store.backUp(ctx)
	if err != nil {
		return err
	}
	if err := l.outrunCopy(ctx, name); err != nil {
		return err
	}
	p.kill()
	begun, err := l.begun(ctx, store)
	if err != nil {
		return err
	}
	before := l.tools.effects()
	if err := restore(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer runInBackground(ctx, fail, l.newApprover(l.phase, slowestDecision).run)()
	if p, err = l.startManager(ctx, l.spec(store)); err != nil {
		return err
	}
	if err := errors.Join(l.awaitAllFinished(ctx, l.phase), p.stop()); err != nil {
		return err
	}
	return l.checkRestored(ctx, name, begun, before)
}

// outrunCopy creates Turns until a Lease has published positions that the copy cannot have, and two more calls were
// made afterwards. These calls show that Turns are at work: a Turn that waits for approval makes no calls.
func (l *lossPhase) outrunCopy(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lossPatience, fmt.Errorf("timed out after %s", lossPatience))
	defer cancel()
	position, err := l.position(ctx)
	if err != nil {
		return err
	}
	target, enough := position+positionsPassed, math.MaxInt
	for i := 0; l.tools.effectCount() < enough; i++ {
		if i%20 == 0 { // one each second, so that a Turn is always running
			if err := l.createTurn(ctx, l.phase, fmt.Sprintf("%s-after-%03d", name, i/20), lasting[i/20%len(lasting)], i/20); err != nil {
				return err
			}
		}
		if !pause(ctx, probeInterval) {
			return fmt.Errorf("gave up waiting for a Lease with position %d or later (now %d) and two more calls: %w", target, position,
				context.Cause(ctx))
		}
		if position, err = l.position(ctx); err != nil {
			return err
		}
		if position >= target && enough == math.MaxInt {
			enough = l.tools.effectCount() + 2
		}
	}
	return nil
}

// position returns the position that the Lease of the manager publishes.
func (l *lossPhase) position(ctx context.Context) (int64, error) {
	var lease coordinationv1.Lease
	if err := l.api.Get(ctx, client.ObjectKey{Namespace: l.phase, Name: executor.LeasePrefix + "manager"}, &lease); err != nil {
		return 0, fmt.Errorf("failed to get the Lease of the manager: %w", err)
	}
	return strconv.ParseInt(lease.Annotations[executor.PositionAnnotation], 10, 64)
}

// checkRestored compares the statuses of the Turns with the calls that the tool server has received.
func (l *lossPhase) checkRestored(ctx context.Context, name string, begun map[string]bool, before map[effect]int) error {
	turns, err := l.turns(ctx, l.phase)
	if err != nil {
		return err
	}
	twice := 0
	for e, n := range l.tools.effects() {
		if n > 1 && n > before[e] {
			twice++
			l.wrong(calledOnce, nameOf(turns, e.Turn),
				"%s of step %d, place %d, was called %d times, %d of them before the copy of %s was restored",
				e.Tool, e.Step, e.Place, n, before[e], name)
		}
	}
	lost := 0
	for i := range turns {
		t := &turns[i]
		if begun[string(t.UID)] && t.Status.StopReason == v1alpha1.StopInterrupted {
			lost++
			if !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionJournalLost) {
				l.wrong(lostJournals, t.Name, "it was interrupted, but does not have the condition %s: %s",
					v1alpha1.ConditionJournalLost, messageOf(t))
			}
		}
	}
	if lost == 0 {
		l.wrong(lostJournals, "", "an older copy of %s was restored, but none of %d Turns reports it", name, len(begun))
	}
	l.fact("Turns in the middle of their work when an older copy of "+name+" was restored", "%d", len(begun))
	l.fact("  interrupted, and calls made twice", "%d, %d", lost, twice)
	return nil
}
