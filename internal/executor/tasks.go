package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// claimFor is how long a claim of a task lasts, and renewEvery is the time between two renewals. If an executor is
	// lost, its tasks wait until their claims expire.
	claimFor, renewEvery = 30 * time.Second, 10 * time.Second
	// pollTasks is the time between two searches for tasks of other executors, and for claims that have expired.
	pollTasks = 2 * time.Second
	// measureTasks is the time between two measurements of the queue.
	measureTasks = 10 * time.Second
	// taskWriteTimeout limits the time in which the result of a task is stored and published. One attempt of a store
	// that does not reply takes 10 seconds, so this is enough for two attempts. lastWriteTimeout limits the time after
	// the process was asked to stop, because it waits until this is done.
	taskWriteTimeout, lastWriteTimeout = 25 * time.Second, 10 * time.Second
	// maxStuck is the number of calls of the learner that may be stuck. Beyond this number, the learner is not called.
	maxStuck = 8
	// maxWaiting is the number of tasks of a namespace that may wait. Further Turns are neither evaluated nor learned
	// from. If several executors end Turns, the namespace may exceed the maximum by the tasks that they add within
	// measureTasks.
	maxWaiting = 1000
)

// Tasks does the work that follows the end of Turns, separately from the runs: it evaluates the answers of Turns, and
// learns memories from Turns. The store has the tasks, and all executors share them. Tasks is safe for concurrent use.
type Tasks struct {
	// Store has the tasks and the memories, and Journal the answers.
	Store   TaskStore
	Journal journal.Journal
	// Learner stores observations of the Turns that are learned from.
	Learner memories.Learner
	// Slots is the maximum number of tasks that are worked on at the same time, at least 1.
	Slots int
	// ServerClock returns the time by the API server's clock as it is now. Claims and delays of tasks are in this time:
	// Executor.Now may be ahead of it after that clock was set back, but not in an executor that has started since.
	ServerClock func() time.Time
	Log         logr.Logger

	// observing has a token for each call of the learner that has not returned: the calls of the current tasks, and the
	// calls that are stuck.
	observing chan struct{}
	// wake has a token if there may be new tasks.
	wake chan struct{}

	mu sync.Mutex
	// waiting is the number of waiting tasks of each namespace: the tasks of the last measurement, and the tasks that
	// this process has added since.
	waiting map[string]int64
	// working is the number of slots that each namespace has.
	working map[string]int
}

// TaskStore keeps tasks, and the memories that are learned from Turns.
type TaskStore interface {
	store.Tasks
	store.Memories
}

// NewTasks returns Tasks with this number of slots. The store is the learner.
func NewTasks(s TaskStore, j journal.Journal, slots int, serverClock func() time.Time, log logr.Logger) *Tasks {
	return &Tasks{
		Store: s, Journal: j, Learner: s, Slots: slots, ServerClock: serverClock, Log: log, wake: make(chan struct{}, 1),
		observing: make(chan struct{}, slots+maxStuck), waiting: map[string]int64{}, working: map[string]int{},
	}
}

// admit reports whether another task of a namespace may wait, and counts it.
func (p *Tasks) admit(namespace string, kind task.Kind) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[namespace] >= maxWaiting {
		countSkipped(namespace, kind, task.QueueFull)
		return false
	}
	p.waiting[namespace]++
	return true
}

// countSkipped counts a Turn for which the work was not done.
func countSkipped(namespace string, kind task.Kind, why task.Skip) {
	if kind == task.Learn {
		metrics.LearningSkipped(namespace, string(why))
		return
	}
	metrics.EvaluationSkipped(namespace, string(why))
}

// wakeUp makes the executor look for new tasks.
func (p *Tasks) wakeUp() {
	if p == nil {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// start works on tasks until ctx ends. wait waits until all work has stopped.
func (p *Tasks) start(ctx context.Context, e *Executor) (wait func()) {
	var all sync.WaitGroup
	if p != nil {
		all.Go(func() { p.measure(ctx, e) })
		all.Go(func() { p.dispatch(ctx, e, &all) })
	}
	return all.Wait
}

// dispatch claims tasks while slots are free. Namespaces take turns, and none has more than half of the slots, rounded
// up.
func (p *Tasks) dispatch(ctx context.Context, e *Executor, all *sync.WaitGroup) {
	slots := make(chan struct{}, p.Slots)
	// If the clock is set forward, the claims of living executors look expired. If it is set back, they look as if they
	// were from a clock that was ahead. So the executors get the time to renew them.
	start := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	before := p.ServerClock().Sub(start)
	for after := ""; ; {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		now := p.ServerClock()
		offset := now.Sub(start) - time.Since(start)
		step := offset - before
		if before = offset; step.Abs() > claimFor-2*renewEvery {
			p.Log.Info("The clock was set: waiting until the claims of tasks are renewed", "by", step.Round(time.Second))
			<-slots
			if !pause(ctx, nil, renewEvery+pollTasks) {
				return
			}
			continue
		}
		k, err := p.Store.ClaimTask(ctx, task.Search{After: after, Except: p.busy(), Now: now, Until: now.Add(claimFor)})
		if err != nil && ctx.Err() == nil {
			p.Log.Error(err, "Failed to look for tasks that follow turns, trying again")
		}
		if k == nil {
			<-slots
			if !pause(ctx, p.wake, pollTasks) {
				return
			}
			continue
		}
		after = k.Namespace
		p.occupy(k.Namespace, 1)
		all.Go(func() {
			defer func() {
				p.occupy(k.Namespace, -1)
				<-slots
				p.wakeUp() // a task of this namespace may have waited for the slot
			}()
			p.handle(ctx, e, k)
		})
	}
}

// busy returns the namespaces that occupy as many slots as one namespace may: half of all slots, rounded up. So a
// namespace whose judges hang does not delay other namespaces.
func (p *Tasks) busy() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for namespace, n := range p.working {
		if n >= (p.Slots+1)/2 {
			all = append(all, namespace)
		}
	}
	return all
}

// occupy counts a slot that a namespace gets (1) or gives back (-1).
func (p *Tasks) occupy(namespace string, by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.working[namespace] += by; p.working[namespace] == 0 {
		delete(p.working, namespace)
	}
}

// pause waits for a time or until wake receives a value; wake may be nil. It returns false if ctx ends.
func pause(ctx context.Context, wake <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// measure measures the queue from time to time.
func (p *Tasks) measure(ctx context.Context, e *Executor) {
	defer metrics.SetEvaluationQueue(0, 0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(measureTasks)
		use, err := p.Store.TaskUse(ctx)
		if err == nil {
			p.storeMeasurement(use, e.Now())
		} else if ctx.Err() == nil {
			p.Log.Error(err, "Failed to measure the tasks that wait, trying again")
		}
	}
}

// storeMeasurement stores a measurement.
func (p *Tasks) storeMeasurement(use []task.Use, now time.Time) {
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
	metrics.SetEvaluationQueue(all, oldest)
}

// work is the work on one task.
type work interface {
	// do does the work. It never panics.
	do(ctx context.Context) done
	// publish reports the result, and ends the task. It may be repeated.
	publish(ctx context.Context) error
}

// workOn returns the work on a task, or nil if this version does not support the kind of the task.
func (p *Tasks) workOn(e *Executor, k *task.Task) work {
	about := followUp{Tasks: p, executor: e, task: k}
	switch k.Kind {
	case task.Evaluate:
		return &evaluation{followUp: about}
	case task.Learn:
		return &learning{followUp: about}
	}
	return nil
}

// unknownKindDelay is the time until a task whose kind this version does not support is tried again.
const unknownKindDelay = time.Minute

// handle does the work on a task, unless the task has its result already, and publishes the result.
func (p *Tasks) handle(ctx context.Context, e *Executor, k *task.Task) {
	working, cancel := context.WithCancelCause(e.Processors.With(ctx, k.Namespace))
	renewed := p.renew(working, k.Held(), cancel)
	defer func() {
		cancel(nil)
		<-renewed
	}()
	log := p.Log.WithValues("namespace", k.Namespace, "turn", k.Turn, "requester", k.Requester, "task", k.Kind, "attempt", k.Attempts)
	w := p.workOn(e, k)
	o := done{result: k.Result}
	switch {
	case w == nil:
		o = retried(unknownKindDelay, nil)
	case k.Result == nil:
		o = w.do(working)
	}
	if errors.Is(context.Cause(working), task.ErrLost) || errors.Is(o.err, task.ErrLost) {
		log.V(1).Info("Stopped a task, because another executor took it over, or the turn was deleted")
		return
	}
	write, stop := forPaidWork(ctx)
	defer stop()
	if o.result == nil {
		if o.err != nil && ctx.Err() == nil {
			log.Error(o.err, "Failed to do the work that follows a turn, trying again", "in", o.again.String())
		}
		p.logLost(log, p.Store.PostponeTask(write, k.Held(), task.Delay{
			Until: p.ServerClock().Add(o.again), Used: o.used, CutOff: o.err != nil && o.used > 0,
		}))
		return
	}
	if k.Result == nil {
		if err := p.finish(write, k, o.result, o.used); err != nil {
			p.logLost(log, err)
			return
		}
		k.Result = o.result
	}
	if err := publish(write, w); err != nil {
		p.logLost(log, err)
		return
	}
	if why := k.Result.Skipped; why != "" {
		countSkipped(k.Namespace, k.Kind, why)
	}
	log.V(1).Info("Did the work that follows a turn", "skipped", k.Result.Skipped, "judges", len(k.Result.Evaluations))
}

// publish reports the result of work. It returns a panic as an error, because a panic must not end the Turns of this
// process.
func publish(ctx context.Context, w work) (err error) {
	defer func() {
		if recover() != nil { // the value may contain a part of the answer
			err = fmt.Errorf("it panicked because of a bug in Capstan:\n%s", debug.Stack())
		}
	}()
	return w.publish(ctx)
}

// logLost logs an error after which the task is claimed again when the claim ends.
func (p *Tasks) logLost(log logr.Logger, err error) {
	if err != nil && !errors.Is(err, task.ErrLost) {
		log.Error(err, "Failed to write the result of a task; it is claimed again later")
	}
}

// finish stores the result of a task, and tries again until ctx ends, because the result was paid for.
func (p *Tasks) finish(ctx context.Context, k *task.Task, r *task.Result, used int64) error {
	return keepTrying(ctx, func() error { return p.Store.FinishTask(ctx, k.Held(), *r, used) })
}

// forPaidWork returns a context for writes about what was paid for. It lasts for taskWriteTimeout, also if ctx ends,
// but then at most for lastWriteTimeout longer. The caller must call the function.
func forPaidWork(ctx context.Context) (context.Context, context.CancelFunc) {
	write, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskWriteTimeout)
	detach := context.AfterFunc(ctx, func() {
		last := time.NewTimer(lastWriteTimeout)
		defer last.Stop()
		select {
		case <-last.C:
			cancel()
		case <-write.Done():
		}
	})
	return write, func() {
		detach()
		cancel()
	}
}

// keepTrying repeats a write about a task until it succeeds, ctx ends, or the claim of the task is lost.
func keepTrying(ctx context.Context, write func() error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 2*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := write()
		if errors.Is(err, task.ErrLost) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait))
	return err
}

// renew renews a claim until ctx ends, and then closes the returned channel. If the claim is lost, or cannot be renewed
// before it expires, renew ends ctx with task.ErrLost.
func (p *Tasks) renew(ctx context.Context, h task.Held, lose context.CancelCauseFunc) <-chan struct{} {
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
			err := p.Store.RenewTask(ctx, h, p.ServerClock().Add(claimFor))
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
