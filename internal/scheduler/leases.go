package scheduler

import (
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/capstan-dev/capstan/internal/executor"
)

// Leases decides whether the holder of a Lease is alive. The decision depends on when this process saw the Lease
// change, and not on the times inside the Lease, because the clocks of other machines may be wrong by any amount.
// client-go elects a leader in the same way.
//
// A process watches the Leases from its start, before it leads. So if a process is lost that was the leader and also an
// executor, the new leader sees both of its Leases expire at the same time.
//
// An unchanged Lease is a sign of a lost holder only while Leases can be written. A leader knows that they can be
// written, because it renews its own Lease. Another process knows it from the renewals that it sees. After a gap in
// these renewals, each Lease is given its full duration again.
//
// The zero value is ready to use. Leases is safe for concurrent use.
type Leases struct {
	mu   sync.Mutex
	seen map[string]sighting
	// watching is true once all Leases that existed at the start have been recorded. A Lease that appears after that
	// was just created.
	watching bool
	// leadingSince is the time since which this process leads. It is zero before that, and has a reading of the
	// monotonic clock.
	leadingSince time.Time
	// lastRenewal is the time at which this process last saw a renewal of any Lease.
	lastRenewal time.Time
	// writableSince is the time since which Leases can be written, as far as this process knows. No Lease expires
	// before its duration has passed since then.
	writableSince time.Time
}

// renewalGap is the longest time between two renewals that this process sees while Leases can be written. A longer gap
// counts as an outage. Each executor renews its Lease every 3 s, or 3.1 s with jitter. During a shorter outage, which
// is not noticed, a living executor does not renew for at most renewalGap plus 3.1 s. This sum must be shorter than
// executor.LeaseDuration.
const renewalGap = 6 * time.Second

// sighting holds everything that this process knows about one Lease.
type sighting struct {
	uid  types.UID
	spec coordinationv1.LeaseSpec
	// version is the newest resource version of the Lease that this process has seen.
	version string
	// changed is the time at which this process first saw the current spec of the Lease, or last recorded an outage,
	// whichever was later. It has a reading of the monotonic clock.
	changed time.Time
	// lost is true if the holder counts as lost. It must be set only after a read from the API server, because the
	// cache may be stale.
	lost bool
	// renewed is true if this process has seen the Lease change, so that its holder is known to be running.
	renewed bool
}

// Start records the Leases that exist at the start of the process. Only the first call has an effect.
func (l *Leases) Start(all []coordinationv1.Lease, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watching {
		return
	}
	for i := range all {
		l.record(&all[i], now)
	}
	l.watching = true
}

// Started reports whether Start was called.
func (l *Leases) Started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watching
}

// Lead records that this process leads from now on. Only the first call has an effect.
func (l *Leases) Lead(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leadingSince.IsZero() {
		return
	}
	l.leadingSince = now
	if now.Sub(l.lastRenewal) > renewalGap {
		l.writableSince = now
	}
}

// LeadingFor returns how long this process has led, or 0 if it does not lead.
func (l *Leases) LeadingFor(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leadingSince.IsZero() {
		return 0
	}
	return now.Sub(l.leadingSince)
}

// Observe records a Lease that the informer has received.
func (l *Leases) Observe(lease *coordinationv1.Lease, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record(lease, now)
}

// Check records a Lease that was read. left is how long its holder still counts as alive. If left is 0 or less, the
// holder does not count as alive. mayGetTurns reports whether new Turns may be bound to the holder.
//
// A Lease is held for its duration after each change that this process sees. The first time that this process sees the
// Lease counts as a change. So if an executor died before this process started, its Turns are bound again one lease
// duration after the start. They must not be bound earlier, because the executor might be alive.
//
// Before new Turns may be bound to the holder, this process must have seen a renewal of the Lease, or the Lease must
// show a renewal that is recent by the clock of this process.
func (l *Leases) Check(lease *coordinationv1.Lease, now time.Time) (left time.Duration, mayGetTurns bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.record(lease, now)
	duration := heldFor(&s.spec)
	silent := now.Sub(s.changed)
	left = duration - min(silent, now.Sub(l.writableSince))
	if duration <= 0 || left <= 0 {
		return 0, false
	}
	age := now.Sub(s.spec.RenewTime.Time)
	return left, silent < duration && (s.renewed || (age < duration && age > -duration))
}

// IsLost reports whether the holder of a Lease counts as lost: it has released the Lease, or MarkLost was called.
func (l *Leases) IsLost(lease *coordinationv1.Lease, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.record(lease, now)
	return heldFor(&s.spec) <= 0 || s.lost
}

// MarkLost marks the holder of a Lease as lost. A change of the Lease removes the mark.
func (l *Leases) MarkLost(lease *coordinationv1.Lease, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.record(lease, now)
	s.lost = true
	l.seen[lease.Name] = s
}

// RecordOutage records that the API server did not answer, so that no Lease could be renewed or read. All Leases that
// were not lost before are given their full duration again.
func (l *Leases) RecordOutage(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.seen {
		if !s.lost {
			s.changed = now
			l.seen[name] = s
		}
	}
}

// LeaseRetention is how long the Lease of a lost executor is kept, for people who want to see it. It must be deleted,
// because each Pod has a new name and so creates a new Lease.
const LeaseRetention = 5 * time.Minute

// KeepFor returns how long the Lease of a lost executor must be kept before KeepFor is called again, or 0 if the Lease
// may be deleted now. Before it is deleted, the position that it publishes must be covered (see IsCovered), or be
// written into the Lease of the store.
func (l *Leases) KeepFor(lease *coordinationv1.Lease, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, LeaseRetention-now.Sub(l.record(lease, now).changed))
}

// IsCovered reports whether another Lease, of a living executor, has the position that a Lease publishes, or a later
// position of the same store. executors are the Leases of all executors.
func (l *Leases) IsCovered(lease *coordinationv1.Lease, executors []coordinationv1.Lease, now time.Time) bool {
	position, ok := executor.PublishedBy(lease)
	if !ok {
		return false
	}
	for i := range executors {
		other := &executors[i]
		if published, ok := executor.PublishedBy(other); !ok || other.Name == lease.Name || !published.Covers(position) {
			continue
		}
		if left, mayGetTurns := l.Check(other, now); left > 0 && mayGetTurns {
			return true
		}
	}
	return false
}

// Forget drops a deleted Lease. A Lease that appears later with the same name is a new one.
func (l *Leases) Forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, name)
}

// record records a Lease and returns what is known about it. It ignores a version that is older than the recorded one:
// the cache may be behind an earlier read from the API server.
func (l *Leases) record(lease *coordinationv1.Lease, now time.Time) sighting {
	last, known := l.seen[lease.Name]
	if known {
		if order, err := resourceversion.CompareResourceVersion(lease.ResourceVersion, last.version); err == nil && order < 0 {
			return last
		}
	}
	if known && last.uid == lease.UID && equality.Semantic.DeepEqual(last.spec, lease.Spec) {
		last.version = lease.ResourceVersion
		l.seen[lease.Name] = last
		return last
	}
	if l.seen == nil {
		l.seen = map[string]sighting{}
	}
	s := sighting{
		uid: lease.UID, spec: *lease.Spec.DeepCopy(), version: lease.ResourceVersion, changed: now, renewed: known || l.watching,
	}
	l.seen[lease.Name] = s
	if s.renewed {
		if l.leadingSince.IsZero() && now.Sub(l.lastRenewal) > renewalGap {
			l.writableSince = now
		}
		l.lastRenewal = now
	}
	return s
}

// heldFor returns how long a Lease is held after each renewal. It returns 0 if the Lease was released or never held.
func heldFor(s *coordinationv1.LeaseSpec) time.Duration {
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*s.LeaseDurationSeconds) * time.Second
}

// ExecutorOf returns the executor that a Lease describes. Its capacity is 0 if the Lease does not state a capacity. An
// executor that is stopping announces a capacity of 0, because it would hand new Turns back.
func ExecutorOf(l *coordinationv1.Lease) Executor {
	capacity, err := strconv.Atoi(l.Annotations[executor.CapacityAnnotation])
	if err != nil {
		capacity = 0
	}
	stuck, err := strconv.Atoi(l.Annotations[executor.StuckAnnotation])
	if err != nil {
		stuck = 0
	}
	reach := ReachUnknown
	switch l.Annotations[executor.StoreReachableAnnotation] {
	case "true":
		reach = Reachable
	case "false":
		reach = Unreachable
	}
	return Executor{
		Name: strings.TrimPrefix(l.Name, executor.LeasePrefix), Capacity: capacity, Stuck: max(0, min(stuck, capacity)), Reach: reach,
		Store: executor.StoreIdentity{
			ID: l.Annotations[executor.StoreAnnotation], Incarnation: l.Annotations[executor.IncarnationAnnotation],
		},
	}
}
