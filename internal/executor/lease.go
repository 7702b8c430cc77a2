package executor

import (
	"context"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

const (
	// LeaseLabel marks the Leases of executors; its value is LeaseLabelValue.
	LeaseLabel = "capstan.dev/component"
	// LeaseLabelValue is the value of LeaseLabel.
	LeaseLabelValue = "executor"
	// CapacityAnnotation of a Lease is how many Turns may be bound to its executor at once.
	CapacityAnnotation = "capstan.dev/max-concurrent-turns"
	// LeasePrefix stands before an executor's name in the name of its Lease.
	LeasePrefix = "capstan-executor-"

	// LeaseDuration is how long an executor counts as alive after it renewed its Lease.
	LeaseDuration = 15 * time.Second

	leaseInterval = 5 * time.Second
)

// holdLease tells the controller that this executor lives, until release is called, which takes the Lease away.
func (e *Executor) holdLease(ctx context.Context) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	failed := func() { e.Log.Info("Failed to renew the lease several times", "executor", e.Name) }
	heartbeat := lease.NewController(clock.RealClock{}, e.Leases, e.Name, int32(LeaseDuration/time.Second), failed, leaseInterval,
		LeasePrefix+e.Name, e.Namespace, func(l *coordinationv1.Lease) error {
			if l.Labels == nil {
				l.Labels = map[string]string{}
			}
			if l.Annotations == nil {
				l.Annotations = map[string]string{}
			}
			l.Labels[LeaseLabel] = LeaseLabelValue
			l.Annotations[CapacityAnnotation] = strconv.Itoa(e.Capacity)
			return nil
		})
	done := make(chan struct{})
	go func() {
		defer close(done)
		heartbeat.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
		heartbeat.Stop()
	}
}
