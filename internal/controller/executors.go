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

// ExecutorReconciler watches the Leases of executors: it wakes waiting Turns when an executor appears, and the Turns of
// one whose Lease has run out, so that they are bound anew.
type ExecutorReconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	Now  func() time.Time
	// Namespace of the Leases.
	Namespace string
	// Self is the executor of this process, empty if it has none. It is alive as long as this code runs, whatever its Lease
	// says, and still takes no Turns before it holds one.
	Self string
	// Exclusive says that no executor but Self works while this process leads: they work only while they lead, as executors with a
	// journal in SQLite do. Whoever wins the election then knows that all others are gone.
	Exclusive bool
	// SelfStore is where that executor keeps journals, as it was last known. Its Lease may be one of an earlier process, which
	// had another store.
	SelfStore func() executor.StoreIdentity
	// Turns is told whom to look at again.
	Turns *TurnReconciler

	leases leases
	// space is what the executors say of the journals' quotas.
	space journalSpace
	// known are the capacities of the executors that may get Turns, by name. The one worker of this controller owns it.
	known map[string]int
}

// SetupWithManager registers the reconciler, and follows the Leases from the start of the process.
func (r *ExecutorReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(follower{r, mgr.GetCache()}); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("executor").For(&coordinationv1.Lease{}).Complete(r)
}

// Reconcile looks at one Lease.
func (r *ExecutorReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	name, ok := strings.CutPrefix(req.Name, executor.LeasePrefix)
	if !ok || req.Namespace != r.Namespace {
		return ctrl.Result{}, nil
	}
	if err := r.start(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var lease coordinationv1.Lease
	if err := r.Client.Get(ctx, req.NamespacedName, &lease); err != nil {
		if apierrors.IsNotFound(err) {
			r.leases.forget(req.Name)
			return ctrl.Result{}, r.lost(ctx, name)
		}
		return ctrl.Result{}, err
	}
	left, trusted := r.leases.look(&lease, r.Now())
	switch {
	case r.Exclusive && name != r.Self:
		return r.bury(ctx, name, &lease)
	case left <= 0:
		return r.lapsed(ctx, name, &lease)
	}
	if trusted {
		r.space.see(&lease)
		if err := r.wakeForSpace(ctx); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.found(ctx, name, capacityOf(&lease)); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: left}, nil
}

// How long the Lease of an executor that is gone is kept. Pods have a new name each, so that their Leases would pile up.
const (
	// leaseKept is the time for a Lease that alone knows the position of its store: a copy of the store that is restored meanwhile is
	// compared with it.
	leaseKept = time.Hour
	// coveredLeaseKept is the time for one whose position another executor has reached, for people who look for it.
	coveredLeaseKept = 5 * time.Minute
)

// liveTimeout bounds the look at a Lease that seems to have run out.
const liveTimeout = 5 * time.Second

// lapsed judges an executor whose Lease seems to have run out. That may be the fault of the watch, or of the API server, and
// then a living executor must keep its Turns: so the API server is asked, and where it gives no answer nobody is judged.
func (r *ExecutorReconciler) lapsed(ctx context.Context, name string, lease *coordinationv1.Lease) (ctrl.Result, error) {
	if r.leases.isLost(lease, r.Now()) {
		return r.bury(ctx, name, lease)
	}
	bounded, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	var now coordinationv1.Lease
	switch err := r.Live.Get(bounded, client.ObjectKeyFromObject(lease), &now); {
	case apierrors.IsNotFound(err):
		r.leases.lose(lease, r.Now()) // and forgotten when the cache shows it, which would else take it for a new one
		return ctrl.Result{}, r.lost(ctx, name)
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Failed to look at a lease that seems to have run out; its executor keeps its turns for now", "executor", name)
		r.leases.blind(r.Now())
		return ctrl.Result{RequeueAfter: liveTimeout}, nil
	}
	if left, _ := r.leases.look(&now, r.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil // it was renewed, and the cache will show it
	}
	r.leases.lose(&now, r.Now())
	return r.bury(ctx, name, &now)
}

// bury brings back the Turns of an executor that is gone, and deletes its Lease when nobody has renewed it for long.
func (r *ExecutorReconciler) bury(ctx context.Context, name string, lease *coordinationv1.Lease) (ctrl.Result, error) {
	if err := r.lost(ctx, name); err != nil {
		return ctrl.Result{}, err
	}
	kept, err := r.keeps(ctx, lease)
	if err != nil {
		return ctrl.Result{}, err
	}
	unchanged := r.leases.unchanged(lease, r.Now())
	switch {
	case unchanged < coveredLeaseKept:
		return ctrl.Result{RequeueAfter: coveredLeaseKept - unchanged}, nil
	case unchanged < kept: // an executor that covers it may appear at any time
		return ctrl.Result{RequeueAfter: min(coveredLeaseKept, kept-unchanged)}, nil
	}
	err = r.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if apierrors.IsConflict(err) { // it was renewed after all, and the watch tells
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// keeps returns how long the Lease of an executor that is gone is kept.
func (r *ExecutorReconciler) keeps(ctx context.Context, lease *coordinationv1.Lease) (time.Duration, error) {
	all, err := r.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("failed to list the leases of executors: %w", err)
	}
	for i := range all {
		if l := &all[i]; l.Name != lease.Name && covers(l, lease) {
			if left, trusted := r.leases.look(l, r.Now()); left > 0 && trusted {
				return coveredLeaseKept, nil
			}
		}
	}
	return leaseKept, nil
}

// covers reports whether a Lease has the position of the store of another one, or a later one.
func covers(l, other *coordinationv1.Lease) bool {
	id := other.Annotations[executor.StoreAnnotation]
	was, errWas := strconv.ParseInt(other.Annotations[executor.PositionAnnotation], 10, 64)
	is, errIs := strconv.ParseInt(l.Annotations[executor.PositionAnnotation], 10, 64)
	return id != "" && l.Annotations[executor.StoreAnnotation] == id && errWas == nil && errIs == nil && is >= was
}

// start sees, once, the Leases that there are before anything happens to them. Only a leader gets here.
func (r *ExecutorReconciler) start(ctx context.Context) error {
	if err := r.watch(ctx); err != nil {
		return err
	}
	r.leases.lead(r.Now())
	return nil
}

// watch sees, once, the Leases that there are.
func (r *ExecutorReconciler) watch(ctx context.Context) error {
	if r.leases.started() {
		return nil
	}
	all, err := r.list(ctx)
	if err == nil {
		r.leases.start(all, r.Now())
	}
	return err
}

// follower sees the Leases from the start of a process, whether it leads or not.
type follower struct {
	executors *ExecutorReconciler
	cache     cache.Cache
}

// NeedLeaderElection is false.
func (follower) NeedLeaderElection() bool { return false }

// Start follows the Leases until ctx ends.
func (f follower) Start(ctx context.Context) error {
	informer, err := f.cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("failed to watch leases: %w", err)
	}
	registration, err := informer.AddEventHandler(f.handler())
	if err != nil {
		return fmt.Errorf("failed to watch leases: %w", err)
	}
	if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		if err := f.executors.watch(ctx); err != nil {
			return fmt.Errorf("failed to list leases: %w", err)
		}
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}

func (f follower) handler() toolscache.ResourceEventHandler {
	r := f.executors
	see := func(obj any) {
		if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == r.Namespace {
			r.leases.see(lease, r.Now())
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

// lost brings back the Turns of an executor that is gone.
func (r *ExecutorReconciler) lost(ctx context.Context, name string) error {
	delete(r.known, name)
	r.space.forget(executor.LeasePrefix + name)
	if err := errors.Join(r.wakeForSpace(ctx), r.publish(ctx)); err != nil {
		return err
	}
	return r.wakeTurnsOf(ctx, name)
}

// found brings back who waits for an executor. A renewal is no news; one that appears, or takes more Turns than before, is.
func (r *ExecutorReconciler) found(ctx context.Context, name string, capacity int) error {
	if err := r.publish(ctx); err != nil {
		return err
	}
	if now, known := r.known[name]; known && now == capacity {
		return nil
	}
	if r.known == nil {
		r.known = map[string]int{}
	}
	r.known[name] = capacity
	return r.wakeTurnsOfLost(ctx)
}

// publish tells the scheduler which executors may get Turns.
func (r *ExecutorReconciler) publish(ctx context.Context) error {
	all, err := r.live(ctx)
	if err != nil {
		return fmt.Errorf("failed to list executors: %w", err)
	}
	r.Turns.slots.SetExecutors(all)
	return nil
}

// wakeTurnsOfLost brings back the Turns that are bound to executors that do not live: there was none to take them.
func (r *ExecutorReconciler) wakeTurnsOfLost(ctx context.Context) error {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range turns.Items {
		t := &turns.Items[i]
		name := t.BoundTo()
		if _, lives := r.known[name]; name != "" && name != r.Self && !lives {
			r.Turns.enqueue(client.ObjectKeyFromObject(t), fairqueue.Normal)
		}
	}
	return nil
}

// capacityOf reads how many Turns an executor takes; 0 if its Lease does not say.
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

// live are the executors that may get Turns.
func (r *ExecutorReconciler) live(ctx context.Context) ([]scheduler.Executor, error) {
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	leases, err := r.list(ctx)
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
		capacity := capacityOf(l) // 0 where the executor stops: what it is given it hands back
		if _, trusted := r.leases.look(l, now); trusted && capacity > 0 {
			all = append(all, scheduler.Executor{Name: name, Capacity: capacity, Store: r.storeOf(name, l)})
		}
	}
	return all, nil
}

// storeOf returns where an executor keeps journals.
func (r *ExecutorReconciler) storeOf(name string, l *coordinationv1.Lease) executor.StoreIdentity {
	if name == r.Self && r.SelfStore != nil {
		return r.SelfStore()
	}
	return executor.StoreIdentity{ID: l.Annotations[executor.StoreAnnotation], Incarnation: l.Annotations[executor.IncarnationAnnotation]}
}

func (r *ExecutorReconciler) list(ctx context.Context) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	err := r.Client.List(ctx, &leases, client.InNamespace(r.Namespace), client.MatchingLabels{executor.LeaseLabel: executor.LeaseLabelValue})
	return leases.Items, err
}

// lives says whether an executor may still be at work.
func (r *ExecutorReconciler) lives(ctx context.Context, name string) (bool, error) {
	if name == r.Self || r.Exclusive {
		return name == r.Self, nil
	}
	if err := r.start(ctx); err != nil {
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
