package journalgc

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// maxSuspects is the maximum number of hints that are kept. The sweep handles the rest.
const maxSuspects = 10_000

// object identifies an object in the API server.
type object struct {
	kind schema.GroupVersionKind
	key  types.NamespacedName
	// charged is true for a Turn that needs no charge: an executor has ended the Turn, or no executor has begun it.
	charged bool
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
	object object
	since  time.Time
}

// suspects holds the objects that may have been deleted.
//
// When a Turn finishes, it leaves one watch and appears in another one, in any order. If both events arrive within
// settleTime, the Turn is no suspect, and no request to the API server is necessary.
type suspects struct {
	mu   sync.Mutex
	open map[types.UID]suspect
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
	d.add(uid, o, now)
}

// hint records that an object may have been deleted. Unlike leave, it also does so for a Turn that has finished.
func (d *suspects) hint(uid types.UID, o object, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(uid, o, now)
}

// add adds a suspect. The caller must hold the lock.
func (d *suspects) add(uid types.UID, o object, now time.Time) {
	if len(d.open) >= maxSuspects {
		return
	}
	if d.open == nil {
		d.open = map[types.UID]suspect{}
	}
	d.open[uid] = suspect{object: o, since: now}
	if len(d.open) == 1 {
		select {
		case d.waker() <- struct{}{}:
		default: // a wake-up is already pending
		}
	}
}

// finish records that a Turn has finished.
func (d *suspects) finish(uid types.UID, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.open[uid]; ok {
		delete(d.open, uid)
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

// hinted returns a channel that receives a value when the first suspect is added.
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

// due removes and returns the suspects that are at least settleTime old.
func (d *suspects) due(now time.Time) map[types.UID]suspect {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := map[types.UID]suspect{}
	for uid, one := range d.open {
		if now.Sub(one.since) >= settleTime {
			due[uid] = one
			delete(d.open, uid)
		}
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

// any reports whether there are suspects.
func (d *suspects) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open) > 0
}
