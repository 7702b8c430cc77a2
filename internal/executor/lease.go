package executor

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

const (
	// LeaseLabel marks the Leases of executors, and the Leases that keep the positions of their stores: see
	// IsStoreLease. Its value is LeaseLabelValue.
	LeaseLabel = "capstan.dev/component"
	// LeaseLabelValue is the value of LeaseLabel.
	LeaseLabelValue = "executor"
	// CapacityAnnotation is the number of Turns that may be bound to the executor of a Lease at the same time. It is
	// 0 while the executor stops.
	CapacityAnnotation = "capstan.dev/max-concurrent-turns"
	// StuckAnnotation is the number of Turns that are bound to the executor of a Lease, but that need no slot, because
	// it neither runs them nor can hand them back. It is at most the value of CapacityAnnotation, and absent if it is
	// 0.
	StuckAnnotation = "capstan.dev/stuck-turns"
	// StoreAnnotation is the ID of the store in which the executor of a Lease keeps journals.
	StoreAnnotation = "capstan.dev/store-id"
	// IncarnationAnnotation is the incarnation of that store.
	IncarnationAnnotation = "capstan.dev/store-incarnation"
	// PositionAnnotation is a position that the store has reached, in decimal digits. A store that is behind this
	// position has lost entries.
	PositionAnnotation = "capstan.dev/store-position"
	// StoreReachableAnnotation is "true" if the store works for the executor of a Lease, and "false" if it has not
	// worked for some time. It is absent between the two, before the first check, and if no other process can use the
	// store.
	StoreReachableAnnotation = "capstan.dev/store-reachable"
	// JournalUseAnnotation says how much of their quotas the journals use, as the JSON of a quota.Report.
	JournalUseAnnotation = "capstan.dev/journal-use"
	// CircuitsAnnotation lists the ModelProviders whose circuits are open, as providers.Circuits encodes them.
	CircuitsAnnotation = "capstan.dev/open-circuits"
	// LeasePrefix precedes the executor's name in the name of its Lease.
	LeasePrefix = "capstan-executor-"

	// LeaseDuration is how long an executor counts as alive after it has renewed its Lease.
	LeaseDuration = 10 * time.Second

	leaseInterval = 3 * time.Second

	// renewTimeout limits each request for the Lease of an executor, including the waits that the API server asks for.
	// So if the API server throttles a renewal, there are at least two more attempts within LeaseDuration.
	renewTimeout = 2 * time.Second

	// maxAnnotations limits the names and values of all annotations of a Lease, in bytes. The API server refuses an
	// object with more than 256 KiB of them.
	maxAnnotations = 200 << 10
)

// heldLease is the Lease of a running executor.
type heldLease struct {
	executor *Executor
	// acceptsTurns is false when no more Turns may be bound to the executor.
	acceptsTurns atomic.Bool
	// leftOut has the annotations of the reports for which the log says that they were left out of the Lease because of
	// maxAnnotations.
	leftOut sync.Map
	// release releases the Lease.
	release func()
}

// NewLeaseClient returns a client for Executor.Leases. The client of other requests must not renew a Lease: if the API
// server answers 429, it waits for as long as the header Retry-After says, up to 10 times, and the Lease expires.
func NewLeaseClient(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.Timeout = renewTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("failed to create a client for the lease of the executor: %w", err)
	}
	return client, nil
}

// PublishedPosition returns the highest position that the Leases of a namespace report for the store with the given
// ID, or 0 if there is none. The Leases of executors that are gone count as well, and so do the Leases that keep the
// positions of stores.
func PublishedPosition(ctx context.Context, leases kubernetes.Interface, namespace, id string) (int64, error) {
	all, err := leases.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: LeaseLabel + "=" + LeaseLabelValue})
	if err != nil {
		return 0, fmt.Errorf("failed to list the leases of executors in namespace %q: %w", namespace, err)
	}
	var most int64
	for i := range all.Items {
		if published, ok := PublishedBy(&all.Items[i]); ok && published.ID == id {
			most = max(most, published.Position)
		}
	}
	return most, nil
}

// holdLease creates the executor's Lease and renews it until release is called.
func (e *Executor) holdLease(ctx context.Context) *heldLease {
	h := &heldLease{executor: e}
	h.acceptsTurns.Store(true)
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
		h.writeRelease(context.WithoutCancel(ctx))
	}
	return h
}

// describe writes the labels and annotations that the controller reads.
func (h *heldLease) describe(l *coordinationv1.Lease) {
	capacity := 0
	if h.acceptsTurns.Load() {
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
	delete(l.Annotations, StuckAnnotation)
	// A limit keeps the number of Turns that are bound to one executor bounded.
	if stuck := min(capacity, h.executor.stuckTurns()); stuck > 0 {
		l.Annotations[StuckAnnotation] = strconv.Itoa(stuck)
	}
	own := h.executor.Store.Last()
	l.Annotations[StoreAnnotation], l.Annotations[IncarnationAnnotation] = own.ID, own.Incarnation
	l.Annotations[PositionAnnotation] = strconv.FormatInt(own.Position, 10)
	delete(l.Annotations, StoreReachableAnnotation) // left by an earlier process
	if reach := h.executor.StoreReach; reach != nil {
		if reachable, known := reach(); known {
			l.Annotations[StoreReachableAnnotation] = strconv.FormatBool(reachable)
		}
	}
	if use := h.executor.JournalUse(); use != nil {
		l.Annotations[JournalUseAnnotation] = use.Encode()
	} else {
		delete(l.Annotations, JournalUseAnnotation) // left by an earlier process
	}
	delete(l.Annotations, CircuitsAnnotation)
	if gates := h.executor.Gates; gates != nil {
		if open := gates.OpenCircuits().Encode(); open != "" {
			l.Annotations[CircuitsAnnotation] = open
		}
	}
	for name, value := range h.executor.LeaseAnnotations {
		if value == "" {
			delete(l.Annotations, name) // left by an earlier process
		} else {
			l.Annotations[name] = value
		}
	}
	h.limitReports(l)
}

// limitReports leaves reports out of the Lease while its annotations are too long, for example because of annotations
// of another program. Otherwise the API server would refuse each renewal, and the executor would count as lost.
func (h *heldLease) limitReports(l *coordinationv1.Lease) {
	size := 0
	for name, value := range l.Annotations {
		size += len(name) + len(value)
	}
	for _, report := range []string{CircuitsAnnotation, JournalUseAnnotation} {
		value, ok := l.Annotations[report]
		if size <= maxAnnotations || !ok {
			continue
		}
		size -= len(report) + len(value)
		delete(l.Annotations, report)
		if _, logged := h.leftOut.LoadOrStore(report, true); !logged {
			h.executor.Log.Info("Left a report out of the lease, because the annotations of the lease would be too long",
				"executor", h.executor.Name, "annotation", report, "limitBytes", maxAnnotations)
		}
	}
}

const (
	// withdrawTimeout limits the write that announces that an executor stops.
	withdrawTimeout = time.Second
	// lastMarkTimeout limits the mark of the store when the executor has stopped, and releaseTimeout the write that
	// then releases its Lease.
	lastMarkTimeout, releaseTimeout = 2 * time.Second, time.Second
)

// withdraw asks the controller to bind no more Turns to this executor, which is still alive. The executor then hands
// back its Turns. Without this write, the controller would bind them to the same executor again. If the write fails,
// the next renewal of the Lease announces the stop.
func (h *heldLease) withdraw(ctx context.Context) {
	h.acceptsTurns.Store(false)
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	if err := h.write(ctx, func(*coordinationv1.Lease) {}); err != nil {
		h.executor.Log.Info("Failed to announce that this executor takes no more turns; the next renewal of the lease announces it",
			"executor", h.executor.Name, "cause", err.Error())
	}
}

// writeRelease removes the time of the last renewal from the Lease, so that the controller counts this executor as
// lost at once. The Lease is not deleted, because it has the position of the store: if an older copy of the store is
// restored while no manager runs, only the position shows that. The controller deletes the Lease later. If the write
// fails, the Lease expires.
func (h *heldLease) writeRelease(ctx context.Context) {
	if err := h.markStore(ctx); err != nil {
		h.executor.Log.Info("Failed to mark the store; the lease has the last position that was confirmed",
			"executor", h.executor.Name, "cause", err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	err := h.write(ctx, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil })
	if err != nil && !apierrors.IsNotFound(err) { // a Lease that does not exist was never held
		h.executor.Log.Info("Failed to release the lease; it expires", "executor", h.executor.Name, "cause", err.Error())
	}
}

// markStore gives the store its last position. A store that does not answer must leave time to release the Lease.
func (h *heldLease) markStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lastMarkTimeout)
	defer cancel()
	return h.executor.Store.Mark(ctx)
}

// write describes the executor in its Lease, and makes another change to the Lease.
func (h *heldLease) write(ctx context.Context, change func(*coordinationv1.Lease)) error {
	leases := h.executor.Leases.CoordinationV1().Leases(h.executor.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { // the heartbeat also writes the Lease
		l, err := leases.Get(ctx, LeasePrefix+h.executor.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		h.describe(l)
		change(l)
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		return err
	})
}
