// Package shared keeps values once that many Turns hold at the same time, such as the tools of their Agent.
package shared

import (
	"runtime"
	"sync"
	"weak"
)

// Values are values by their keys, each for as long as somebody holds it. The zero Values has none. It is safe for concurrent use.
type Values[K comparable, T any] struct {
	mu    sync.Mutex
	byKey map[K]weak.Pointer[T]
}

// Of returns the value of a key that others hold, or the given one if nobody holds any. Values of one key must be equal, and must not
// be changed once they are shared. The value is shared for as long as the returned pointer is held, not what it points to.
func (v *Values[K, T]) Of(key K, value *T) *T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if held := v.byKey[key].Value(); held != nil {
		return held
	}
	if v.byKey == nil {
		v.byKey = map[K]weak.Pointer[T]{}
	}
	v.byKey[key] = weak.Make(value)
	runtime.AddCleanup(value, v.forget, key)
	return value
}

// forget removes a key whose value is gone.
func (v *Values[K, T]) forget(key K) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p, ok := v.byKey[key]; ok && p.Value() == nil {
		delete(v.byKey, key)
	}
}

// Len returns the number of keys.
func (v *Values[K, T]) Len() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.byKey)
}
