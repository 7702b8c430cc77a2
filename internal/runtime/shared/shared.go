// Package shared keeps one copy of values that many Turns hold at the same time, such as the tools of their Agent.
package shared

import (
	"runtime"
	"sync"
	"weak"
)

// Values maps keys to values and keeps each value only as long as other code holds it. The zero Values is empty. It
// is safe for concurrent use.
type Values[K comparable, T any] struct {
	mu    sync.Mutex
	byKey map[K]weak.Pointer[T]
}

// Of returns the value of a key that other code holds. If there is none, Of shares and returns the given value. Values
// of the same key must be equal and must not change after they are shared. A value is shared as long as the returned
// pointer is held; holding only the data that the value refers to is not enough.
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

// Get returns the value of a key that other code holds, or nil if there is none.
func (v *Values[K, T]) Get(key K) *T {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.byKey[key].Value()
}

// forget removes a key whose value was garbage-collected.
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
