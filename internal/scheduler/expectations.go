package scheduler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Expectations remembers which version of an object this process wrote last, until the cache shows that version. For
// example, a Turn that was just bound still looks unbound in the cache, and a reconciler that acted on this old version
// would give the Turn's slot to another Turn. The zero value is ready to use. Expectations is safe for concurrent use.
type Expectations struct {
	mu       sync.Mutex
	versions map[Key]expectation
}

type expectation struct {
	uid     types.UID
	version string
}

// Expect records the object that a write returned.
func (w *Expectations) Expect(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versions == nil {
		w.versions = map[Key]expectation{}
	}
	w.versions[client.ObjectKeyFromObject(o)] = expectation{uid: o.GetUID(), version: o.GetResourceVersion()}
}

// IsStale reports whether an object, as it was read, is older than the last write.
func (w *Expectations) IsStale(o client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	last, ok := w.versions[key]
	if !ok {
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), last.version); last.uid == o.GetUID() &&
		err == nil && order < 0 {
		return true
	}
	delete(w.versions, key)
	return false
}

// Forget drops a deleted object.
func (w *Expectations) Forget(key Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, key)
}
