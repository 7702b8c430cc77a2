// Package executor runs the Turns that are bound to this process. It is the only package that connects the engine
// with the cluster.
//
// Each run is one goroutine, owned by this package. While a Turn is bound, its executor is the only writer of its
// status.
package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/shared"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/vectors"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// The causes for which a run is abandoned.
var (
	// errSuperseded means that the Turn no longer belongs to this run: it is bound elsewhere, has ended, or is
	// gone.
	errSuperseded = errors.New("the turn is bound elsewhere")
	// errStopping means that the time in which this process must stop is over.
	errStopping = errors.New("the executor is stopping")
)

// Executor runs the Turns bound to its name. It implements manager.Runnable.
type Executor struct {
	// Name is the name that Turns are bound to. The Helm chart sets it to the name of this process's Pod.
	Name string
	// Capacity is the maximum number of Turns that the controller may bind to this executor at the same time, except
	// for Turns that only have to end. The executor hands further Turns back: see run.takePlace.
	Capacity int
	// Elected makes the executor wait until its process is the leader. It is set if only one process at a time may
	// use the store.
	Elected bool
	// Namespace is the namespace of the executor's Lease. The Lease tells the controller that the executor is
	// alive.
	Namespace string
	// StoreReach reports whether the store works for this process. known is false if that is not certain yet. If
	// StoreReach is nil, the Lease does not report it.
	StoreReach func() (reachable, known bool)
	// LeaseAnnotations are further annotations of the Lease. An annotation with an empty value is removed.
	LeaseAnnotations map[string]string
	// Client reads from the cache and writes status. Reader reads from the API server.
	Client client.Client
	Reader client.Reader
	// Store is the store in which the Engine keeps journals.
	Store *store.Tracker
	// Cache is the cache whose Turns are watched. It holds every unfinished Turn that is bound to this executor, and no
	// finished Turns.
	Cache ctrlcache.Cache
	// Leases writes the Lease.
	Leases kubernetes.Interface
	// Events emits the Events of Turns and Sessions.
	Events events.EventRecorder
	// Engine runs Turns.
	Engine *turn.Engine
	// Ceiling is the highest value of each limit for any Turn. If Ceiling is nil, limits have no ceiling.
	Ceiling *v1alpha1.Limits
	// Approvals checks which decisions about calls may be used.
	Approvals approvals.Check
	// Requesters checks whether the API server has verified the requester of a Turn. If Requesters is nil, no requester
	// is verified.
	Requesters approvals.RequesterCheck
	// Budgets returns the Budgets that apply to a Turn, by the labels of its Agent and by its requester: see
	// budgets.Set.Rules. If Budgets is nil, there are none.
	Budgets func(
		ctx context.Context, t *v1alpha1.Turn, agent map[string]string, requester func() (string, error),
	) ([]budget.Rule, error)
	// Memory is the budget for the conversations of running Turns. If Memory is nil, it is unlimited.
	Memory *bytebudget.Budget
	// Specs receives the specs of the Turns that run, so that the cache can share them. If Specs is nil, the cache
	// keeps its own copies.
	Specs *Specs
	// Provider returns the client for the endpoint of a ModelProvider.
	Provider func(*v1alpha1.ModelProvider) model.Provider
	// Gates hold back requests to models, within the limits of their ModelProviders. If Gates is nil, none are held
	// back.
	Gates *providers.Cache
	// Servers are the connections to ToolServers.
	Servers toolbox.Servers
	// Credentials are the credentials that this process uses, by namespace. Runs remove them from everything that
	// they record. If Credentials is nil, nothing is removed.
	Credentials *redact.Set
	// Tools returns tools that are offered to the Turns of an Agent in addition to the tools of its spec. If Tools is
	// nil, there are none.
	Tools func(context.Context, *v1alpha1.Agent) []tool.Tool
	// Sharing checks whether objects of other namespaces may be used.
	Sharing *sharing.Checker
	// ConfigMaps returns the reader for the ConfigMaps of a namespace.
	ConfigMaps func(namespace string) translate.ConfigMaps
	// AttachmentConfigMaps is like ConfigMaps, for ConfigMaps with the data of attachments, which may be binary.
	AttachmentConfigMaps func(namespace string) translate.ConfigMaps
	// Fetch returns the function that fetches the data of attachments from URLs for a namespace.
	Fetch func(namespace string) translate.Fetch
	// ManagerSkills are available to every Agent.
	ManagerSkills []prepare.Skill
	// Quota returns the last report of the journals' quotas, or nil if there is none. If Quota is nil, there is
	// never a report.
	Quota func() *quota.Report
	// Traces exports the parts of Turns as spans. If Traces is nil, nothing is exported.
	Traces *tracing.Provider
	// Processors limits how much work on large texts is done at the same time; namespaces take turns. If Processors is
	// nil, there is no limit.
	Processors *fairgate.Processors
	// Writes limits how many statuses are prepared and written at the same time, so that few of them are in memory
	// while many Turns end. If Writes is nil, there is no limit.
	Writes *fairgate.Gate
	// Endings limits how many Turns that only have to end are handled at the same time. These Turns were cancelled, or
	// their time was over, before the current attempt of their run began. If Endings is nil, there is no limit.
	Endings *fairgate.Gate
	// Unreserved limits how many Turns end at the same time although there is no memory for their conversations. If
	// Unreserved is nil, there is no limit.
	Unreserved *fairgate.Gate
	// LiveReads limits how many requests at the same time read lists, or objects for which the cache has no memory,
	// from the API server. If LiveReads is nil, there is no limit.
	LiveReads *fairgate.Gate
	// Preparations limits how many Turns read their texts from ConfigMaps at the same time, because a Turn reserves
	// memory for its texts only after it has read them. If Preparations is nil, there is no limit.
	Preparations *fairgate.Gate
	// Forecast receives the start and end of each run, to estimate how much the journals will still grow. It may be
	// nil.
	Forecast *quota.Forecast
	// Stopping is called when the executor begins to stop. The executor then hands back the Turns that do not end in
	// time. Stopping may be nil.
	Stopping func()
	// Memories finds the memories for prompts. If Memories is nil, prompts have no memories.
	Memories memories.Finder
	// Tasks does the work that follows the end of Turns. If Tasks is nil, no answer is evaluated, and nothing is
	// learned.
	Tasks *Tasks
	// RecordLabels are the keys of the labels of Turns that their records keep.
	RecordLabels []string
	// Now returns the time of day.
	Now func() time.Time
	// Grace is how long runs may continue after the process was asked to stop. Handing back the remaining Turns may
	// then take another fifth of Grace, at least one second.
	Grace time.Duration
	// Log is the logger of the executor.
	Log logr.Logger

	// agents and providers keep one copy of each version of an object, which the runs that use it share.
	agents    shared.Values[version, v1alpha1.Agent]
	providers shared.Values[version, v1alpha1.ModelProvider]
	// vectors caches the vectors of tools.
	vectors vectors.Cache

	mu   sync.Mutex
	runs map[types.UID]*run
	// places limits how many runs may begin: see run.takePlace. It is nil before the first run.
	places *semaphore.Weighted
	// done maps the UID of a Turn to the last run that is over. An entry stays until the watch has caught up, because
	// an older event must not start a run.
	done map[types.UID]endedRun
	// stuck holds the Turns that are bound to this executor, but that it neither runs nor can hand back.
	stuck map[types.UID]stuckTurn
	// claims limits how many Turns of an earlier process are claimed at the same time. It is nil before the first
	// claim.
	claims chan struct{}
	// adopted is the number of Turns of an earlier process that were claimed.
	adopted atomic.Int64
	// draining is set when no run may start any more. stopped is set when no Turn may be handed back any more.
	draining, stopped bool
	// all counts the goroutines of runs and adoptions. handBacks counts the goroutines that hand back the Turns that
	// are bound while the executor stops.
	all, handBacks sync.WaitGroup
}

// version names one state of an object.
type version struct {
	key             client.ObjectKey
	uid             types.UID
	resourceVersion string
	// foreign is true for an Agent whose references name their namespaces: see translate.Foreign.
	foreign bool
}

func versionOf(o client.Object) version {
	return version{key: client.ObjectKeyFromObject(o), uid: o.GetUID(), resourceVersion: o.GetResourceVersion()}
}

// NeedLeaderElection reports whether only one process at a time may use the store.
func (e *Executor) NeedLeaderElection() bool { return e.Elected }

// Start takes over the Turns that an earlier process of this name left, and then runs the Turns that are bound to this
// executor until ctx ends. It returns when these Turns have ended or were handed back.
func (e *Executor) Start(ctx context.Context) error {
	e.mu.Lock()
	e.runs, e.done, e.stuck = map[types.UID]*run{}, map[types.UID]endedRun{}, map[types.UID]stuckTurn{}
	e.mu.Unlock()
	// Runs may continue for the grace period after ctx ends, so they have another context.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	unwatch, err := e.begin(ctx, work)
	if err != nil {
		e.drain(stop)
		e.stopHandBacks(stop)
		if ctx.Err() != nil {
			return nil // a stop during the start is not a failure
		}
		return err
	}
	lease := e.holdLease(work)
	awaitTasks := e.Tasks.start(ctx, e)
	var retries sync.WaitGroup
	retries.Go(func() { e.retryStuck(ctx, work) })
	metrics.Capacity.Set(float64(e.Capacity))
	e.Log.Info("Executor is ready", "executor", e.Name, "capacity", e.Capacity)

	<-ctx.Done()
	lease.withdraw(work)
	e.drain(stop)
	err = unwatch()
	awaitTasks()
	retries.Wait()
	e.stopHandBacks(stop)
	lease.release()
	return err
}

// begin watches all Turns until unwatch is called. It returns when the Turns of an earlier process are claimed, or
// when that takes too long.
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

// awaitAdoptions waits until the Turns of an earlier process are claimed, so that the executor already has these Turns
// when the controller learns of the executor. After LeaseDuration it stops waiting, and the other claims continue in
// the background: one Turn that cannot be claimed must not prevent the executor from running other Turns.
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
	if n := e.adopted.Load(); n > 0 {
		e.Log.Info("Taking over the turns of an earlier process", "executor", e.Name, "turns", n)
	}
}

// handler returns the handler for the Turns of the watch. It calls adopt for Turns that were bound to this executor
// before the watch began.
func (e *Executor) handler(work context.Context, adopt func(*v1alpha1.Turn)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, isInInitialList bool) {
			switch t, ok := obj.(*v1alpha1.Turn); {
			case !ok:
			case isInInitialList && t.BoundTo() == e.Name:
				adopt(t)
			default:
				e.observe(work, t)
			}
		},
		UpdateFunc: func(old, obj any) {
			if t, ok := obj.(*v1alpha1.Turn); ok {
				// After a gap in the watch, a Turn that was deleted and created again appears as a change.
				if before, ok := old.(*v1alpha1.Turn); ok && before.UID != t.UID {
					e.onGone(before)
				}
				e.observe(work, t)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if t, ok := obj.(*v1alpha1.Turn); ok {
				e.onGone(t)
			}
		},
	}
}

// observe brings the run of a Turn in line with the Turn's current state. It never blocks. Only the watch calls it,
// so it never receives an older state of a Turn after a newer one.
func (e *Executor) observe(work context.Context, t *v1alpha1.Turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[t.UID]
	mine := t.BoundTo() == e.Name
	switch {
	case r != nil:
		r.observe(t, mine)
	case mine && e.needsRun(t):
		e.start(work, t)
	case mine && e.hasChanged(t):
		e.freeStuck(work, t)
	case !mine:
		delete(e.done, t.UID) // the watch has caught up
		delete(e.stuck, t.UID)
	}
}

// endedRun is a run that is over: its epoch, and the resource version of the Turn with which it began.
type endedRun struct {
	epoch   int64
	version string
}

// needsRun reports whether a Turn that is bound to this executor was bound after its last run here began. Usually its
// epoch is then higher. It is lower if a person has lowered or removed it in the status. The caller must hold the lock
// of the executor.
func (e *Executor) needsRun(t *v1alpha1.Turn) bool {
	last, known := e.done[t.UID]
	return t.Epoch() > last.epoch || known && t.Epoch() < last.epoch && isNewer(t, last.version)
}

// isNewer reports whether a state of an object is newer than that with a resource version. It returns false if the
// versions cannot be compared.
func isNewer(o client.Object, version string) bool {
	order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version)
	return err == nil && order > 0
}

// start begins a run. If the executor is stopping, start hands the Turn back instead. The caller must hold the
// lock.
func (e *Executor) start(work context.Context, t *v1alpha1.Turn) {
	ctx, abandon := context.WithCancelCause(e.Processors.With(work, t.Namespace))
	r := &run{
		executor: e, turn: t, version: t.ResourceVersion, namespace: t.Namespace, epoch: t.Epoch(), begun: e.Now(), abandon: abandon,
		binding:      *t.Status.Executor.DeepCopy(),
		first:        t.Epoch() == 1 || turnstatus.NothingBegun(t.Status.Executor),
		cancellation: newCancellation(work), interrupt: make(chan struct{}),
	}
	if e.draining {
		e.done[t.UID] = endedRun{t.Epoch(), t.ResourceVersion}
		if !e.stopped { // otherwise releasing the Lease, which is next, frees the Turn
			e.handBacks.Go(func() {
				defer abandon(nil)
				r.handBack(ctx)
			})
		}
		return
	}
	r.handleDesiredState(desiredStateOf(t))
	e.runs[t.UID] = r
	e.Specs.add(t)
	delete(e.done, t.UID)
	delete(e.stuck, t.UID)
	countEnd := metrics.Started(t.Namespace)
	e.all.Go(func() {
		defer abandon(nil)
		r.run(ctx)
		e.Forecast.End(string(t.UID), false)
		countEnd()
		e.onEnd(work, r)
	})
}

// onEnd removes a run, and starts the next one if the Turn was bound to this executor again while the run was
// ending.
func (e *Executor) onEnd(work context.Context, r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, r.turn.UID)
	e.Specs.remove(r.turn.UID)
	switch {
	case r.next != nil:
		e.start(work, r.next)
	case !r.gone:
		e.done[r.turn.UID] = endedRun{r.epoch, r.version}
		if latest := r.latest; latest != nil && latest.BoundTo() == e.Name && e.hasChanged(latest) {
			e.freeStuck(work, latest) // it changed after the API server had rejected its status
		}
	}
}

// onGone handles a Turn that has left the watch: the Turn has ended, is bound elsewhere or not at all, or was deleted.
// In each case its run stops, and then finds out whether it must charge the Session.
func (e *Executor) onGone(t *v1alpha1.Turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.done, t.UID)
	delete(e.stuck, t.UID)
	if r := e.runs[t.UID]; r != nil {
		r.gone, r.next = true, nil
		r.abandon(errSuperseded)
	}
}

// drain asks all runs to stop at their next safe point and waits for the grace period. Then it cancels the
// remaining runs, and waits a short time until they have handed back their Turns.
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
		e.Log.Info("Leaving unfinished turns; their next executor continues them from the journal", "executor", e.Name)
	}
}

// stopHandBacks stops, after drain, the goroutines that hand Turns back, and waits for them.
func (e *Executor) stopHandBacks(stop context.CancelCauseFunc) {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	stop(errStopping)
	e.handBacks.Wait()
}
