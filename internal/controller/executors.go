package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// ExecutorReconciler watches the Leases of executors. When an executor appears, it wakes waiting Turns. When a Lease
// expires, it wakes the Turns of that executor, so that they are bound again. Later it deletes that Lease. If no other
// Lease has the position of the store, it first writes the position into the Lease of the store.
type ExecutorReconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Now returns the time by the clock of this machine, with a reading of the monotonic clock. Leases of executors
	// expire by it.
	Now func() time.Time
	// ServerNow returns the time by the clock of the API server, for the times in the Leases of stores. Different
	// processes write and compare these times.
	ServerNow func() time.Time
	// Namespace is the namespace of the Leases.
	Namespace string
	// Self is the name of the executor in this process; empty if there is none. It counts as alive while this code
	// runs, whatever its Lease says. It still gets no Turns before it holds its Lease.
	Self string
	// Exclusive means that no executor but Self works while this process leads. Executors with a journal in SQLite work
	// only while they lead, so the winner of an election knows that all other executors have stopped.
	Exclusive bool
	// SelfStore returns the current store of the executor Self. The Lease of Self may come from an earlier process with
	// another store. If SelfStore is nil, the store in the Lease is used.
	SelfStore func() executor.StoreIdentity
	// Turns enqueues the Turns to reconcile again.
	Turns *TurnReconciler

	// Circuits receives the executors' reports on open circuits. It may be nil.
	Circuits *OpenCircuits

	leases scheduler.Leases
	// space holds the executors' reports on the journal quotas.
	space journalSpace
	// capacities maps the names of the executors that may get Turns to their capacities. Only the one worker of this
	// controller uses it.
	capacities map[string]int
}

// SetupWithManager registers the reconciler. It also watches the Leases from the start of the process.
func (r *ExecutorReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(leaseWatcher{r, mgr.GetCache()}); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("executor").For(&coordinationv1.Lease{}).Complete(r)
}

// Reconcile handles one Lease.
func (r *ExecutorReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	name, ok := strings.CutPrefix(req.Name, executor.LeasePrefix)
	isStore := executor.IsStoreLease(req.Name)
	if !ok && !isStore || req.Namespace != r.Namespace {
		return ctrl.Result{}, nil
	}
	if err := r.startLeading(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if isStore {
		return r.reconcileStoreLease(ctx, req.NamespacedName)
	}
	var lease coordinationv1.Lease
	if err := r.Client.Get(ctx, req.NamespacedName, &lease); err != nil {
		if apierrors.IsNotFound(err) {
			r.leases.Forget(req.Name)
			return ctrl.Result{}, r.executorLost(ctx, name)
		}
		return ctrl.Result{}, err
	}
	left, mayGetTurns := r.leases.Check(&lease, r.Now())
	switch {
	case r.Exclusive && name != r.Self:
		return r.deleteExpiredLease(ctx, name, &lease)
	case left <= 0:
		return r.handleExpiredLease(ctx, name, &lease)
	}
	if mayGetTurns {
		r.space.observe(&lease)
		if err := r.Turns.updateModelsDown(ctx, r.Circuits.observe(&lease)); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.wakeForSpace(ctx); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.executorFound(ctx, name, scheduler.ExecutorOf(&lease).Capacity); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: left}, nil
}

// leaseReadTimeout limits the read of a Lease that seems to have expired.
const leaseReadTimeout = 5 * time.Second

// handleExpiredLease handles a Lease that seems to have expired. If the watch is only delayed, or the API server does
// not answer, a living executor must keep its Turns. So the Lease is read from the API server, and if the API server
// does not answer, no executor is declared lost.
func (r *ExecutorReconciler) handleExpiredLease(ctx context.Context, name string, lease *coordinationv1.Lease) (ctrl.Result, error) {
	if r.leases.IsLost(lease, r.Now()) {
		return r.deleteExpiredLease(ctx, name, lease)
	}
	bounded, cancel := context.WithTimeout(ctx, leaseReadTimeout)
	defer cancel()
	var live coordinationv1.Lease
	switch err := r.Live.Get(bounded, client.ObjectKeyFromObject(lease), &live); {
	case apierrors.IsNotFound(err):
		// Do not forget the Lease until the cache shows its deletion: otherwise the cached Lease would count as new.
		r.leases.MarkLost(lease, r.Now())
		return ctrl.Result{}, r.executorLost(ctx, name)
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Failed to read a lease that seems to have expired; its executor keeps its turns for now",
			"executor", name)
		r.leases.RecordOutage(r.Now())
		return ctrl.Result{RequeueAfter: leaseReadTimeout}, nil
	}
	if left, _ := r.leases.Check(&live, r.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil // the executor has renewed the Lease, and the cache will show that
	}
	r.leases.MarkLost(&live, r.Now())
	return r.deleteExpiredLease(ctx, name, &live)
}

// deleteExpiredLease wakes the Turns of a lost executor, and deletes the executor's Lease once it need not be kept any
// longer (see Leases.KeepFor). If no other Lease has the position in this Lease, it is first written into the Lease of
// the store: otherwise nothing would show that an older copy of the store was restored.
func (r *ExecutorReconciler) deleteExpiredLease(ctx context.Context, name string, lease *coordinationv1.Lease) (ctrl.Result, error) {
	if err := r.executorLost(ctx, name); err != nil {
		return ctrl.Result{}, err
	}
	if left := r.leases.KeepFor(lease, r.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if position, ok := executor.PublishedBy(lease); ok {
		all, err := r.listLeases(ctx)
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("failed to list the leases of executors: %w", err)
		}
		if !r.leases.IsCovered(lease, executor.LeasesOfExecutors(all), r.Now()) {
			if err := r.keepStorePosition(ctx, position); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	// This version has the position that was kept, or that is covered.
	return ctrl.Result{}, r.deleteLease(ctx, lease)
}

// startLeading records, once, that this process leads. Before that it records the existing Leases if this has not been
// done yet. Only a leader calls it.
func (r *ExecutorReconciler) startLeading(ctx context.Context) error {
	if err := r.recordLeases(ctx); err != nil {
		return err
	}
	r.leases.Lead(r.Now())
	return nil
}

// startupTime is how long executors may need to appear after this process began to lead. An executor creates its Lease
// after it has claimed the Turns of an earlier process, which takes up to executor.LeaseDuration, and each write may
// have to be repeated. If the journal is in SQLite, the only executor starts when this process begins to lead.
const startupTime = 3 * executor.LeaseDuration

// startupLeft returns how long executors may still need to appear after this process began to lead, or 0 if that time
// is over.
func (r *ExecutorReconciler) startupLeft(ctx context.Context) (time.Duration, error) {
	if err := r.startLeading(ctx); err != nil {
		return 0, err
	}
	return max(0, startupTime-r.leases.LeadingFor(r.Now())), nil
}

// recordLeases records, once, the existing Leases.
func (r *ExecutorReconciler) recordLeases(ctx context.Context) error {
	if r.leases.Started() {
		return nil
	}
	all, err := r.listLeases(ctx)
	if err == nil {
		r.leases.Start(executor.LeasesOfExecutors(all), r.Now())
	}
	return err
}

// leaseWatcher watches the Leases from the start of a process, whether the process leads or not.
type leaseWatcher struct {
	executors *ExecutorReconciler
	cache     cache.Cache
}

// NeedLeaderElection returns false.
func (leaseWatcher) NeedLeaderElection() bool { return false }

// Start watches the Leases until ctx ends.
func (f leaseWatcher) Start(ctx context.Context) error {
	informer, err := f.cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("failed to watch leases: %w", err)
	}
	registration, err := informer.AddEventHandler(f.handler())
	if err != nil {
		return fmt.Errorf("failed to watch leases: %w", err)
	}
	if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		if err := f.executors.recordLeases(ctx); err != nil {
			return fmt.Errorf("failed to list leases: %w", err)
		}
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}

func (f leaseWatcher) handler() toolscache.ResourceEventHandler {
	r := f.executors
	observe := func(obj any) {
		// A write of the Lease of a store is not a renewal.
		if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == r.Namespace && !executor.IsStoreLease(lease.Name) {
			r.leases.Observe(lease, r.Now())
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, obj any) { observe(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == r.Namespace {
				r.leases.Forget(lease.Name)
			}
		},
	}
}

// executorLost wakes the Turns of a lost executor.
func (r *ExecutorReconciler) executorLost(ctx context.Context, name string) error {
	delete(r.capacities, name)
	r.space.forget(executor.LeasePrefix + name)
	providers := r.Circuits.forget(executor.LeasePrefix + name)
	if err := errors.Join(r.Turns.updateModelsDown(ctx, providers), r.wakeForSpace(ctx), r.publishExecutors(ctx)); err != nil {
		return err
	}
	return r.wakeTurnsOf(ctx, name)
}

// executorFound passes the executors to the scheduler, which wakes the Turns that wait for an executor. If the executor
// has just appeared or its capacity has changed, executorFound also wakes the Turns of lost executors.
func (r *ExecutorReconciler) executorFound(ctx context.Context, name string, capacity int) error {
	if err := r.publishExecutors(ctx); err != nil {
		return err
	}
	if last, known := r.capacities[name]; known && last == capacity {
		return nil
	}
	if r.capacities == nil {
		r.capacities = map[string]int{}
	}
	r.capacities[name] = capacity
	return r.wakeTurnsOfLost(ctx)
}

// publishExecutors passes the executors that may get Turns to the scheduler.
func (r *ExecutorReconciler) publishExecutors(ctx context.Context) error {
	all, err := r.aliveExecutors(ctx)
	if err != nil {
		return fmt.Errorf("failed to list executors: %w", err)
	}
	r.Turns.slots.SetExecutors(all)
	return nil
}

// wakeTurnsOfLost wakes the Turns that are still bound to lost executors, because there was no executor to take them.
func (r *ExecutorReconciler) wakeTurnsOfLost(ctx context.Context) error {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range turns.Items {
		t := &turns.Items[i]
		name := t.BoundTo()
		if _, alive := r.capacities[name]; name != "" && name != r.Self && !alive {
			r.Turns.enqueue(client.ObjectKeyFromObject(t), fairqueue.Overdue)
		}
	}
	return nil
}

// wakeTurnsOf wakes the Turns of a lost executor, before all others of their namespaces.
func (r *ExecutorReconciler) wakeTurnsOf(ctx context.Context, name string) error {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.MatchingFields{indexTurnExecutor: name}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range turns.Items {
		r.Turns.enqueue(client.ObjectKeyFromObject(&turns.Items[i]), fairqueue.Overdue)
	}
	return nil
}

// aliveExecutors returns the executors that may get Turns.
func (r *ExecutorReconciler) aliveExecutors(ctx context.Context) ([]scheduler.Executor, error) {
	if err := r.startLeading(ctx); err != nil {
		return nil, err
	}
	leases, err := r.listLeases(ctx)
	if err != nil {
		return nil, err
	}
	leases = executor.LeasesOfExecutors(leases)
	var all []scheduler.Executor
	now := r.Now()
	for i := range leases {
		e := scheduler.ExecutorOf(&leases[i])
		if r.Exclusive && e.Name != r.Self {
			continue
		}
		if e.Name == r.Self && r.SelfStore != nil {
			e.Store = r.SelfStore()
		}
		if _, mayGetTurns := r.leases.Check(&leases[i], now); mayGetTurns && e.Capacity > 0 {
			all = append(all, e)
		}
	}
	return scheduler.WithoutCutOff(all), nil
}

// listLeases returns the Leases of executors and the Leases of stores.
func (r *ExecutorReconciler) listLeases(ctx context.Context) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	err := r.Client.List(ctx, &leases, client.InNamespace(r.Namespace),
		client.MatchingLabels{executor.LeaseLabel: executor.LeaseLabelValue})
	return leases.Items, err
}

// isAlive reports whether an executor may still be running.
func (r *ExecutorReconciler) isAlive(ctx context.Context, name string) (bool, error) {
	if name == r.Self || r.Exclusive {
		return name == r.Self, nil
	}
	if err := r.startLeading(ctx); err != nil {
		return false, err
	}
	var l coordinationv1.Lease
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: executor.LeasePrefix + name}, &l)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return !r.leases.IsLost(&l, r.Now()), nil
}
