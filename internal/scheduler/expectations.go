package scheduler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Expectations remember which version of an object this process wrote last, until the cache shows it. An object that was
// bound a moment ago looks as if it still waited; a reconciler that acted on that would give its slot away. The zero value is
// ready to use, and safe for concurrent use.
type Expectations struct {
	mu       sync.Mutex
	versions map[Key]expectation
}

type expectation struct {
	uid     types.UID
	version string
}

// Expect remembers an object as a write returned it.
func (w *Expectations) Expect(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versions == nil {
		w.versions = map[Key]expectation{}
	}
	w.versions[client.ObjectKeyFromObject(o)] = expectation{uid: o.GetUID(), version: o.GetResourceVersion()}
}

// IsStale reports whether an object, as it was read, lacks the last write.
func (w *Expectations) IsStale(o client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	last, ok := w.versions[key]
	if !ok {
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), last.version); last.uid == o.GetUID() && err == nil && order < 0 {
		return true
	}
	delete(w.versions, key)
	return false
}

// Forget drops an object that is gone.
func (w *Expectations) Forget(key Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, key)
}
