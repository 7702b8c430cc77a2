package executor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// claimFor is how long a claim of a task lasts, and renewEvery the time between two renewals. The task of an
	// executor that is lost waits for the rest of its claim.
	claimFor, renewEvery = 30 * time.Second, 10 * time.Second
	// pollTasks is the time between two looks for tasks of other executors, and for claims that have expired.
	pollTasks = 2 * time.Second
	// measureTasks is the time between two measurements of the queue.
	measureTasks = 10 * time.Second
	// keepTasks is how long a task counts for the limits of its Agent after its work has ended, and purgeAtOnce the
	// number of tasks that are deleted at once.
	keepTasks, purgeAtOnce = task.Day + task.Hour, 500
	// writeTasks limits the time in which the result of an evaluation is stored and published. A process that stops
	// waits for it.
	writeTasks = 10 * time.Second
	// maxWaiting is the number of Turns of a namespace that may wait for their evaluation. Further Turns are not
	// evaluated. While several executors end Turns, the namespace may exceed it by those of measureTasks.
	maxWaiting = 1000
)

// Evaluations evaluates the answers of Turns that have ended, apart from the Turns that run. Their evaluations are
// tasks in the store, which all executors share. It is safe for concurrent use.
type Evaluations struct {
	// Store has the tasks, and Journal the answers.
	Store   store.Tasks
	Journal journal.Journal
	// Slots is the number of Turns that are evaluated at once, at least 1.
	Slots int
	Log   logr.Logger

	// wake has a token if there may be new tasks.
	wake chan struct{}

	mu sync.Mutex
	// waiting is the number of waiting tasks of each namespace: those of the last measurement, and those that this
	// process has added since.
	waiting map[string]int64
}

// NewEvaluations returns Evaluations with this number of slots.
func NewEvaluations(s store.Tasks, j journal.Journal, slots int, log logr.Logger) *Evaluations {
	return &Evaluations{Store: s, Journal: j, Slots: slots, Log: log, wake: make(chan struct{}, 1), waiting: map[string]int64{}}
}

// admit reports whether another Turn of a namespace may wait for its evaluation, and counts it.
func (p *Evaluations) admit(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[namespace] >= maxWaiting {
		metrics.EvaluationSkipped(namespace, string(task.QueueFull))
		return false
	}
	p.waiting[namespace]++
	return true
}

// wakeUp makes the evaluations look for new tasks.
func (p *Evaluations) wakeUp() {
	if p == nil {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// start evaluates Turns until ctx ends. wait waits until all evaluations have stopped.
func (p *Evaluations) start(ctx context.Context, e *Executor) (wait func()) {
	var all sync.WaitGroup
	if p != nil {
		all.Go(func() { p.measure(ctx, e) })
		all.Go(func() { p.dispatch(ctx, e, &all) })
	}
	return all.Wait
}

// dispatch claims tasks while slots are free. Namespaces take turns.
func (p *Evaluations) dispatch(ctx context.Context, e *Executor, all *sync.WaitGroup) {
	slots := make(chan struct{}, p.Slots)
	for after := ""; ; {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		now := e.Now()
		k, err := p.Store.ClaimTask(ctx, after, now, now.Add(claimFor))
		if err != nil && ctx.Err() == nil {
			p.Log.Error(err, "Failed to look for turns to evaluate, trying again")
		}
		if k == nil {
			<-slots
			if !p.pause(ctx, pollTasks) {
				return
			}
			continue
		}
		after = k.Namespace
		all.Go(func() {
			defer func() { <-slots }()
			p.handle(ctx, e, k)
		})
	}
}

// pause waits for a time or until there may be new tasks. It returns false if ctx ends.
func (p *Evaluations) pause(ctx context.Context, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// measure measures the queue from time to time, and deletes old tasks.
func (p *Evaluations) measure(ctx context.Context, e *Executor) {
	defer metrics.EvaluationQueue(0, 0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var purged time.Time
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(measureTasks)
		now := e.Now()
		use, err := p.Store.TaskUse(ctx)
		if err == nil {
			p.measured(use, now)
		}
		if err == nil && now.Sub(purged) >= task.Hour {
			var n int
			if n, err = p.Store.PurgeTasks(ctx, now.Add(-keepTasks), purgeAtOnce); err == nil && n < purgeAtOnce {
				purged = now
			}
		}
		if err != nil && ctx.Err() == nil {
			p.Log.Error(err, "Failed to measure the turns that wait for their evaluation, trying again")
		}
	}
}

// measured stores a measurement.
func (p *Evaluations) measured(use []task.Use, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.waiting)
	var all int64
	var oldest time.Duration
	for _, u := range use {
		p.waiting[u.Namespace] = u.Waiting
		all += u.Waiting
		oldest = max(oldest, now.Sub(u.Oldest))
	}
	metrics.EvaluationQueue(all, oldest)
}

// handle evaluates a Turn, unless that is done, and publishes the result.
func (p *Evaluations) handle(ctx context.Context, e *Executor, k *task.Task) {
	work, cancel := context.WithCancelCause(e.Processors.With(ctx, k.Namespace))
	renewed := p.renew(work, e, k.Held(), cancel)
	defer func() {
		cancel(nil)
		<-renewed
	}()
	log := p.Log.WithValues("namespace", k.Namespace, "turn", k.Turn, "attempt", k.Attempts)
	v := &evaluation{Evaluations: p, executor: e, task: k}
	o := evaluated{result: k.Result}
	if k.Result == nil {
		o = v.evaluate(work)
	}
	if errors.Is(context.Cause(work), task.ErrLost) || errors.Is(o.err, task.ErrLost) {
		log.V(1).Info("Left the evaluation of a turn that another executor evaluates, or that was deleted")
		return
	}
	write, done := context.WithTimeout(context.WithoutCancel(ctx), writeTasks)
	defer done()
	if o.result == nil {
		if o.err != nil && ctx.Err() == nil {
			log.Error(o.err, "Failed to evaluate a turn, trying again", "in", o.again.String())
		}
		p.logLost(log, p.Store.PostponeTask(write, k.Held(), e.Now().Add(o.again), o.used))
		return
	}
	if k.Result == nil {
		if err := p.finish(write, k, o.result, o.used); err != nil {
			p.logLost(log, err)
			return
		}
		k.Result = o.result
	}
	if err := v.publish(write); err != nil {
		p.logLost(log, err)
		return
	}
	log.V(1).Info("Evaluated a turn", "skipped", k.Result.Skipped, "judges", len(k.Result.Evaluations))
}

// logLost logs an error after which the task is claimed again when the claim ends.
func (p *Evaluations) logLost(log logr.Logger, err error) {
	if err != nil && !errors.Is(err, task.ErrLost) {
		log.Error(err, "Failed to write the evaluation of a turn; it is claimed again later")
	}
}

// finish stores the result of a task, and tries again while ctx lives, because the result was paid for.
func (p *Evaluations) finish(ctx context.Context, k *task.Task, r *task.Result, used budget.Amount) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 2*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := p.Store.FinishTask(ctx, k.Held(), *r, used)
		if errors.Is(err, task.ErrLost) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait))
	return err
}

// renew renews a claim until ctx ends, and then closes the channel. If the claim is lost, or cannot be renewed until
// its end, renew ends ctx with task.ErrLost.
func (p *Evaluations) renew(ctx context.Context, e *Executor, h task.Held, lose context.CancelCauseFunc) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTicker(renewEvery)
		defer timer.Stop()
		failures := 0
		for {
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			err := p.Store.RenewTask(ctx, h, e.Now().Add(claimFor))
			if failures++; err == nil {
				failures = 0
			}
			if errors.Is(err, task.ErrLost) || time.Duration(failures+1)*renewEvery > claimFor {
				lose(task.ErrLost)
			}
		}
	}()
	return done
}
