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
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/shared"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/translate"
)

// The causes a run is abandoned for.
var (
	// errSuperseded: the Turn is no longer this run's. It is bound elsewhere, has ended or is gone.
	errSuperseded = errors.New("the turn is bound elsewhere")
	// errStopping: this process is out of time to stop in.
	errStopping = errors.New("the executor is stopping")
)

// Executor runs the Turns bound to its name. It implements manager.Runnable.
type Executor struct {
	// Name that Turns are bound to; the name of this process's pod.
	Name string
	// Capacity is how many Turns the controller may bind to it at once.
	Capacity int
	// Elected makes the executor wait until its process leads: its store belongs to one process at a time.
	Elected bool
	// Namespace of the Lease by which the controller knows that it lives.
	Namespace string
	// LeaseAnnotations are what else the Lease says; one that is empty is not there.
	LeaseAnnotations map[string]string
	// Client reads from the cache and writes status, Reader reads from the API server.
	Client client.Client
	Reader client.Reader
	// Store is where the Engine keeps journals.
	Store *store.Tracker
	// Cache whose Turns are watched. It holds all that are bound to this executor and none that has finished.
	Cache ctrlcache.Cache
	// Leases writes the Lease.
	Leases kubernetes.Interface
	// Events tells people.
	Events events.EventRecorder
	// Engine runs Turns.
	Engine *turn.Engine
	// Ceiling is what no Turn goes beyond, whatever it and its Agent say; nil for nothing.
	Ceiling *v1alpha1.Limits
	// Approvals says which decisions about calls may be used.
	Approvals approvals.Check
	// Memory is what conversations of running Turns are held in; nil has no bound.
	Memory *bytebudget.Budget
	// Provider returns what asks a ModelProvider.
	Provider func(*v1alpha1.ModelProvider) model.Provider
	// Servers are the connections to ToolServers.
	Servers toolbox.Servers
	// Credentials are those that this process uses, by namespace: no run records them. nil for none.
	Credentials *redact.Set
	// Tools returns tools that Turns of an Agent are offered beside those of its spec; nil for none.
	Tools func(context.Context, *v1alpha1.Agent) []tool.Tool
	// ConfigMaps reads the ConfigMaps of a namespace.
	ConfigMaps func(namespace string) translate.ConfigMaps
	// ManagerSkills are available to every Agent.
	ManagerSkills []prepare.Skill
	// Quota returns the last report of the journals' quotas; nil if there is none. If Quota is nil, there never is.
	Quota func() *quota.Report
	// Processors is passed by the work that large texts of Turns are: their namespaces take turns. If Processors is nil, all work at once.
	Processors *fairgate.Gate
	// Writes is passed before a status is made that is to be written, so that few are held while many Turns end at once. If Writes is nil, all
	// are made at once.
	Writes *fairgate.Gate
	// Forecast is told which Turns run, for what their journals will still grow by; nil if nobody wants to know.
	Forecast *quota.Forecast
	// Stopping is told that the executor has begun to stop, after which it hands back what does not end in time; nil tells nobody.
	Stopping func()
	// Now is the time of day.
	Now func() time.Time
	// Grace is how long runs may go on after the process was asked to stop. They then have a fifth of it, and at least
	// a second, to be handed back.
	Grace time.Duration
	// Log of the executor.
	Log logr.Logger

	// agents and providers are those that runs hold, by their versions.
	agents    shared.Values[version, v1alpha1.Agent]
	providers shared.Values[version, v1alpha1.ModelProvider]

	mu   sync.Mutex
	runs map[types.UID]*run
	// done are the epochs that need no run any more, until the watch shows that too: an event from before must not start one.
	done map[types.UID]int64
	// claims has room for the Turns of an earlier process that are claimed at the same time; nil before there is one.
	claims chan struct{}
	// draining is set when no run may start any more, stopped when no Turn may be handed back any more.
	draining, stopped bool
	// all are the goroutines of runs and adoptions, returns those that give back what is bound while the executor stops.
	all, returns sync.WaitGroup
}

// version names one state of an object.
type version struct {
	key             client.ObjectKey
	uid             types.UID
	resourceVersion string
}

func versionOf(o client.Object) version {
	return version{client.ObjectKeyFromObject(o), o.GetUID(), o.GetResourceVersion()}
}

// NeedLeaderElection is true where one process at a time may have the store.
func (e *Executor) NeedLeaderElection() bool { return e.Elected }

// Start takes up the Turns that an earlier process of this name left, then those that are bound to it, until ctx ends;
// it returns when all of them have ended or were handed back.
func (e *Executor) Start(ctx context.Context) error {
	e.mu.Lock()
	e.runs, e.done = map[types.UID]*run{}, map[types.UID]int64{}
	e.mu.Unlock()
	// Runs outlive ctx by the grace period, so they hang on a context of their own.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	unwatch, err := e.begin(ctx, work)
	if err != nil {
		e.drain(stop)
		e.settle(stop)
		if ctx.Err() != nil {
			return nil // a start that was cut short by the stop has not failed
		}
		return err
	}
	lease := e.holdLease(work)
	metrics.Capacity.Set(float64(e.Capacity))
	e.Log.Info("Executor is ready", "executor", e.Name, "capacity", e.Capacity)

	<-ctx.Done()
	lease.withdraw(work)
	e.drain(stop)
	err = unwatch()
	e.settle(stop)
	lease.release()
	return err
}

// begin follows all Turns until unwatch is called. It returns when those of an earlier process are claimed, or a while later.
func (e *Executor) begin(ctx, work context.Context) (unwatch func() error, err error) {
	informer, err := e.Cache.GetInformer(ctx, &v1alpha1.Turn{})
	if err != nil {
		return nil, fmt.Errorf("failed to watch turns: %w", err)
	}
	var adoptions sync.WaitGroup
	registration, err := informer.AddEventHandler(e.handler(work, func(t *v1alpha1.Turn) { e.adopt(ctx, t, &adoptions) }))
	if err != nil {
		return nil, fmt.Errorf("failed to watch turns: %w", err)
	}
	unwatch = func() error { return informer.RemoveEventHandler(registration) }
	synced := cache.WaitForCacheSync(ctx.Done(), registration.HasSynced)
	if synced {
		e.awaitAdoptions(ctx, &adoptions)
	}
	if !synced || ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), unwatch())
	}
	return unwatch, nil
}

// awaitAdoptions waits for the Turns of an earlier process to be claimed, so that the controller learns of this executor when
// it has them. Those that take longer than a Lease lasts go on beside: one Turn that cannot be written must not keep all
// others from an executor.
func (e *Executor) awaitAdoptions(ctx context.Context, adoptions *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		adoptions.Wait()
		close(done)
	}()
	timer := time.NewTimer(LeaseDuration)
	defer timer.Stop()
	select {
	case <-done:
	case <-ctx.Done():
	case <-timer.C:
		e.Log.Info("Some turns of an earlier process are not claimed yet; starting without them", "executor", e.Name)
	}
}

// handler follows the Turns of the watch. Those that were there before it get what adopt does.
func (e *Executor) handler(work context.Context, adopt func(*v1alpha1.Turn)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, before bool) {
			switch t, ok := obj.(*v1alpha1.Turn); {
			case !ok:
			case before && t.BoundTo() == e.Name && t.DeletionTimestamp.IsZero():
				adopt(t)
			default:
				e.observe(work, t)
			}
		},
		UpdateFunc: func(old, obj any) {
			if t, ok := obj.(*v1alpha1.Turn); ok {
				// A list after a gap in the watch shows one that was deleted and made anew as a change.
				if before, ok := old.(*v1alpha1.Turn); ok && before.UID != t.UID {
					e.gone(before)
				}
				e.observe(work, t)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if t, ok := obj.(*v1alpha1.Turn); ok {
				e.gone(t)
			}
		},
	}
}

// observe brings the run of a Turn in line with what the Turn says now. It never blocks. The watch alone calls it, so that
// what it is told of one Turn is never older than what it was told before.
func (e *Executor) observe(work context.Context, t *v1alpha1.Turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[t.UID]
	mine := t.BoundTo() == e.Name && t.DeletionTimestamp.IsZero()
	switch {
	case r != nil:
		r.observe(t, mine)
	case mine && t.Epoch() > e.done[t.UID]:
		e.start(work, t)
	case !mine:
		delete(e.done, t.UID) // the watch knows it, too
	}
}

// start begins a run; an executor that stops gives the Turn back instead. The caller holds the lock.
func (e *Executor) start(work context.Context, t *v1alpha1.Turn) {
	ctx, abandon := context.WithCancelCause(fairgate.With(work, e.Processors, t.Namespace))
	r := &run{
		executor: e, turn: t, namespace: t.Namespace, epoch: t.Epoch(), begun: e.Now(), abandon: abandon,
		binding:      *t.Status.Executor.DeepCopy(),
		first:        t.Epoch() == 1 || translate.NothingBegun(t.Status.Executor),
		cancellation: newCancellation(work), interrupt: make(chan struct{}),
	}
	if e.draining {
		e.done[t.UID] = t.Epoch()
		if !e.stopped { // else the Lease goes next, which does it
			e.returns.Go(func() { r.handBack(ctx) })
		}
		return
	}
	r.follow(t.Spec.DesiredState)
	e.runs[t.UID] = r
	delete(e.done, t.UID)
	counted := metrics.Started(t.Namespace)
	e.all.Go(func() {
		defer abandon(nil)
		r.run(ctx)
		e.Forecast.End(string(t.UID), false)
		counted()
		e.ended(work, r)
	})
}

// ended forgets a run, and begins the next one if the Turn was bound to this executor anew while the run wound up.
func (e *Executor) ended(work context.Context, r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, r.turn.UID)
	switch {
	case r.next != nil:
		e.start(work, r.next)
	case !r.gone:
		e.done[r.turn.UID] = r.epoch
	}
}

// gone is told that a Turn has left the watch: it has ended, is bound elsewhere or to nobody, or was deleted. A run of it stops in
// each case, and then finds out whether there is something to charge.
func (e *Executor) gone(t *v1alpha1.Turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.done, t.UID)
	if r := e.runs[t.UID]; r != nil {
		r.gone, r.next = true, nil
		r.abandon(errSuperseded)
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
	e.Writes.Open()
	if e.Stopping != nil {
		e.Stopping()
	}
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

// settle ends, after drain, what gives Turns back.
func (e *Executor) settle(stop context.CancelCauseFunc) {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	stop(errStopping)
	e.returns.Wait()
}
