package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// ExecutorReconciler watches the Leases of executors. When an executor appears, it wakes waiting Turns. When a
// Lease expires, it wakes the Turns of that executor, so that they are bound anew.
type ExecutorReconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	Now  func() time.Time
	// Namespace is the namespace of the Leases.
	Namespace string
	// Self is the name of the executor in this process; empty if there is none. It counts as alive while this code
	// runs, whatever its Lease says. It still gets no Turns before it holds its Lease.
	Self string
	// Exclusive means that no executor but Self works while this process leads. Executors with a journal in SQLite
	// work only while they lead, so the winner of an election knows that all others have stopped.
	Exclusive bool
	// SelfStore returns the store of that executor, as it was last known. Its Lease may be from an earlier process,
	// which had another store. If SelfStore is nil, the Lease is used.
	SelfStore func() executor.StoreIdentity
	// Turns enqueues the Turns to reconcile again.
	Turns *TurnReconciler

	leases leases
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
	if !ok || req.Namespace != r.Namespace {
		return ctrl.Result{}, nil
	}
	if err := r.startLeading(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var lease coordinationv1.Lease
	if err := r.Client.Get(ctx, req.NamespacedName, &lease); err != nil {
		if apierrors.IsNotFound(err) {
			r.leases.forget(req.Name)
			return ctrl.Result{}, r.executorLost(ctx, name)
		}
		return ctrl.Result{}, err
	}
	left, trusted := r.leases.check(&lease, r.Now())
	switch {
	case r.Exclusive && name != r.Self:
		return r.deleteExpiredLease(ctx, name, &lease)
	case left <= 0:
		return r.handleExpiredLease(ctx, name, &lease)
	}
	if trusted {
		r.space.see(&lease)
		if err := r.wakeForSpace(ctx); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.executorFound(ctx, name, capacityOf(&lease)); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: left}, nil
}

// These constants say how long the Lease of a lost executor is kept. Each Pod has a new name, so Leases would
// accumulate.
const (
	// maxLeaseRetention applies while no other Lease has reached the position of its store. A copy of the store that is
	// restored meanwhile is compared with this position.
	maxLeaseRetention = time.Hour
	// coveredLeaseRetention applies once another executor has reached the position. The Lease is then kept only for
	// people who look for it.
	coveredLeaseRetention = 5 * time.Minute
)

// leaseReadTimeout bounds the read of a Lease that seems to have expired.
const leaseReadTimeout = 5 * time.Second

// handleExpiredLease handles a Lease that seems to have expired. The watch or the API server may be at fault, and
// then a living executor must keep its Turns. So the Lease is read from the API server. If the API server does not
// answer, no executor is declared lost.
func (r *ExecutorReconciler) handleExpiredLease(ctx context.Context, name string, lease *coordinationv1.Lease) (ctrl.Result, error) {
	if r.leases.isLost(lease, r.Now()) {
		return r.deleteExpiredLease(ctx, name, lease)
	}
	bounded, cancel := context.WithTimeout(ctx, leaseReadTimeout)
	defer cancel()
	var now coordinationv1.Lease
	switch err := r.Live.Get(bounded, client.ObjectKeyFromObject(lease), &now); {
	case apierrors.IsNotFound(err):
		// the Lease is forgotten only when the cache shows its deletion; until then the cache would show it as a
		// new one
		r.leases.markLost(lease, r.Now())
		return ctrl.Result{}, r.executorLost(ctx, name)
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Failed to read a lease that seems to have expired; its executor keeps its turns for now",
			"executor", name)
		r.leases.recordOutage(r.Now())
		return ctrl.Result{RequeueAfter: leaseReadTimeout}, nil
	}
	if left, _ := r.leases.check(&now, r.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil // the executor has renewed it, and the cache will show that
	}
	r.leases.markLost(&now, r.Now())
	return r.deleteExpiredLease(ctx, name, &now)
}

// deleteExpiredLease wakes the Turns of a lost executor. It deletes the executor's Lease if the Lease has not been
// renewed for long.
func (r *ExecutorReconciler) deleteExpiredLease(ctx context.Context, name string, lease *coordinationv1.Lease) (ctrl.Result, error) {
	if err := r.executorLost(ctx, name); err != nil {
		return ctrl.Result{}, err
	}
	kept, err := r.leaseRetention(ctx, lease)
	if err != nil {
		return ctrl.Result{}, err
	}
	unchanged := r.leases.unchangedFor(lease, r.Now())
	switch {
	case unchanged < coveredLeaseRetention:
		return ctrl.Result{RequeueAfter: coveredLeaseRetention - unchanged}, nil
	case unchanged < kept: // an executor that covers it may appear at any time
		return ctrl.Result{RequeueAfter: min(coveredLeaseRetention, kept-unchanged)}, nil
	}
	err = r.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if apierrors.IsConflict(err) { // the executor has renewed it after all, and the watch will show that
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// leaseRetention returns how long the Lease of a lost executor is kept.
func (r *ExecutorReconciler) leaseRetention(ctx context.Context, lease *coordinationv1.Lease) (time.Duration, error) {
	all, err := r.listLeases(ctx)
	if err != nil {
		return 0, fmt.Errorf("failed to list the leases of executors: %w", err)
	}
	for i := range all {
		if l := &all[i]; l.Name != lease.Name && coversPosition(l, lease) {
			if left, trusted := r.leases.check(l, r.Now()); left > 0 && trusted {
				return coveredLeaseRetention, nil
			}
		}
	}
	return maxLeaseRetention, nil
}

// coversPosition reports whether l has the store position of another Lease, or a later one.
func coversPosition(l, other *coordinationv1.Lease) bool {
	id := other.Annotations[executor.StoreAnnotation]
	was, errWas := strconv.ParseInt(other.Annotations[executor.PositionAnnotation], 10, 64)
	is, errIs := strconv.ParseInt(l.Annotations[executor.PositionAnnotation], 10, 64)
	return id != "" && l.Annotations[executor.StoreAnnotation] == id && errWas == nil && errIs == nil && is >= was
}

// startLeading records, once, the existing Leases before any of them changes, and that this process leads. Only a
// leader calls it.
func (r *ExecutorReconciler) startLeading(ctx context.Context) error {
	if err := r.recordLeases(ctx); err != nil {
		return err
	}
	r.leases.lead(r.Now())
	return nil
}

// recordLeases records, once, the existing Leases.
func (r *ExecutorReconciler) recordLeases(ctx context.Context) error {
	if r.leases.started() {
		return nil
	}
	all, err := r.listLeases(ctx)
	if err == nil {
		r.leases.recordExisting(all, r.Now())
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
	see := func(obj any) {
		if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == r.Namespace {
			r.leases.observe(lease, r.Now())
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, obj any) { see(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == r.Namespace {
				r.leases.forget(lease.Name)
			}
		},
	}
}

// executorLost wakes the Turns of a lost executor.
func (r *ExecutorReconciler) executorLost(ctx context.Context, name string) error {
	delete(r.capacities, name)
	r.space.forget(executor.LeasePrefix + name)
	if err := errors.Join(r.wakeForSpace(ctx), r.publishExecutors(ctx)); err != nil {
		return err
	}
	return r.wakeTurnsOf(ctx, name)
}

// executorFound wakes the Turns that wait for an executor. It does so only if the executor has just appeared or its
// capacity has changed; a renewal changes nothing.
func (r *ExecutorReconciler) executorFound(ctx context.Context, name string, capacity int) error {
	if err := r.publishExecutors(ctx); err != nil {
		return err
	}
	if now, known := r.capacities[name]; known && now == capacity {
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

// wakeTurnsOfLost wakes the Turns that are bound to lost executors: until now there was no executor to take them.
func (r *ExecutorReconciler) wakeTurnsOfLost(ctx context.Context) error {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range turns.Items {
		t := &turns.Items[i]
		name := t.BoundTo()
		if _, alive := r.capacities[name]; name != "" && name != r.Self && !alive {
			r.Turns.enqueue(client.ObjectKeyFromObject(t), fairqueue.Normal)
		}
	}
	return nil
}

// capacityOf returns the number of Turns that an executor takes; 0 if its Lease does not say.
func capacityOf(l *coordinationv1.Lease) int {
	n, err := strconv.Atoi(l.Annotations[executor.CapacityAnnotation])
	if err != nil {
		return 0
	}
	return n
}

func (r *ExecutorReconciler) wakeTurnsOf(ctx context.Context, name string) error {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.MatchingFields{indexTurnExecutor: name}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range turns.Items {
		r.Turns.enqueue(client.ObjectKeyFromObject(&turns.Items[i]), fairqueue.Normal)
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
	var all []scheduler.Executor
	now := r.Now()
	for i := range leases {
		l := &leases[i]
		name := strings.TrimPrefix(l.Name, executor.LeasePrefix)
		if r.Exclusive && name != r.Self {
			continue
		}
		capacity := capacityOf(l) // 0 while the executor stops: it would hand new Turns back
		if _, trusted := r.leases.check(l, now); trusted && capacity > 0 {
			all = append(all, scheduler.Executor{Name: name, Capacity: capacity, Store: r.storeOf(name, l)})
		}
	}
	return all, nil
}

// storeOf returns the store in which an executor keeps journals.
func (r *ExecutorReconciler) storeOf(name string, l *coordinationv1.Lease) executor.StoreIdentity {
	if name == r.Self && r.SelfStore != nil {
		return r.SelfStore()
	}
	return executor.StoreIdentity{ID: l.Annotations[executor.StoreAnnotation], Incarnation: l.Annotations[executor.IncarnationAnnotation]}
}

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
	return !r.leases.isLost(&l, r.Now()), nil
}
