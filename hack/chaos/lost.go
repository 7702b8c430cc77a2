package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// One in suspendedOneIn Turns is suspended before the loss.
	suspendedOneIn = 5
	// lossPatience is the maximum time until enough Turns are in the middle of their work.
	lossPatience = 60 * time.Second
)

// lossPhase runs Turns on one store and continues them on another one, like a Pod that loses its emptyDir.
type lossPhase struct {
	*rig
	phase string
	facts []fact
	found []violation
}

// lost removes the journals of Turns that run, wait for approval, wait for sub-agents, or are suspended: once after the
// manager was killed, and once after it was shut down. Then it replaces a store with an older copy, for SQLite and for
// PostgreSQL.
func (r *rig) lost(ctx context.Context) (*phaseReport, error) {
	l := &lossPhase{rig: r, phase: "lost"}
	r.tools.setSlowest(slowestSlowCall) // so that calls are in flight
	defer r.tools.setSlowest(slowestCall)
	for i, how := range []string{"SIGKILL", "SIGTERM"} {
		if err := l.round(ctx, i, how); err != nil {
			return nil, fmt.Errorf("journals lost after %s: %w", how, err)
		}
	}
	if err := l.restoredCopies(ctx); err != nil {
		return nil, err
	}
	p := &phaseReport{Done: l.facts, Violations: l.found}
	p.checked(everyTurnFinished, calledOnce, lostJournals)
	return p, nil
}

func (l *lossPhase) wrong(g guarantee, turn, format string, args ...any) {
	l.found = append(l.found, violation{Guarantee: g, Turn: turn, What: fmt.Sprintf(format, args...)})
}

func (l *lossPhase) fact(what, format string, args ...any) {
	l.facts = append(l.facts, fact{what, fmt.Sprintf(format, args...)})
}

// spec returns the specification of a manager on one of the stores of a round.
func (l *lossPhase) spec(store journalStore) managerSpec {
	return managerSpec{name: "manager", namespace: l.phase, store: store.url(), capacity: 100}
}

// round runs Turns until they are in the middle of their work and ends the manager. Then another manager finishes
// the Turns without the journals.
func (l *lossPhase) round(ctx context.Context, number int, how string) error {
	old, fresh := l.newSQLite(fmt.Sprintf("lost-%d-old", number)), l.newSQLite(fmt.Sprintf("lost-%d-new", number))
	p, err := l.startManager(ctx, l.spec(old))
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for i := range l.executorTurns {
		name := fmt.Sprintf("%s-%03d", strings.ToLower(how), i)
		names[name] = true
		if err := l.createTurn(ctx, l.phase, name, lasting[i%len(lasting)], i); err != nil {
			return err
		}
	}
	if err := l.awaitWork(ctx, names); err != nil {
		return err
	}
	if how == "SIGKILL" {
		p.kill()
	} else if err := p.stop(); err != nil {
		return err
	}
	begun, err := l.begun(ctx, old)
	if err != nil {
		return err
	}
	before := l.tools.effects()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer runInBackground(ctx, fail, l.newApprover(l.phase, slowestDecision).run)()
	if p, err = l.startManager(ctx, l.spec(fresh)); err != nil {
		return err
	}
	if err := l.activate(ctx); err != nil {
		return err
	}
	if err := l.awaitAllFinished(ctx, l.phase); err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	return l.check(ctx, how, begun, before)
}

// belongs reports whether a Turn has one of these names, or is the Turn of a sub-agent of such a Turn.
func belongs(t *v1alpha1.Turn, names map[string]bool) bool {
	if owner, ok := translate.Parent(t); ok {
		return names[owner.Name]
	}
	return names[t.Name]
}

// awaitWork waits until some of the Turns wait for approval and enough calls have been made. Then it suspends some
// Turns.
func (l *lossPhase) awaitWork(ctx context.Context, names map[string]bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lossPatience, fmt.Errorf("timed out after %s", lossPatience))
	defer cancel()
	for {
		turns, err := l.turns(ctx, l.phase)
		if err != nil {
			return err
		}
		parked, running := 0, 0
		for i := range turns {
			switch t := &turns[i]; {
			case !belongs(t, names) || t.IsFinished():
			case len(t.Status.PendingApprovals) > 0:
				parked++
			case t.BoundTo() != "":
				running++
			}
		}
		if parked > 0 && running > 0 && l.tools.effectCount() >= len(names)/2 {
			return l.suspend(ctx, turns, names)
		}
		if !pause(ctx, probeInterval) {
			return fmt.Errorf("gave up waiting for Turns in the middle of their work: %d are running and %d wait for approval: %w",
				running, parked, context.Cause(ctx))
		}
	}
}

func (l *lossPhase) suspend(ctx context.Context, turns []v1alpha1.Turn, names map[string]bool) error {
	n := 0
	for i := range turns {
		t := &turns[i]
		if _, child := translate.Parent(t); child || !names[t.Name] || t.IsFinished() {
			continue
		}
		if n++; n%suspendedOneIn != 0 {
			continue
		}
		if err := l.setDesiredState(ctx, t, v1alpha1.DesiredStateSuspended); err != nil {
			return err
		}
	}
	return nil
}

// activate sets all suspended Turns to Active again.
func (l *lossPhase) activate(ctx context.Context) error {
	turns, err := l.turns(ctx, l.phase)
	if err != nil {
		return err
	}
	for i := range turns {
		if turns[i].Spec.DesiredState != v1alpha1.DesiredStateSuspended {
			continue
		}
		if err := l.setDesiredState(ctx, &turns[i], v1alpha1.DesiredStateActive); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossPhase) setDesiredState(ctx context.Context, t *v1alpha1.Turn, state v1alpha1.DesiredState) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec": {"desiredState": %q}}`, state))
	if err := l.api.Patch(ctx, t, patch); err != nil {
		return fmt.Errorf("failed to make Turn %q %s: %w", t.Name, state, err)
	}
	return nil
}

// begun returns the UIDs of the unfinished Turns that have entries in a store.
func (l *lossPhase) begun(ctx context.Context, old journalStore) (_ map[string]bool, err error) {
	turns, err := l.turns(ctx, l.phase)
	if err != nil {
		return nil, err
	}
	kept, err := old.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to open the store: %w", err)
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	begun := map[string]bool{}
	for i := range turns {
		if turns[i].IsFinished() {
			continue
		}
		uid := string(turns[i].UID)
		entries, err := journal.Collect(ctx, kept, uid)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			begun[uid] = true
		}
	}
	if len(begun) == 0 {
		return nil, errors.New("no Turn was in the middle of its work: this proves nothing")
	}
	return begun, nil
}

// check compares the statuses of the Turns with the calls that the tool server has received. before holds the
// server's side effects at the moment when the journals were lost.
func (l *lossPhase) check(ctx context.Context, how string, begun map[string]bool, before map[effect]int) error {
	turns, err := l.turns(ctx, l.phase)
	if err != nil {
		return err
	}
	made, twice := 0, 0
	for e, n := range l.tools.effects() {
		made += n
		if n > 1 {
			twice++
			l.wrong(calledOnce, nameOf(turns, e.Turn),
				"%s of step %d, place %d, was called %d times, %d of them before the journal was lost",
				e.Tool, e.Step, e.Place, n, before[e])
		}
	}
	lost, unknown := 0, 0
	for i := range turns {
		t := &turns[i]
		if !begun[string(t.UID)] {
			continue
		}
		lost++
		if t.Status.Steps != nil {
			unknown += int(t.Status.Steps.UnknownOutcomes)
		}
		l.checkTurn(t)
	}
	l.fact("Turns in the middle of their work when the journals were lost after "+how, "%d", lost)
	l.fact("  side-effecting calls by then, and in total", "%d, %d", sum(before), made)
	l.fact("  made twice", "%d", twice)
	l.fact("  unknown outcomes, by the statuses", "%d", unknown)
	return nil
}

// nameOf returns the name of the Turn with a UID, or the UID if the Turns do not include it.
func nameOf(turns []v1alpha1.Turn, uid string) string {
	for i := range turns {
		if string(turns[i].UID) == uid {
			return turns[i].Name
		}
	}
	return uid
}

// checkTurn checks the status of a Turn whose journal was lost.
func (l *lossPhase) checkTurn(t *v1alpha1.Turn) {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	_, child := translate.Parent(t)
	switch {
	// The parent has lost its journal, too. It ended first, which has cancelled the child.
	case child && t.Status.StopReason == v1alpha1.StopCancelled:
	case c == nil || t.Status.StopReason != v1alpha1.StopInterrupted:
		l.wrong(lostJournals, t.Name, "it ended as %q: %s", t.Status.StopReason, messageOf(t))
	case !strings.Contains(c.Message, "the journal of the turn was lost"):
		l.wrong(lostJournals, t.Name, "its message does not say that the journal was lost: %s", c.Message)
	case !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionJournalLost):
		l.wrong(lostJournals, t.Name, "it does not have the condition %s", v1alpha1.ConditionJournalLost)
	case t.Status.Steps == nil || t.Status.Steps.UnknownOutcomes == 0:
		l.wrong(lostJournals, t.Name, "it may have called tools, but counts no unknown outcome")
	}
}

func sum(effects map[effect]int) int {
	n := 0
	for _, made := range effects {
		n += made
	}
	return n
}
