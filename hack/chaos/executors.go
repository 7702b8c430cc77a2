package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/executor"
)

const (
	// moveSlack is the maximum time that Turns may need to move, in addition to the duration of a Lease.
	moveSlack = 5 * time.Second
	// movePatience is the maximum time for which the test waits until the Turns have moved.
	movePatience = 60 * time.Second
	// sharePatience is the maximum time until both executors run Turns.
	sharePatience = 30 * time.Second
	// creators is the maximum number of Turns that are being created at the same time.
	creators = 16
	// manyTurns is the number of Turns that each executor must run before one executor is lost. With a small
	// --executor-turns, fewer Turns are enough.
	manyTurns = 20
	// soonestLoss and latestLoss bound the time between the moment when both executors run Turns and the loss of
	// the first executor.
	soonestLoss, latestLoss = 200 * time.Millisecond, 1500 * time.Millisecond
	// wakeTime is how long the test waits for forbidden writes of an executor that has woken up.
	wakeTime = 6 * time.Second
)

// phaseExecutors is the name of the phase.
const phaseExecutors = "executors"

// executorsPhase is one controller and two executors.
type executorsPhase struct {
	*rig
	phase string
	store journalStore
	// facts and violations go into the report.
	facts      []fact
	violations []violation
	kills      []kill

	controller, first, second *process
}

// executors loses one of two executors: first by a kill, then by a pause that is longer than its Lease.
func (r *rig) executors(ctx context.Context) (*phaseReport, error) {
	c := &executorsPhase{rig: r, phase: phaseExecutors}
	r.tools.setSlowest(slowestSlowCall) // so that calls are in flight, too
	defer r.tools.setSlowest(slowestCall)
	var err error
	if c.store, err = r.postgres(ctx); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer runInBackground(ctx, fail, r.newApprover(c.phase, slowestDecision).run)()
	if err := c.killFirst(ctx); err != nil {
		return nil, fmt.Errorf("phase with a killed executor: %w", err)
	}
	if err := c.pauseFirst(ctx); err != nil {
		return nil, fmt.Errorf("phase with a paused executor: %w", err)
	}
	if err := errors.Join(c.first.stop(), c.second.stop(), c.controller.stop()); err != nil {
		return nil, err
	}
	e, err := r.collect(ctx, c.phase, c.store, c.kills)
	if err != nil {
		return nil, err
	}
	p := newPhaseReport(e)
	p.Done, p.Violations = c.facts, append(p.Violations, c.violations...)
	p.checked(movedInTime, fencedZombie)
	p.checkCounts(map[string]int{"calls that were approved": p.Figures.Approved, "Turns of sub-agents": p.Figures.Children})
	if c.followUps {
		p.checkCounts(map[string]int{"requests of judges": p.Figures.Judged, "requests for memories": p.Figures.Learned})
	}
	return p, nil
}

func (c *executorsPhase) fact(what, format string, args ...any) {
	c.facts = append(c.facts, fact{what, fmt.Sprintf(format, args...)})
}

func (c *executorsPhase) wrong(g guarantee, turn, format string, args ...any) {
	c.violations = append(c.violations, violation{Guarantee: g, Turn: turn, What: fmt.Sprintf(format, args...)})
}

func (c *executorsPhase) start(ctx context.Context) (err error) {
	for _, p := range []struct {
		into        **process
		name, roles string
	}{{&c.controller, "controller", "controller"}, {&c.first, "first", "executor"}, {&c.second, "second", "executor"}} {
		if *p.into, err = c.startManager(ctx, c.spec(p.name, p.roles)); err != nil {
			return err
		}
	}
	return errors.Join(c.controller.waitReady(ctx), c.awaitRenewal(ctx, c.first), c.awaitRenewal(ctx, c.second))
}

func (c *executorsPhase) spec(name, roles string) managerSpec {
	// One executor alone can run all Turns, so that the Turns of a lost executor need not wait for slots.
	capacity := max(100, 2*c.executorTurns)
	return managerSpec{name: name, namespace: c.phase, roles: roles, store: c.store.url(), capacity: capacity, trace: c.trace(name)}
}

func (c *executorsPhase) trace(name string) string {
	return c.dir + "/logs/" + c.phase + "-" + name + ".trace"
}

// killFirst kills the first executor and restarts it after its Turns have moved.
func (c *executorsPhase) killFirst(ctx context.Context) error {
	if err := c.awaitWork(ctx, "killed"); err != nil {
		return err
	}
	at := c.first.kill()
	c.kills = append(c.kills, at)
	// After the kill, no further Turn can join this list, because a dead process binds no Turn.
	mine, err := c.boundTo(ctx, c.first.spec.name)
	if err != nil {
		return err
	}
	if err := c.awaitMove(ctx, "SIGKILL", mine, at.From); err != nil {
		return err
	}
	if err := c.awaitAllFinished(ctx, c.phase); err != nil {
		return err
	}
	if err := c.endFollowUps(ctx); err != nil {
		return err
	}
	// The next executor process stops itself (SIGSTOP) just before it writes the end of a Turn. So it tries this
	// write when it wakes up.
	spec := c.first.spec
	spec.pause = &failpoint.Point{
		Turn: failpoint.AnyTurn, Effect: failpoint.Write, When: failpoint.Before, Detail: failpoint.DetailEnd,
		Nth: max(1, c.executorTurns/8),
	}
	if c.first, err = c.startManager(ctx, spec); err != nil {
		return err
	}
	return c.awaitRenewal(ctx, c.first)
}

// pauseFirst pauses the first executor until its Turns have moved, and checks the executor's writes after it wakes up.
func (c *executorsPhase) pauseFirst(ctx context.Context) error {
	if err := c.awaitWork(ctx, "paused"); err != nil {
		return err
	}
	if err := c.awaitAsleep(ctx); err != nil {
		return err
	}
	asleep := time.Now()
	c.kills = append(c.kills, kill{asleep, asleep})
	mine, err := c.boundTo(ctx, c.first.spec.name)
	if err == nil {
		err = c.awaitMove(ctx, "SIGSTOP", mine, asleep)
	}
	if err != nil {
		return err
	}
	// The executor must meet both kinds of Turns when it wakes up: finished ones and running ones.
	before, err := c.awaitSomeFinished(ctx, mine)
	if err != nil {
		return err
	}
	awake := time.Now()
	if err := c.first.resume(); err != nil {
		return err
	}
	c.logf("executors: the first executor continues after a pause of %s", awake.Sub(asleep).Round(time.Millisecond))
	if err := c.awaitAllFinished(ctx, c.phase); err != nil {
		return err
	}
	pause(ctx, wakeTime)
	return c.checkZombie(ctx, mine, before, asleep, awake)
}

// awaitWork creates Turns and waits until both executors run many of them.
func (c *executorsPhase) awaitWork(ctx context.Context, prefix string) error {
	creation, creationCtx := errgroup.WithContext(ctx)
	creation.SetLimit(creators) // otherwise the first Turns could end before the last Turns are created
	for i := range c.executorTurns {
		creation.Go(func() error {
			return c.createTurn(creationCtx, c.phase, fmt.Sprintf("%s-%03d", prefix, i), lasting[i%len(lasting)], i)
		})
	}
	if err := creation.Wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sharePatience, fmt.Errorf("timed out after %s", sharePatience))
	defer cancel()
	for {
		bound := map[string]int{}
		turns, err := c.turns(ctx, c.phase)
		if err != nil {
			return err
		}
		for i := range turns {
			bound[turns[i].BoundTo()]++
		}
		if many := min(c.executorTurns/4, manyTurns); bound[c.first.spec.name] >= many && bound[c.second.spec.name] >= many {
			pause(ctx, between(c.source, soonestLoss, latestLoss))
			return nil
		}
		if !pause(ctx, probeInterval) {
			return fmt.Errorf("gave up waiting until both executors run Turns (Turns per executor: %v): %w", bound, context.Cause(ctx))
		}
	}
}

// awaitAsleep waits until the first executor has stopped itself.
func (c *executorsPhase) awaitAsleep(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sharePatience, fmt.Errorf("timed out after %s", sharePatience))
	defer cancel()
	for !c.first.stopped() {
		if !pause(ctx, probeInterval) {
			return fmt.Errorf("gave up waiting until the executor stops itself at %s: %w", c.first.spec.pause, context.Cause(ctx))
		}
	}
	return nil
}

// awaitRenewal waits until the executor has renewed its Lease since the process started, so that the controller uses
// the executor.
func (c *executorsPhase) awaitRenewal(ctx context.Context, p *process) error {
	begun := time.Now()
	if err := p.waitReady(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("timed out after %s", startPatience))
	defer cancel()
	key := client.ObjectKey{Namespace: c.phase, Name: executor.LeasePrefix + p.spec.name}
	for {
		var lease coordinationv1.Lease
		err := c.api.Get(ctx, key, &lease)
		if renewed := lease.Spec.RenewTime; err == nil && renewed != nil && renewed.After(begun) {
			return nil
		}
		if !pause(ctx, probeInterval) {
			return fmt.Errorf("gave up waiting until executor %q renews its Lease: %w", p.spec.name, context.Cause(ctx))
		}
	}
}

// boundTo returns the Turns that are bound to an executor, by name.
func (c *executorsPhase) boundTo(ctx context.Context, name string) (map[string]*v1alpha1.Turn, error) {
	turns, err := c.turns(ctx, c.phase)
	if err != nil {
		return nil, err
	}
	bound := map[string]*v1alpha1.Turn{}
	for i := range turns {
		if turns[i].BoundTo() == name {
			bound[turns[i].Name] = &turns[i]
		}
	}
	return bound, nil
}

// awaitMove waits until the Turns of the first executor have moved, and records how long the move took.
func (c *executorsPhase) awaitMove(ctx context.Context, how string, mine map[string]*v1alpha1.Turn, lost time.Time) error {
	if len(mine) == 0 {
		return errors.New("the executor had no Turns that could move: this proves nothing")
	}
	c.logf("executors: %s to the first executor with %d running Turns", how, len(mine))
	ctx, cancel := context.WithTimeoutCause(ctx, movePatience, fmt.Errorf("its Turns have not moved within %s", movePatience))
	defer cancel()
	for {
		left, err := c.boundTo(ctx, c.first.spec.name)
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if len(left) == 0 {
			break
		}
		if !pause(ctx, probeInterval) {
			return context.Cause(ctx)
		}
	}
	took := time.Since(lost)
	c.fact("Turns of an executor lost by "+how, "%d", len(mine))
	c.fact("  all had moved after", "%.1f s (a Lease lasts %s)", took.Seconds(), executor.LeaseDuration)
	if took > executor.LeaseDuration+moveSlack {
		c.wrong(movedInTime, "", "the Turns moved %s after %s, with a Lease of %s", took, how, executor.LeaseDuration)
	}
	return nil
}

// awaitSomeFinished waits until at least one of the given Turns has finished, and returns all that have finished.
func (c *executorsPhase) awaitSomeFinished(ctx context.Context, mine map[string]*v1alpha1.Turn) (map[string]*v1alpha1.Turn, error) {
	for {
		turns, err := c.turns(ctx, c.phase)
		if err != nil {
			return nil, err
		}
		finished := map[string]*v1alpha1.Turn{}
		for i := range turns {
			if mine[turns[i].Name] != nil && turns[i].IsFinished() {
				finished[turns[i].Name] = &turns[i]
			}
		}
		if len(finished) > 0 {
			return finished, nil
		}
		if !pause(ctx, probeInterval) {
			return nil, context.Cause(ctx)
		}
	}
}

// checkZombie checks that the first executor, which was paused from asleep to awake, has written nothing for the Turns
// that it ran before the pause (mine). before holds those of them that had finished when the executor woke up. A Turn
// that was parked later may be bound to the executor again. Then the executor may write to this Turn.
func (c *executorsPhase) checkZombie(ctx context.Context, mine, before map[string]*v1alpha1.Turn, asleep, awake time.Time) error {
	uids := map[string]bool{}
	for name, was := range mine {
		uids[string(was.UID)] = true
		t, err := c.turn(ctx, c.phase, name)
		if err != nil {
			return err
		}
		b := t.Status.Executor
		if b.Epoch <= was.Epoch() || b.Name != c.second.spec.name && b.Epoch == was.Epoch()+1 {
			c.wrong(fencedZombie, name, "its status has executor %q and epoch %d after epoch %d", b.Name, b.Epoch, was.Epoch())
		}
		if f := before[name]; f != nil && f.ResourceVersion != t.ResourceVersion {
			c.wrong(fencedZombie, name, "it had finished and was written again (version %s, then %s)", f.ResourceVersion, t.ResourceVersion)
		}
		if at := lastWrite(t, c.first.spec.name); b.Name != c.first.spec.name && at.After(awake) {
			c.wrong(fencedZombie, name, "the managed fields show a write of the executor that woke up, at %s", at.Format("15:04:05"))
		}
	}
	return c.checkAttempts(uids, asleep, awake, len(before))
}

// lastWrite returns the time of the last write by a field manager, according to the managed fields. The time has a
// precision of one second.
func lastWrite(o client.Object, manager string) time.Time {
	var last time.Time
	for _, f := range o.GetManagedFields() {
		if f.Manager == manager && f.Time != nil && f.Time.After(last) {
			last = f.Time.Time
		}
	}
	return last
}
