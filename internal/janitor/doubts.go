package janitor

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// maxDoubts bounds the hints that are kept. More than that are left to the sweep.
const maxDoubts = 10_000

// object names an object in the API server.
type object struct {
	kind schema.GroupVersionKind
	key  types.NamespacedName
	// finished is true for a Turn that is known to have finished before it went.
	finished bool
}

func objectOf(o client.Object) object {
	kind := "Turn"
	if _, ok := o.(*v1alpha1.Session); ok {
		kind = "Session"
	}
	return object{kind: v1alpha1.GroupVersion.WithKind(kind), key: client.ObjectKeyFromObject(o)}
}

// doubt is an object that has left a watch.
type doubt struct {
	object object
	since  time.Time
}

// doubts are the objects of which it is not known whether they are gone.
//
// A Turn that finishes leaves one watch and appears in another, and the two come in any order. Whichever comes second
// within settleTime makes a question to the API server superfluous, so that no Turn costs one when it finishes.
type doubts struct {
	mu   sync.Mutex
	open map[types.UID]doubt
	// finished are the Turns that appeared before they left.
	finished map[types.UID]time.Time
	// tidied is when finished was gone through last.
	tidied time.Time
	wake   chan struct{}
}

// leave notes that an object has left the cache.
func (d *doubts) leave(uid types.UID, o object, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.finished[uid]; ok {
		delete(d.finished, uid)
		return
	}
	d.add(uid, o, now)
}

// hint notes that an object may be gone, whatever was known of it.
func (d *doubts) hint(uid types.UID, o object, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(uid, o, now)
}

// add adds a doubt. The caller holds the lock.
func (d *doubts) add(uid types.UID, o object, now time.Time) {
	if len(d.open) >= maxDoubts {
		return
	}
	if d.open == nil {
		d.open = map[types.UID]doubt{}
	}
	d.open[uid] = doubt{object: o, since: now}
	if len(d.open) == 1 {
		select {
		case d.waker() <- struct{}{}:
		default: // it is told already
		}
	}
}

// finish notes that a Turn has finished.
func (d *doubts) finish(uid types.UID, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.open[uid]; ok {
		delete(d.open, uid)
		return
	}
	if len(d.finished) >= maxDoubts && now.Sub(d.tidied) >= settleTime {
		d.tidy(now)
	}
	if len(d.finished) >= maxDoubts {
		return // a question more does no harm
	}
	if d.finished == nil {
		d.finished = map[types.UID]time.Time{}
	}
	d.finished[uid] = now
}

// tidy forgets Turns that finished a while ago: the cache has shown it by now. The caller holds the lock.
func (d *doubts) tidy(now time.Time) {
	d.tidied = now
	maps.DeleteFunc(d.finished, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= settleTime })
}

// hinted receives when there is a first doubt.
func (d *doubts) hinted() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waker()
}

// waker returns the channel. The caller holds the lock.
func (d *doubts) waker() chan struct{} {
	if d.wake == nil {
		d.wake = make(chan struct{}, 1)
	}
	return d.wake
}

// due takes the doubts that have stood for settleTime.
func (d *doubts) due(now time.Time) map[types.UID]doubt {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := map[types.UID]doubt{}
	for uid, one := range d.open {
		if now.Sub(one.since) >= settleTime {
			due[uid] = one
			delete(d.open, uid)
		}
	}
	d.tidy(now)
	return due
}

// any reports whether there are doubts.
func (d *doubts) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open) > 0
}
