package controller

import (
	"context"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
)

// ExecutorReconciler watches the Leases of executors: it wakes waiting Turns when an executor appears, and the Turns of
// one whose Lease has run out, so that they are bound anew.
type ExecutorReconciler struct {
	Client client.Client
	Now    func() time.Time
	// Namespace of the Leases.
	Namespace string
	// Self is the executor of this process, if it has one. It is alive as long as this code runs, whatever its Lease
	// says, and still takes no Turns before it holds one.
	Self string
	// Turns is told whom to look at again.
	Turns *TurnReconciler

	// known are the capacities of the executors that live, by name. The one worker of this controller owns it.
	known map[string]int
}

// SetupWithManager registers the reconciler.
func (r *ExecutorReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("executor").For(&coordinationv1.Lease{}).Complete(r)
}

// Reconcile looks at one Lease.
func (r *ExecutorReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	name, ok := strings.CutPrefix(req.Name, executor.LeasePrefix)
	if !ok || req.Namespace != r.Namespace {
		return ctrl.Result{}, nil
	}
	var lease coordinationv1.Lease
	err := r.Client.Get(ctx, req.NamespacedName, &lease)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	left := time.Duration(0)
	if !apierrors.IsNotFound(err) {
		left = expiry(&lease).Sub(r.Now())
	}
	if left <= 0 {
		delete(r.known, name)
		return ctrl.Result{}, r.wakeTurnsOf(ctx, name)
	}
	// A renewal is no news; an executor that appears, or takes more Turns than before, is.
	if capacity := capacityOf(&lease); r.known[name] != capacity {
		if r.known == nil {
			r.known = map[string]int{}
		}
		r.known[name] = capacity
		r.Turns.places.wakeAll()
		if err := r.wakeTurnsOfLost(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: left}, nil
}

// wakeTurnsOfLost brings back the Turns that are bound to executors that do not live: there was none to take them.
func (r *ExecutorReconciler) wakeTurnsOfLost(ctx context.Context) error {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns); err != nil {
		return err
	}
	for i := range turns.Items {
		t := &turns.Items[i]
		name := t.BoundTo()
		if _, lives := r.known[name]; name != "" && name != r.Self && !lives {
			r.Turns.enqueue(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(t)})
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
	if err := r.Client.List(ctx, &turns, client.MatchingFields{indexTurnExecutor: name}); err != nil {
		return err
	}
	for i := range turns.Items {
		r.Turns.enqueue(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&turns.Items[i])})
	}
	return nil
}

// live are the executors whose Leases have not run out.
func (r *ExecutorReconciler) live(ctx context.Context) ([]ExecutorInfo, error) {
	var leases coordinationv1.LeaseList
	err := r.Client.List(ctx, &leases, client.InNamespace(r.Namespace), client.MatchingLabels{executor.LeaseLabel: executor.LeaseLabelValue})
	if err != nil {
		return nil, err
	}
	var all []ExecutorInfo
	for i := range leases.Items {
		l := &leases.Items[i]
		if r.Now().Before(expiry(l)) {
			all = append(all, ExecutorInfo{Name: strings.TrimPrefix(l.Name, executor.LeasePrefix), Capacity: capacityOf(l)})
		}
	}
	return all, nil
}

// lives says whether an executor may still be at work.
func (r *ExecutorReconciler) lives(ctx context.Context, name string) (bool, error) {
	if name == r.Self {
		return true, nil
	}
	var l coordinationv1.Lease
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: executor.LeasePrefix + name}, &l)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && r.Now().Before(expiry(&l)), err
}

// expiry is when a Lease runs out; a Lease that was never renewed has run out.
func expiry(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second)
}
