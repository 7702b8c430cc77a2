package controller

import (
	"context"
	"fmt"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// storeLeaseTimeout limits the requests that write the Lease of a store. An API server that does not answer must not
// block the worker for all executors.
const storeLeaseTimeout = 5 * time.Second

// keepStorePosition writes a position into the Lease of its store, so that the executor's Lease that published it can
// be deleted. If the Lease of the store has a later position, it keeps that position.
//
// Only the leader writes the Leases of stores. The executor's Lease may be deleted only after this write has succeeded.
// If the write fails, if its result is unknown, or if the leader is lost after it, the executor's Lease still exists,
// and both steps are repeated. So at any time at least one Lease has the position.
func (r *ExecutorReconciler) keepStorePosition(ctx context.Context, p executor.StorePosition) error {
	ctx, cancel := context.WithTimeout(ctx, storeLeaseTimeout)
	defer cancel()
	lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: executor.StoreLeaseName(p.ID)}}
	// The cache may not show the last write yet, and a later position must not be lost.
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(&lease), &lease)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("failed to read the lease of store %q: %w", p.ID, err)
	}
	exists := err == nil
	if last, ok := executor.PublishedBy(&lease); ok && last.Covers(p) {
		p = last
	}
	metav1.SetMetaDataLabel(&lease.ObjectMeta, executor.LeaseLabel, executor.LeaseLabelValue)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, executor.StoreAnnotation, p.ID)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, executor.PositionAnnotation, strconv.FormatInt(p.Position, 10))
	lease.Spec = coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(r.ServerNow()))}
	if exists {
		err = r.Client.Update(ctx, &lease)
	} else {
		err = r.Client.Create(ctx, &lease)
	}
	if err != nil {
		return fmt.Errorf("failed to keep the position of store %q: %w", p.ID, err)
	}
	return nil
}

// reconcileStoreLease deletes the Lease of a store when a living executor covers its position, or when it need not be
// kept any longer (see scheduler.KeepStoreFor).
func (r *ExecutorReconciler) reconcileStoreLease(ctx context.Context, key client.ObjectKey) (ctrl.Result, error) {
	var lease coordinationv1.Lease
	if err := r.Client.Get(ctx, key, &lease); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	all, err := r.listLeases(ctx)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("failed to list the leases of executors and stores: %w", err)
	}
	now := r.ServerNow()
	if r.leases.IsCovered(&lease, executor.LeasesOfExecutors(all), r.Now()) {
		return ctrl.Result{}, r.deleteLease(ctx, &lease)
	}
	if !scheduler.HasValidTime(&lease, now) {
		lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
		err := r.Client.Update(ctx, &lease)
		if apierrors.IsConflict(err) { // the watch will show the newer version
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(err) // the watch will show this write
	}
	if left := scheduler.KeepStoreFor(&lease, all, now); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return ctrl.Result{}, r.deleteLease(ctx, &lease)
}

// deleteLease deletes a Lease unless it has changed since it was read. If it has changed, the watch will show that.
func (r *ExecutorReconciler) deleteLease(ctx context.Context, lease *coordinationv1.Lease) error {
	err := r.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
