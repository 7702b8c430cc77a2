// Package executor runs the Turns that are bound to this process: the one place where the engine meets the cluster.
//
// A run is one goroutine, owned by this package. While a Turn is bound, its executor is the only writer of its status.
package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// The causes a run's context is cancelled with, beside turn.ErrCancelled.
var (
	// errDeleted: the Turn is gone; there is nothing to write.
	errDeleted = errors.New("the turn was deleted")
	// errSuperseded: the Turn is bound to another executor, or to a newer epoch of this one.
	errSuperseded = errors.New("the turn is bound elsewhere")
	// errStopping: this process is out of time to stop in.
	errStopping = errors.New("the executor is stopping")
)

// Sweeper is what an executor asks of the journal's store beside the journal.
type Sweeper interface {
	// Delete forgets a Turn. It is no error if there is nothing to forget.
	Delete(ctx context.Context, turnUID string) error
	// TurnUIDs returns the UIDs of all Turns that have entries.
	TurnUIDs(ctx context.Context) ([]string, error)
}

// Executor runs the Turns bound to its name. It implements manager.Runnable.
type Executor struct {
	// Name that Turns are bound to; the name of this process's pod.
	Name string
	// Capacity is how many Turns the controller may bind to it at once.
	Capacity int
	// Namespace of the Lease by which the controller knows that it lives.
	Namespace string
	// Client reads from the cache and writes status, Reader reads from the API server.
	Client client.Client
	Reader client.Reader
	// Cache whose Turns are watched.
	Cache ctrlcache.Cache
	// Leases writes the Lease.
	Leases kubernetes.Interface
	// Events tells people.
	Events events.EventRecorder
	// Engine runs Turns.
	Engine *turn.Engine
	// Store of the engine's journal.
	Store Sweeper
	// SweepStore makes the start forget the journals of Turns that are in no namespace any more. It needs a cache that
	// holds all of them.
	SweepStore bool
	// Providers that runs ask.
	Providers *providers.Cache
	// ConfigMaps reads the ConfigMaps of a namespace.
	ConfigMaps func(namespace string) translate.ConfigMaps
	// ManagerSkills are available to every Agent.
	ManagerSkills []prepare.Skill
	// Now is the time of day.
	Now func() time.Time
	// Grace is how long runs may go on after the process was asked to stop. They then have a fifth of it, and at least
	// a second, to be handed back.
	Grace time.Duration
	// Log of the executor.
	Log logr.Logger

	mu   sync.Mutex
	runs map[types.UID]*run
	// released are the epochs whose run gave its Turn back. An event from before that must not start another run of one.
	released map[types.UID]int64
	draining bool
	all      sync.WaitGroup
}

// NeedLeaderElection makes the executor wait until its process leads: one process holds both roles.
func (e *Executor) NeedLeaderElection() bool { return true }

// Start takes up the Turns that an earlier process of this name left, then those that are bound to it, until ctx ends;
// it returns when all of them have ended or were handed back.
func (e *Executor) Start(ctx context.Context) error {
	e.mu.Lock()
	e.runs, e.released = map[types.UID]*run{}, map[types.UID]int64{}
	e.mu.Unlock()
	// Runs outlive ctx by the grace period, so they hang on a context of their own.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	unwatch, err := e.begin(ctx, work)
	if err != nil {
		e.drain(stop)
		if ctx.Err() != nil {
			return nil // a start that was cut short by the stop has not failed
		}
		return err
	}
	release := e.holdLease(work)
	e.Log.Info("Executor is ready", "executor", e.Name, "capacity", e.Capacity)

	<-ctx.Done()
	e.drain(stop)
	release()
	return unwatch()
}

// begin takes up the Turns of an earlier process, then follows all Turns until unwatch is called.
func (e *Executor) begin(ctx, work context.Context) (unwatch func() error, err error) {
	if err := e.adopt(ctx, work); err != nil {
		return nil, err
	}
	informer, err := e.Cache.GetInformer(ctx, &v1alpha1.Turn{})
	if err != nil {
		return nil, fmt.Errorf("failed to watch turns: %w", err)
	}
	registration, err := informer.AddEventHandler(e.handler(work))
	if err != nil {
		return nil, fmt.Errorf("failed to watch turns: %w", err)
	}
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, errors.Join(ctx.Err(), informer.RemoveEventHandler(registration))
	}
	return func() error { return informer.RemoveEventHandler(registration) }, nil
}

func (e *Executor) handler(work context.Context) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { e.observeAny(work, obj) },
		UpdateFunc: func(_, obj any) {
			e.observeAny(work, obj)
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if t, ok := obj.(*v1alpha1.Turn); ok {
				e.gone(work, t)
			}
		},
	}
}

func (e *Executor) observeAny(work context.Context, obj any) {
	if t, ok := obj.(*v1alpha1.Turn); ok {
		e.observe(work, t)
	}
}

// observe brings the run of a Turn in line with what the Turn says now. It never blocks.
func (e *Executor) observe(work context.Context, t *v1alpha1.Turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[t.UID]
	mine := t.BoundTo() == e.Name && t.DeletionTimestamp.IsZero()
	switch {
	case r == nil && mine && !e.draining && t.Epoch() > e.released[t.UID]:
		e.start(work, t)
	case r == nil:
	case t.DeletionTimestamp != nil:
		r.cancel(errDeleted)
	case mine && t.Epoch() == r.epoch:
		r.follow(t.Spec.DesiredState)
	case t.Epoch() > r.epoch, !mine && t.Epoch() == r.epoch:
		// Its own last write comes back this way too; the run has ended by then or is about to.
		r.cancel(errSuperseded)
	}
}

// start begins a run. The caller holds the lock.
func (e *Executor) start(work context.Context, t *v1alpha1.Turn) {
	ctx, cancel := context.WithCancelCause(work)
	r := &run{executor: e, turn: t.DeepCopy(), epoch: t.Epoch(), cancel: cancel, interrupt: make(chan struct{})}
	r.follow(t.Spec.DesiredState)
	e.runs[t.UID] = r
	delete(e.released, t.UID)
	metrics.Running.Inc()
	e.all.Go(func() {
		defer cancel(nil)
		r.run(ctx)
		e.ended(work, r)
	})
}

// ended forgets a run. The Turn may have been bound to this executor anew while the run wound up; the watch has told so
// already and will not again.
func (e *Executor) ended(work context.Context, r *run) {
	metrics.Running.Dec()
	e.mu.Lock()
	delete(e.runs, r.turn.UID)
	forget := r.forget
	if r.unfinished && !forget {
		e.released[r.turn.UID] = r.epoch
	}
	e.mu.Unlock()
	if forget {
		e.forget(work, r.turn)
		return
	}
	var now v1alpha1.Turn
	if err := e.Client.Get(work, client.ObjectKeyFromObject(r.turn), &now); err != nil {
		return // gone, and the watch has told so or will
	}
	if now.UID == r.turn.UID && now.Epoch() > r.epoch {
		e.observe(work, &now)
	}
}

// gone stops the run of a Turn that was deleted and forgets its journal.
func (e *Executor) gone(work context.Context, t *v1alpha1.Turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.released, t.UID)
	if r := e.runs[t.UID]; r != nil {
		r.forget = true
		r.cancel(errDeleted)
		return // the journal is forgotten when the run has ended, or it would write to it again
	}
	if e.draining {
		return // the next start sweeps
	}
	e.all.Go(func() { e.forget(work, t) })
}

func (e *Executor) forget(work context.Context, t *v1alpha1.Turn) {
	if err := e.Store.Delete(context.WithoutCancel(work), string(t.UID)); err != nil {
		e.Log.Error(err, "Failed to delete the journal of a deleted turn", "turn", client.ObjectKeyFromObject(t))
	}
}

// drain asks all runs to stop at their next safe point, gives them the grace period, then makes them stop and waits.
func (e *Executor) drain(stop context.CancelCauseFunc) {
	e.mu.Lock()
	e.draining = true
	left := slices.Collect(maps.Values(e.runs))
	for _, r := range left {
		r.stopSoon()
	}
	e.mu.Unlock()
	e.Log.Info("Stopping", "executor", e.Name, "running", len(left), "grace", e.Grace)

	done := make(chan struct{})
	go func() {
		e.all.Wait()
		close(done)
	}()
	timer := time.NewTimer(e.Grace)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	}
	stop(errStopping)
	handBack := time.NewTimer(max(e.Grace/5, time.Second))
	defer handBack.Stop()
	select {
	case <-done:
	case <-handBack.C:
		e.Log.Info("Leaving turns behind; their next executor takes them up from the journal", "executor", e.Name)
	}
}
