package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownWrites remembers which version of an object this process wrote last, until the cache shows it. An object that was
// bound a moment ago looks as if it still waited; whoever acted on that would give its place away.
type ownWrites struct {
	mu       sync.Mutex
	versions map[types.NamespacedName]ownWrite
}

type ownWrite struct {
	uid     types.UID
	version string
}

// note remembers an object as a write returned it.
func (w *ownWrites) note(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versions == nil {
		w.versions = map[types.NamespacedName]ownWrite{}
	}
	w.versions[client.ObjectKeyFromObject(o)] = ownWrite{uid: o.GetUID(), version: o.GetResourceVersion()}
}

// missing reports whether an object, as it was read, lacks the last write.
func (w *ownWrites) missing(o client.Object) bool {
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

// forget drops an object that is gone.
func (w *ownWrites) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, key)
}
