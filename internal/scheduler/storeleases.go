package scheduler

import (
	"cmp"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/capstan-dev/capstan/internal/executor"
)

// A Lease of a store keeps the position that the Lease of a lost executor had. If an older copy of the store is
// restored, this position shows that entries are lost.
const (
	// StoreLeaseRetention is how long a Lease of a store is kept after it was last written, unless a living executor
	// covers its position earlier.
	StoreLeaseRetention = 24 * time.Hour
	// MaxStoreLeases is the maximum number of Leases of stores; the oldest are deleted first. A manager with its
	// journal on an emptyDir has a new store in each Pod, so without a maximum there could be any number.
	MaxStoreLeases = 100
)

// KeepStoreFor returns how long the Lease of a store must be kept before KeepStoreFor is called again, or 0 if the
// Lease may be deleted now. all has the Leases of all stores, and may have other Leases.
//
// The age of the Lease counts from the time in it, unlike that of an executor's Lease, so that a new leader does not
// start the retention again. now must be by the clock of the API server, by which the time was written.
func KeepStoreFor(lease *coordinationv1.Lease, all []coordinationv1.Lease, now time.Time) time.Duration {
	if _, ok := executor.PublishedBy(lease); !ok {
		return 0
	}
	newer := 0
	for i := range all {
		other := &all[i]
		if executor.IsStoreLease(other.Name) &&
			cmp.Or(writtenAt(other).Compare(writtenAt(lease)), cmp.Compare(other.Name, lease.Name)) > 0 {
			newer++
		}
	}
	if newer >= MaxStoreLeases {
		return 0
	}
	// Check again after LeaseRetention: a living executor may cover the position by then.
	return max(0, min(LeaseRetention, StoreLeaseRetention-now.Sub(writtenAt(lease))))
}

// HasValidTime reports whether the Lease of a store says when it was written. A time in the future does not count: the
// clock was wrong then, or has been set back since, and the Lease could stay forever. The clocks of several API servers
// may differ a little.
func HasValidTime(lease *coordinationv1.Lease, now time.Time) bool {
	at := writtenAt(lease)
	return !at.IsZero() && at.Sub(now) <= LeaseRetention
}

// writtenAt returns when the Lease of a store was last written, or the zero time if it does not say that.
func writtenAt(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Time
}
