package executor

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

const (
	// LeaseLabel marks the Leases of executors; its value is LeaseLabelValue.
	LeaseLabel = "capstan.dev/component"
	// LeaseLabelValue is the value of LeaseLabel.
	LeaseLabelValue = "executor"
	// CapacityAnnotation of a Lease is how many Turns may be bound to its executor at once; 0 while the executor stops.
	CapacityAnnotation = "capstan.dev/max-concurrent-turns"
	// StoreAnnotation of a Lease is the ID of the store in which the executor keeps journals.
	StoreAnnotation = "capstan.dev/store-id"
	// IncarnationAnnotation of a Lease is the incarnation of that store.
	IncarnationAnnotation = "capstan.dev/store-incarnation"
	// PositionAnnotation of a Lease is a position that the store has reached, in decimal digits. A store that is behind it has lost entries.
	PositionAnnotation = "capstan.dev/store-position"
	// JournalUseAnnotation of a Lease is how much of their quotas the journals use, as JSON of quota.Report.
	JournalUseAnnotation = "capstan.dev/journal-use"
	// LeasePrefix stands before an executor's name in the name of its Lease.
	LeasePrefix = "capstan-executor-"

	// LeaseDuration is how long an executor counts as alive after it renewed its Lease.
	LeaseDuration = 10 * time.Second

	leaseInterval = 3 * time.Second
)

// heldLease is the Lease of an executor at work.
type heldLease struct {
	executor *Executor
	// taking is false when no Turns are to be bound to the executor any more.
	taking atomic.Bool
	// release takes the Lease away.
	release func()
}

// PublishedPosition returns the greatest position that the Leases of a namespace have for the store of an ID; 0 for none. Those of executors
// that are gone count as well.
func PublishedPosition(ctx context.Context, leases kubernetes.Interface, namespace, id string) (int64, error) {
	all, err := leases.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: LeaseLabel + "=" + LeaseLabelValue})
	if err != nil {
		return 0, fmt.Errorf("failed to list the leases of executors in namespace %q: %w", namespace, err)
	}
	var most int64
	for i := range all.Items {
		of := all.Items[i].Annotations
		if position, err := strconv.ParseInt(of[PositionAnnotation], 10, 64); err == nil && of[StoreAnnotation] == id {
			most = max(most, position)
		}
	}
	return most, nil
}

// holdLease tells the controller that this executor lives, until release is called.
func (e *Executor) holdLease(ctx context.Context) *heldLease {
	h := &heldLease{executor: e}
	h.taking.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	failed := func() { e.Log.Info("Failed to renew the lease several times", "executor", e.Name) }
	heartbeat := lease.NewController(clock.RealClock{}, e.Leases, e.Name, int32(LeaseDuration/time.Second), failed, leaseInterval,
		LeasePrefix+e.Name, e.Namespace, func(l *coordinationv1.Lease) error {
			h.describe(l)
			return nil
		})
	done := make(chan struct{})
	go func() {
		defer close(done)
		heartbeat.Run(ctx)
	}()
	h.release = func() {
		cancel()
		<-done
		heartbeat.Stop()
	}
	return h
}

// describe writes what the controller is to know of the executor.
func (h *heldLease) describe(l *coordinationv1.Lease) {
	capacity := 0
	if h.taking.Load() {
		capacity = h.executor.Capacity
	}
	if l.Labels == nil {
		l.Labels = map[string]string{}
	}
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Labels[LeaseLabel] = LeaseLabelValue
	l.Annotations[CapacityAnnotation] = strconv.Itoa(capacity)
	own := h.executor.Store.Last()
	l.Annotations[StoreAnnotation], l.Annotations[IncarnationAnnotation] = own.ID, own.Incarnation
	l.Annotations[PositionAnnotation] = strconv.FormatInt(own.Position, 10)
	if use := h.executor.JournalUse(); use != nil {
		l.Annotations[JournalUseAnnotation] = use.Encode()
	} else {
		delete(l.Annotations, JournalUseAnnotation) // of an earlier process
	}
	for name, value := range h.executor.LeaseAnnotations {
		if value == "" {
			delete(l.Annotations, name) // of an earlier process
		} else {
			l.Annotations[name] = value
		}
	}
}

// withdrawTimeout bounds the time in which the controller is told that an executor stops.
const withdrawTimeout = time.Second

// withdraw tells the controller to bind no more Turns to this executor, which still lives: what is handed back next would
// come here again. If that fails, the next renewal tells it.
func (h *heldLease) withdraw(ctx context.Context) {
	h.taking.Store(false)
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	leases := h.executor.Leases.CoordinationV1().Leases(h.executor.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // the heartbeat writes it, too
		l, err := leases.Get(ctx, LeasePrefix+h.executor.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		h.describe(l)
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		h.executor.Log.Info("Failed to tell that no more turns are taken; the next renewal of the lease does",
			"executor", h.executor.Name, "cause", err.Error())
	}
}
