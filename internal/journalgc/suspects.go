package journalgc

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// maxSuspects is the maximum number of hints that are kept. Namespaces share it: see suspects.add. The sweep handles
// the rest.
const maxSuspects = 10_000

// object identifies an object in the API server.
type object struct {
	kind schema.GroupVersionKind
	key  types.NamespacedName
	// charged is true for a Turn that needs neither a charge nor a record: an executor has ended the Turn in its
	// journal, or no executor has begun it.
	charged bool
	// end is the end of a Turn that needs a charge or a record: see Collector.End. It is nil if it is not known.
	end *v1alpha1.Turn
}

func objectOf(o client.Object) object {
	kind := "Turn"
	if _, ok := o.(*v1alpha1.Session); ok {
		kind = "Session"
	}
	return object{kind: v1alpha1.GroupVersion.WithKind(kind), key: client.ObjectKeyFromObject(o)}
}

// suspect is an object that has left a watch.
type suspect struct {
	uid    types.UID
	object object
	// due is when the API server may be asked about the object.
	due time.Time
	// backOff is the wait after the next failure. It is nil before the first failure.
	backOff *backoff.ExponentialBackOff
}

// suspects holds the objects that may have been deleted.
//
// When a Turn finishes, it leaves one watch and appears in another one, in any order. If both events arrive within
// settleTime, the Turn is no suspect, and no request to the API server is necessary.
type suspects struct {
	mu   sync.Mutex
	open map[types.UID]suspect
	// counts is the number of suspects in open of each namespace that has any.
	counts map[string]int
	// next is when the first suspect in open is due, or zero if there is none. It may be too early if a suspect was
	// removed.
	next time.Time
	// finished holds the Turns that appeared as finished before they left the other watch.
	finished map[types.UID]time.Time
	// pruned is when old Turns were last removed from finished.
	pruned time.Time
	wake   chan struct{}
}

// leave records that an object has left the cache.
func (d *suspects) leave(uid types.UID, o object, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.finished[uid]; ok {
		delete(d.finished, uid)
		return
	}
	d.add(suspect{uid: uid, object: o, due: now.Add(settleTime)})
}

// hint records that an object may have been deleted. Unlike leave, it also does so for a Turn that has finished.
func (d *suspects) hint(uid types.UID, o object, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(suspect{uid: uid, object: o, due: now.Add(settleTime)})
}

// retry records that the follow-up of a suspect has failed. Each time, the suspect is due later.
func (d *suspects) retry(s suspect, now time.Time) {
	if s.backOff == nil {
		s.backOff = newBackOff(maxBackOff)
	}
	s.due = now.Add(s.backOff.NextBackOff())
	d.putBack([]suspect{s})
}

// putBack adds suspects that due has returned.
func (d *suspects) putBack(all []suspect) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range all {
		d.add(s)
	}
}

// add adds a suspect. Another hint about an open suspect does not end its back-off, and keeps the end of the Turn. If
// there are too many suspects, the namespace that has the most loses one, so that it does not displace the hints of
// others. The caller must hold the lock.
func (d *suspects) add(s suspect) {
	if d.open == nil {
		d.open, d.counts = map[types.UID]suspect{}, map[string]int{}
	}
	namespace := s.object.key.Namespace
	if known, ok := d.open[s.uid]; ok {
		if s.backOff == nil {
			s.backOff = known.backOff
		}
		if known.due.After(s.due) {
			s.due = known.due
		}
		if s.object.end == nil {
			s.object.end = known.object.end
		}
		d.remove(s.uid)
	} else if len(d.open) >= maxSuspects && !d.displace(namespace) {
		return
	}
	d.open[s.uid] = s
	d.counts[namespace]++
	if d.next.IsZero() || s.due.Before(d.next) {
		d.next = s.due
		select {
		case d.waker() <- struct{}{}:
		default: // a wake-up is already pending
		}
	}
}

// displace removes a suspect of the namespace that has the most, and reports whether it has done so. It does not if
// the given namespace has as many. The caller must hold the lock.
func (d *suspects) displace(by string) bool {
	fullest := by
	for namespace, n := range d.counts {
		if n > d.counts[fullest] {
			fullest = namespace
		}
	}
	if fullest == by {
		return false
	}
	for uid, s := range d.open {
		if s.object.key.Namespace == fullest {
			d.remove(uid)
			return true
		}
	}
	return false
}

// remove removes an open suspect. The caller must hold the lock.
func (d *suspects) remove(uid types.UID) {
	namespace := d.open[uid].object.key.Namespace
	delete(d.open, uid)
	if d.counts[namespace]--; d.counts[namespace] == 0 {
		delete(d.counts, namespace)
	}
}

// finish records that a Turn has finished.
func (d *suspects) finish(uid types.UID, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.open[uid]; ok {
		d.remove(uid)
		return
	}
	if len(d.finished) >= maxSuspects && now.Sub(d.pruned) >= settleTime {
		d.prune(now)
	}
	if len(d.finished) >= maxSuspects {
		return // the only consequence is a request to the API server
	}
	if d.finished == nil {
		d.finished = map[types.UID]time.Time{}
	}
	d.finished[uid] = now
}

// prune forgets the Turns that finished at least settleTime ago: by then they have left the watch of unfinished Turns.
// The caller must hold the lock.
func (d *suspects) prune(now time.Time) {
	d.pruned = now
	maps.DeleteFunc(d.finished, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= settleTime })
}

// hinted returns a channel that receives a value when a suspect is added that is due before the others.
func (d *suspects) hinted() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waker()
}

// waker returns the channel of hinted. The caller must hold the lock.
func (d *suspects) waker() chan struct{} {
	if d.wake == nil {
		d.wake = make(chan struct{}, 1)
	}
	return d.wake
}

// due removes and returns up to limit suspects that are due. The first suspect of each namespace comes first, then the
// second of each, and so on.
func (d *suspects) due(now time.Time, limit int) []suspect {
	d.mu.Lock()
	defer d.mu.Unlock()
	var due []suspect
	d.next = time.Time{}
	for _, s := range d.open {
		if !s.due.After(now) {
			due = append(due, s)
		} else if d.next.IsZero() || s.due.Before(d.next) {
			d.next = s.due
		}
	}
	slices.SortFunc(due, func(a, b suspect) int { return a.due.Compare(b.due) })
	place, seen := map[types.UID]int{}, map[string]int{}
	for _, s := range due {
		namespace := s.object.key.Namespace
		place[s.uid] = seen[namespace]
		seen[namespace]++
	}
	slices.SortStableFunc(due, func(a, b suspect) int { return place[a.uid] - place[b.uid] })
	if len(due) > limit {
		due, d.next = due[:limit], now
	}
	for _, s := range due {
		d.remove(s.uid)
	}
	d.prune(now)
	return due
}

// exclude removes the suspects from a set of UIDs.
func (d *suspects) exclude(uids sets.Set[string]) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.open {
		uids.Delete(string(uid))
	}
}

// nextDue returns when the next suspect is due, or zero if there are no suspects. The time may be too early.
func (d *suspects) nextDue() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.next
}
