package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// leases judges who holds a Lease by the time at which this process saw it change, and not by the times within it: the
// clocks of other machines may be wrong by any amount. It is the way in which client-go elects a leader.
//
// A process follows the Leases from its start, before it leads: the Lease of an executor and that of leader election, which a lost
// process has held both, then expire at the same time. A Lease that does not change says something only while Leases can be
// written. A leader knows that they can: it renews its own. A process that does not lead knows it from the renewals of others
// that it sees: after a gap in them, each Lease gets its time anew.
//
// The informer's handler, the one worker of the executor controller and the workers of the Turn controller share it.
type leases struct {
	mu   sync.Mutex
	seen map[string]sighting
	// watching is true once all Leases that there were at the start have been seen: one that is new then was just made.
	watching bool
	// leading is true once this process leads.
	leading bool
	// renewal is when this process last saw a renewal of any Lease.
	renewal time.Time
	// writable is since when Leases can be written, as far as this process knows; no Lease expires earlier than its duration later.
	writable time.Time
}

// renewalGap is the longest time between two renewals that this process sees while Leases can be written: each executor renews
// every 3 s, or 3.1 s with its jitter. An executor that lives is silent for no longer than an outage and one such interval, which
// together must be shorter than executor.LeaseDuration.
const renewalGap = 6 * time.Second

// sighting is what this process knows of one Lease.
type sighting struct {
	uid  types.UID
	spec coordinationv1.LeaseSpec
	// version is the newest resource version of the Lease that was seen.
	version string
	// changed is when this process saw the Lease as it is for the first time, with the reading of its monotonic clock.
	changed time.Time
	// lost is the verdict on its holder, which only a look at the API server gives: the cache may be cut off.
	lost bool
	// renewed is whether the Lease has changed before the eyes of this process, so that somebody is known to be there.
	renewed bool
}

// start notes the Leases that there are before anything happens to them. Only the first call counts.
func (l *leases) start(all []coordinationv1.Lease, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watching {
		return
	}
	for i := range all {
		l.note(&all[i], now)
	}
	l.watching = true
}

// started reports whether start was called.
func (l *leases) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watching
}

// lead notes that this process leads from now on. Only the first call counts.
func (l *leases) lead(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		return
	}
	l.leading = true
	if now.Sub(l.renewal) > renewalGap {
		l.writable = now
	}
}

// see notes a Lease as the informer shows it.
func (l *leases) see(lease *coordinationv1.Lease, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(lease, now)
}

// look notes a Lease as the cache has it. left is how long its holder counts as alive from now on, 0 or less if it does not;
// trusted is whether it may get Turns.
//
// A Lease is held for its duration after it was seen to change; the first look at it is a change. So the Turns of an executor
// that died before this process was there are bound anew one duration after its start, and not before: it might live. New ones
// need more than that: the Lease must have been seen to be renewed, or speak of a renewal that is recent by the clock here.
func (l *leases) look(lease *coordinationv1.Lease, now time.Time) (left time.Duration, trusted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.note(lease, now)
	duration := held(&s.spec)
	silent := now.Sub(s.changed)
	left = duration - min(silent, now.Sub(l.writable))
	if duration <= 0 || left <= 0 {
		return 0, false
	}
	age := now.Sub(s.spec.RenewTime.Time)
	return left, silent < duration && (s.renewed || (age < duration && age > -duration))
}

// isLost reports whether the holder of a Lease counts as gone: it has released it, or the verdict was given.
func (l *leases) isLost(lease *coordinationv1.Lease, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.note(lease, now)
	return held(&s.spec) <= 0 || s.lost
}

// lose gives the verdict on the holder of a Lease. A change of the Lease takes it back.
func (l *leases) lose(lease *coordinationv1.Lease, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.note(lease, now)
	s.lost = true
	l.seen[lease.Name] = s
}

// blind notes that the API server gave no answer: nobody could renew a Lease, or be seen to. All that were not lost before
// get their time anew.
func (l *leases) blind(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.seen {
		if !s.lost {
			s.changed = now
			l.seen[name] = s
		}
	}
}

// unchanged is for how long a Lease has been as the cache has it.
func (l *leases) unchanged(lease *coordinationv1.Lease, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.note(lease, now).changed)
}

// forget drops a Lease that is gone: one of that name that appears is another one.
func (l *leases) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, name)
}

// note returns what is known of a Lease after this look at it. A look at the cache may come after one at the API server and
// show what was before: that is no change of the Lease, and what is known stays.
func (l *leases) note(lease *coordinationv1.Lease, now time.Time) sighting {
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
		if !l.leading && now.Sub(l.renewal) > renewalGap {
			l.writable = now
		}
		l.renewal = now
	}
	return s
}

// held is for how long a Lease is held after each renewal; 0 if it was released, or never held.
func held(s *coordinationv1.LeaseSpec) time.Duration {
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*s.LeaseDurationSeconds) * time.Second
}
